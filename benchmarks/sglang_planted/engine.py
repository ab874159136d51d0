"""One start of an SGLang engine in a planted world, and how fast it decodes there.

    python -m benchmarks.sglang_planted.engine PLAN.json RESULT.json

Run by `sglang_serving`, in SGLang's own Python. The server's options are those that the
runner `sglang_verify` measures with, so that a table of it covers this very engine;
only what a server needs besides is added.
"""

import hashlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from runners.protocol import die_with_parent

WARM_UP_TOKENS = 64
"""Enough to compile every kernel."""


@dataclass(frozen=True)
class Start:
    """An engine with folders of its models and its whole tree, and what it decodes:
    `context` tokens of a prompt, and `tokens` of each reply."""

    target: str
    draft: str
    dtype: str
    speculative: bool
    width: int
    steps: int
    topk: int
    batches: tuple[int, ...]
    context: int
    tokens: int
    repeats: int
    attention: str = ""
    seed: int = 0

    def texts_of(self, repeat: int, batch: int) -> list[int]:
        """The texts that a batch decodes: each repeat takes the next ones."""
        return [(repeat * batch + i) % max(self.batches) for i in range(batch)]


def main(arguments: Sequence[str]) -> None:
    """Start the engine, decode, and write what came of it."""
    import sglang

    die_with_parent()  # an engine that nobody waits for would keep its GPU
    plan, result = map(Path, arguments)
    start = Start(**json.loads(plan.read_text(encoding="utf-8")))
    asked, begun = prompts(start), time.monotonic()
    engine = sglang.Engine(**engine_options(start))
    up_s = time.monotonic() - begun
    try:
        warm_up(engine, start, asked)
        runs = [
            decode(engine, start, asked, repeat, batch)
            for repeat in range(start.repeats)
            for batch in start.batches
        ]
    finally:
        engine.shutdown()
    facts = {"device": device_name(), "sglang": metadata.version("sglang")}
    found = {**facts, "up_s": round(up_s, 1), "runs": runs}
    result.write_text(json.dumps(found, indent=1), encoding="utf-8")


def engine_options(start: Start) -> dict[str, Any]:
    """Options of the server."""
    import torch

    from runners.sglang_verify.server import LoadPlan, prepare_process, server_options

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepare_process(device, rank=0, tp=1)
    plan = LoadPlan(
        target=Path(start.target),
        draft=Path(start.draft),
        drafts=True,
        dtype=start.dtype,
        width=start.width,
        steps=start.steps,
        topk=start.topk,
        batches=tuple(start.batches),
        context=start.context + max(start.tokens, WARM_UP_TOKENS),
        graphs=True,
        attention=start.attention,
        seed=start.seed,
    )
    options = server_options(plan, device) | {
        # Prompts stay cached, so that a repeat times decoding and little else.
        "disable_radix_cache": False,
        "max_running_requests": max(start.batches),
        "max_total_tokens": 2 * plan.tokens,
        "log_level": "info",
    }
    if not start.speculative:
        options = {k: v for k, v in options.items() if not k.startswith("speculative_")}
    return options


def prompts(start: Start) -> list[list[int]]:
    """One prompt for each request of the largest batch; its first token is its text."""
    source = random.Random(start.seed)
    config = json.loads((Path(start.target) / "config.json").read_text())
    words = range(1, config["vocab_size"])
    return [
        [text, *source.choices(words, k=start.context - 1)]
        for text in range(max(start.batches))
    ]


def warm_up(engine: Any, start: Start, asked: list[list[int]]) -> None:
    """Cache all prompts, and run each batch once."""
    for batch in (*start.batches, len(asked)):
        generate(engine, asked[:batch], WARM_UP_TOKENS)


def decode(
    engine: Any, start: Start, known: list[list[int]], repeat: int, batch: int
) -> dict[str, Any]:
    """Time and tokens of a batch; `steps`, verifications over its requests, 0 without
    drafting; `said`, a digest of all tokens, which no way of decoding may change."""
    asked = [known[text] for text in start.texts_of(repeat, batch)]
    begun = time.perf_counter()
    answers = generate(engine, asked, start.tokens)
    seconds = time.perf_counter() - begun
    said = [answer["output_ids"] for answer in answers]
    return {
        "repeat": repeat,
        "batch": batch,
        "seconds": seconds,
        "tokens": sum(map(len, said)),
        "steps": sum(each["meta_info"].get("spec_verify_ct", 0) for each in answers),
        "said": digest(said),
    }


def digest(said: list[list[int]]) -> str:
    """A batch's tokens in a few characters."""
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]


def generate(engine: Any, asked: list[list[int]], tokens: int) -> list[dict[str, Any]]:
    """Greedy replies of exactly `tokens` tokens."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    answers: list[dict[str, Any]] = engine.generate(
        input_ids=asked, sampling_params=sampling
    )
    return answers


def device_name() -> str:
    """The GPU's name, or that there is none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


if __name__ == "__main__":  # the engine's processes import this file again
    main(sys.argv[1:])
