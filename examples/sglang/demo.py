"""Decode plainly and with draft trees on a CPU, and say whether tokens are the same.

    python -m examples.sglang.demo

What the plug-in does with the trees is for the environment to say: EVICT_PROFILE_TABLE
names a cost table of the model here, EVICT_PROFILE_MODE=observe records traces. Weights
are dummies and there is no tokenizer, so the drafter is never right; it is the way
through the server that is seen here, and nothing of what it gains.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAIRS = [[[5 + n, 6, 7, 8], list(range(40, 60 + n))] for n in range(4)]
"""Prompts, two at a time: the largest batch of the sweep `sglang-tiny`."""

TOKENS = (24, 16)
IDLE_S = 4.0
"""Traces are written soon after the server has nothing to do."""


def start_engine(model: Path, **options: Any) -> Any:
    """A running `sglang.Engine` on a CPU; its caller shuts it down.

    float32, because the same tokens must come out whatever the width of a forward: in
    bfloat16 a sum's order can decide between two tokens.
    """
    import sglang

    # Layers this small are slower on several threads, and many times so on busy cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plain = {
        "model_path": str(model),
        "load_format": "dummy",
        "dtype": "float32",
        "device": "cpu",
        "attention_backend": "intel_amx",
        "sampling_backend": "pytorch",
        "skip_tokenizer_init": True,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "max_total_tokens": 4096,
        "mem_fraction_static": 0.2,
        "log_level": "warning",
    }
    return sglang.Engine(**plain | options)


def eagle3(head: Path, steps: int, topk: int, draft_tokens: int) -> dict[str, Any]:
    """Options that draft such trees: levels, children kept at each, nodes verified."""
    return {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(head),
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": draft_tokens,
    }


def replies(**options: Any) -> list[list[int]]:
    """Tokens of a reply to each prompt."""
    engine = start_engine(HERE / "tiny-moe", **options)
    sampling = [
        {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        for tokens in TOKENS
    ]
    said = []
    for pair in PAIRS:
        said += engine.generate(input_ids=pair, sampling_params=sampling)
    time.sleep(IDLE_S)
    engine.shutdown()
    return [each["output_ids"] for each in said]


def main() -> None:
    """Decode both ways; exit with 1 if they differ."""
    table = os.environ.get("EVICT_PROFILE_TABLE")
    if table and not Path(table).is_file():
        sys.exit(f"EVICT_PROFILE_TABLE={table}: there is no such file")
    trees = eagle3(HERE / "tiny-moe-eagle3", steps=3, topk=4, draft_tokens=8)
    plain, drafted = replies(), replies(log_level="info", **trees)
    if plain != drafted:
        sys.exit("tokens differ: plain decoding and draft trees do not say the same")
    tokens = sum(map(len, plain))
    print(f"tokens are the same: {len(plain)} replies, {tokens} tokens")


if __name__ == "__main__":
    main()
