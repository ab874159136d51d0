"""Time captured verifications with or without the hook that forces routes.

    python scripts/gpu/hook.py --model MODEL --with
    python scripts/gpu/hook.py --model MODEL --without

Forcing launches nothing, and the forced union is what uniform routing would give, so
both should take as long. One process opens SGLang once, so each takes its own.
`--write` makes the config.json of the model's first layers instead, which open sooner.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import median

from evict_profile.config import load_model
from evict_profile.records import to_mapping

WIDTHS, BATCH, CONTEXT, FORWARDS = (1, 8), 1, 2048, 70


def main() -> None:
    """Print the median time of a forward at each width."""
    asked = parse()
    model = to_mapping(load_model(asked.model))
    if asked.write:
        from runners.sglang_verify.models import target_config

        shape = target_config({**model, "num_layers": asked.layers})
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text(json.dumps(shape), encoding="utf-8")
        return

    from runners.clock import in_a_row_us
    from runners.sglang_verify import session

    if asked.hook == "without":
        session.hook_the_router = lambda router: None
    opened = session.Session(model, options(asked.device))
    timer, times = opened.draft_timer, FORWARDS if asked.device == "cuda" else 5
    for width in WIDTHS:
        opened.force_usual(BATCH, width)
        laid_out = partial(timer.forwards, BATCH, opened.verifier.states[width])
        us = [
            in_a_row_us(opened.device, laid_out(), lead_in=laid_out()[0])
            for _ in range(times)
        ]
        print(f"{asked.hook} the hook: width {width}: {median(us):.1f} us a forward")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--layers", type=int)
    for hook in ("with", "without"):
        parser.add_argument(f"--{hook}", action="store_const", const=hook, dest="hook")
    return parser.parse_args()


def options(device: str) -> dict[str, object]:
    """What a sweep would ask the runner for."""
    context = CONTEXT if device == "cuda" else 64
    own = {"model": "", "draft": "", "steps": 3, "topk": 4, "tp": 1}
    return {
        "device": device,
        "dtype": "auto",
        "layers": "auto",
        "graphs": True,
        "seed": 0,
        "capture_sizes": WIDTHS,
        "max_width": max(WIDTHS),
        "max_context": context,
        "batches": [BATCH],
        "engine": {**own, "attention_backend": "triton"},
    }


if __name__ == "__main__":
    main()
