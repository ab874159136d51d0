"""Decode plainly and with draft trees on a CPU, and say whether tokens are the same.

    python -m tests.sglang.demo

What the plug-in does with the trees is for the environment to say: EVICT_PROFILE_TABLE
names a cost table of the model here, EVICT_PROFILE_MODE=observe records traces. Weights
are dummies, so the drafter is never right; it is the way through the server that is
seen here, and nothing of what it gains.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.sglang.engine import GREEDY, MODELS, Tree, start_engine

PAIRS = [[[5 + n, 6, 7, 8], list(range(40, 60 + n))] for n in range(4)]
"""Prompts, two at a time: the largest batch of the sweep `sglang-tiny`."""

TOKENS = (24, 16)
TREE = Tree(num_steps=3, topk=4, num_draft_tokens=8)
IDLE_S = 4.0
"""Traces are written soon after the server has nothing to do."""


def replies(tree):
    """Tokens of a reply to each prompt."""
    drafter = {"speculative_draft_model_path": str(MODELS / "priced_draft")}
    engine = start_engine(
        tree,
        model_path=str(MODELS / "priced"),
        log_level="warning" if tree is None else "info",
        **({} if tree is None else drafter),
    )
    asked: list[dict[str, Any]] = [GREEDY | {"max_new_tokens": n} for n in TOKENS]
    said = []
    for pair in PAIRS:
        said += engine.generate(input_ids=pair, sampling_params=asked)
    time.sleep(IDLE_S)
    engine.shutdown()
    return [each["output_ids"] for each in said]


def main():
    """Decode both ways; exit with 1 if they differ."""
    table = os.environ.get("EVICT_PROFILE_TABLE")
    if table and not Path(table).is_file():
        sys.exit(f"EVICT_PROFILE_TABLE={table}: there is no such file")
    plain, drafted = replies(None), replies(TREE)
    if plain != drafted:
        sys.exit("tokens differ: plain decoding and draft trees do not say the same")
    tokens = sum(map(len, plain))
    print(f"tokens are the same: {len(plain)} replies, {tokens} tokens")


if __name__ == "__main__":
    main()
