"""What choosing the depth before drafting gains over drafting all levels.

    python -m benchmarks.fewer_levels [--steps 3000] [--out gains.json]

The plug-in's own `Chooser` cuts planted chains of 6 levels, and drafts 3 or all. A
draft is right with the probability that its drafter gives, hard or easy text is one of
both or turns about every 24 tokens, a step takes its cost in the shipped estimated
table, and each level takes a planted share of a verification of roots. So costs are
known exactly, and the gain is the choice's alone. Prints tokens per second over those
of all levels. Exit code 1 where hard text gains less than `LEAST`, or easy text loses
more than `MOST`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Answer, command, count
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.runtime.depth import DepthChoice
from evict_profile.stats import Floats, Ints
from evict_profile.table import CostTable

TABLE = "composed/nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json"
LEVELS, FEWER, CONTEXT, STRETCH = 6, 3, 2048, 24
TEXTS = {"hard": 1.0, "mixed": 0.5, "easy": 0.0}
"""Share of hard text; its drafts are right with `HARD`, others with `EASY`."""

HARD, EASY = (0.35, 0.60), (0.80, 0.97)
BATCHES, SHARES = (1, 8), (0.04, 0.08)
LEAST, MOST = 0.04, 0.01


def text(hard: float, positions: int, batch: int) -> tuple[Floats, Ints]:
    """Probability of a draft at each position, and whether it is right, [B, P]."""
    rng = np.random.default_rng(3)
    turns = rng.random((batch, positions // STRETCH + 1)) < hard
    is_hard = turns.repeat(STRETCH, axis=1)[:, :positions, None]
    low, high = np.moveaxis(np.where(is_hard, HARD, EASY), 2, 0)
    sure = rng.uniform(low, high)
    return sure, (rng.random(sure.shape) < sure).astype(np.int64)


def tokens_per_s(
    table: CostTable, drafts: tuple[Floats, Ints], steps: int, depths: Sequence[int]
) -> float:
    """Of steps that draft one of these depths."""
    sure, right = drafts
    rows, index = (
        np.arange(len(sure))[:, None],
        np.tile(np.arange(LEVELS), (len(sure), 1)),
    )
    chooser = Chooser(table, tuple(range(1, LEVELS + 2)))
    chooser.depth = DepthChoice(depths)
    done, us = np.zeros((len(sure), 1), np.int64), 0.0
    for _ in range(steps):
        levels = chooser.steps(len(sure)) or LEVELS
        places = (done + index) % sure.shape[1]
        probability = sure[rows, places].cumprod(axis=1)
        probability[:, levels:] = 0.0
        plan = chooser.choose(probability, index, index - 1, 1, CONTEXT).plan
        kept = plan.host_keep & (index < levels)
        accepted = (kept * right[rows, places]).cumprod(axis=1).sum(axis=1)
        done[:, 0] += 1 + accepted
        us += float(plan.step_cost_us)
        chooser.learn(1 + accepted)
    return 1e6 * float(done.sum()) / us


def gains(steps: int) -> list[dict[str, Any]]:
    """By text, batch, and share of a verification that a level takes."""
    shipped, found = CostTable.load(data_root() / "cost_tables" / TABLE), []
    for name, hard in TEXTS.items():
        for batch in BATCHES:
            drafts = text(hard, steps, batch)
            verify_us = float(shipped.step_cost_us(batch, CONTEXT)[batch])
            for share in SHARES:
                levels_us = tuple(share * verify_us * n for n in range(LEVELS + 1))
                clock = DraftClock(batch, levels_us, 0.0, 0.0)
                drafting = Drafting("planted", "a benchmark", (clock,))
                table = replace(shipped, drafting=drafting)
                rates = [
                    tokens_per_s(table, drafts, steps, depths)
                    for depths in ((LEVELS,), (FEWER, LEVELS))
                ]
                gain = rates[1] / rates[0] - 1.0
                told = {"text": name, "batch": batch, "share": share, "gain": gain}
                print(f"{name}, batch {batch}, level {share:.0%}: {gain:+.1%}")
                found.append(told)
    return found


@command
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, default=3000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    answer = asked.out and Answer(asked.out, [])
    found = gains(asked.steps)
    if answer:
        answer.write({"gains": found})
    hard = min(each["gain"] for each in found if each["text"] == "hard")
    easy = min(each["gain"] for each in found if each["text"] == "easy")
    return int(hard < LEAST or easy < -MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
