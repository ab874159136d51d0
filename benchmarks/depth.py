"""How far ahead must a rule look that decides, level by level, how deep to draft?

Each level is drafted only if its expected nodes pay for its time. One level ahead, a
level that pays only together with the next is never drafted; further ahead, more is
expected of scores that nobody has seen. Trees are those of `evict-profile bench`, and
each decision is the runtime's own, with the past that it learns. It is asked before
the first level as well, where past steps alone decide whether to draft at all.

Printed, as Markdown: throughput over that of the best fixed depth, which is chosen in
hindsight, both with the runtime's truncation after drafting; mean over seeds. `levels`
is the mean depth drafted. `no pause` looks one level ahead and always drafts the first.

    python benchmarks/depth.py
    python benchmarks/depth.py --seeds 6 --steps 1200
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import command, count
from evict_profile.bench.mixes import MIXES
from evict_profile.bench.shapes import DECODE_US, CostShape, cost_shapes
from evict_profile.bench.trees import DEPTH, MOST_NODES, concentrations, draw_levels
from evict_profile.pricing import ForwardCost, RampCost, Shape, Term
from evict_profile.runtime import Calibration, CostTable, Truncator
from evict_profile.runtime import truncator as runtime_truncator
from evict_profile.runtime.deeper import Step, expected_children
from evict_profile.runtime.drafting import DraftClock, Drafting
from evict_profile.runtime.table import Price
from evict_profile.stats import Bools, Floats

CONTEXT = 1024
SHARES = (0.02, 0.1, 0.3, 1.0)
"""Time of a level over that of plain decoding: a cheap head to a hopeless one."""

FIXED_SHARE = 0.05
RULES = {
    "1 ahead": (1, 0),
    "2 ahead": (2, 0),
    f"{DEPTH} ahead": (DEPTH, 0),
    "no pause": (1, 1),
}
"""Levels looked ahead, and levels drafted unasked."""

MIX_NAMES = ("easy", "hard", "bimodal", "bursts")
SHAPE_NAMES = ("stairs", "union", "affine")


@dataclass(frozen=True)
class Drafts:
    """All nodes of each step in drafting order, [steps, nodes], and their depths."""

    path_prob: Floats
    accepted: Bools
    depth: np.ndarray

    def to(self, step: int, level: int) -> tuple[Tensor, Tensor]:
        """What is drafted of a step down to a level, each [1, nodes]."""
        nodes = self.depth <= level
        found = (self.path_prob[step][nodes], self.depth[nodes])
        return torch.from_numpy(found[0])[None], torch.from_numpy(found[1])[None]


def draw(mix_name: str, seed: int, steps: int) -> Drafts:
    """Steps of a mix in the order of time."""
    mix = next(each for each in MIXES if each.name == mix_name)
    rng = np.random.default_rng(seed)
    kinds, lengths = mix.easy_share, mix.stretch_steps or (steps,)
    one = np.repeat(np.arange(len(kinds)), lengths)
    kind = np.tile(one, steps // len(one) + 1)[:steps]
    rows = np.stack([concentrations(rng, steps, share) for share in kinds])
    levels = draw_levels(rng, rows[kind, np.arange(steps)], mix.trust)
    sizes = [prob.shape[1] for prob, _ in levels]
    return Drafts(
        np.concatenate([prob for prob, _ in levels], axis=1),
        np.concatenate([hit for _, hit in levels], axis=1),
        np.repeat(np.arange(1, DEPTH + 1), sizes),
    )


def continuation(mix_name: str) -> tuple[float, ...]:
    """Mean acceptance of a child by rank where its parent is accepted."""
    drafts = draw(mix_name, 10_000, 4_000)
    first = np.sort(drafts.path_prob[:, drafts.depth == 1], axis=1)[:, ::-1]
    return tuple(first.mean(axis=0).tolist())


def table(shape: CostShape, share: float, following: tuple[float, ...]) -> CostTable:
    """One staircase, with the time of drafting and scores that are right."""
    level_us = share * DECODE_US
    cost_us = shape.verify_us.copy()
    cost_us[0] = cost_us[1]
    nothing = RampCost((Term("one"),), np.array([DECODE_US]))
    fixed_us = FIXED_SHARE * DECODE_US
    draft_us = tuple(level_us * depth for depth in range(DEPTH + 1))
    return CostTable(
        path=Path("made up"),
        sha256="",
        key={},
        includes=("verify",),
        domain={
            "batch": (1, 1),
            "context": (CONTEXT, CONTEXT),
            "tokens": (1, MOST_NODES + 1),
            "width": (1, MOST_NODES + 1),
        },
        ladder=(),
        prices={(1, CONTEXT): Price(cost_us, cost_us, cost_us)},
        cost=ForwardCost(Shape(8, 0, 1), nothing, nothing, 1.0),
        union_growth=np.arange(MOST_NODES + 2.0),
        noise=0.0,
        acceptance=Calibration((0.0, 1.0), (0.0, 1.0), following),
        drafting=Drafting((DraftClock(1, draft_us, fixed_us, fixed_us / 2.0),)),
    )


def run(
    drafts: Drafts, prices: CostTable, ahead: int, least: int, most: int
) -> tuple[float, float]:
    """Throughput in tokens a millisecond, and the mean depth."""
    truncator = Truncator(prices, drafts="topk", acceptance="target-only")
    runtime_truncator.Step = Ahead if ahead > 1 else Step
    Ahead.levels = ahead
    tokens = us = levels = 0.0
    for step in range(len(drafts.path_prob)):
        level = least
        while level < most and truncator.deeper(*drafts.to(step, level), CONTEXT):
            level += 1
        path_prob, depth = drafts.to(step, level)
        best = torch.argsort(path_prob[0], descending=True, stable=True)
        best = best[: MOST_NODES - 1]
        # A last node of no worth tells how deep was drafted, whoever is left of it; a
        # plain step has no node at all.
        last = (0, int(level > 0))
        shown = torch.nn.functional.pad(path_prob[:, best], last)
        depths = torch.nn.functional.pad(depth[:, best], last, value=level)
        plan = truncator.plan(shown, CONTEXT, depth=depths)
        kept = best[plan.keep[0, : len(best)]].numpy()
        committed = 1 + int(drafts.accepted[step][kept].sum())
        truncator.observe(plan, committed)
        tokens, us, levels = tokens + committed, us + plan.step_cost_us, levels + level
    return 1e3 * tokens / us, levels / len(drafts.path_prob)


class Ahead(Step):
    """A rule that looks more than one level ahead."""

    levels = 1

    def pays_deeper(self, worth, depth):
        deepest, nodes = int(depth.max()), worth
        level = np.where(depth == deepest, worth, 0.0)
        last = min(deepest + self.levels, self.clock.deepest)
        for further in range(deepest + 1, last + 1):
            level = expected_children(level, self.continuation)
            nodes = np.concatenate([nodes, level], axis=1)
            if self.value(nodes, further) > self.value(worth, deepest):
                return True
        return False


@command
def main(words: Sequence[str]) -> None:
    """A row for each text, shape and draft."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--steps", type=count, default=400)
    args = parser.parse_args(words)
    shapes = {shape.name: shape for shape in cost_shapes()}
    names = [f"{name} | levels" for name in RULES]
    print(f"| text | cost | level | best depth | {' | '.join(names)} |")
    for mix in MIX_NAMES:
        following = continuation(mix)
        for name in SHAPE_NAMES:
            for share in SHARES:
                prices = table(shapes[name], share, following)
                fixed = np.zeros(DEPTH + 1)
                asked = np.zeros((len(RULES), 2))
                for seed in range(args.seeds):
                    drafts = draw(mix, seed, args.steps)
                    fixed += [run(drafts, prices, 1, d, d)[0] for d in range(DEPTH + 1)]
                    asked += [
                        run(drafts, prices, ahead, least, DEPTH)
                        for ahead, least in RULES.values()
                    ]
                best = int(fixed.argmax())
                told = " | ".join(
                    f"{rate / fixed[best]:.3f} | {levels / args.seeds:.1f}"
                    for rate, levels in asked
                )
                print(f"| {mix} | {name} | {share:g} | {best} | {told} |", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
