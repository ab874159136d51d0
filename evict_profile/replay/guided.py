"""Policies that decide from a cost table, as a server with the runtime would.

They drive the truncator of `evict_profile.runtime` itself, in each of its variants: one
differs from the next in one thing (ratio or rate, scores raw or calibrated, depth
chosen or fixed, links), so that a replay tells what each is worth.
"""

from collections.abc import Mapping
from typing import Literal

import torch

from evict_profile.replay.policies import (
    DEPTH_LINKS,
    GUIDED,
    RATE,
    RATE_DEPTH,
    RATE_LINKS,
    RATE_RAW,
    RATIO,
    RATIO_RAW,
    MakePolicy,
)
from evict_profile.runtime import Calibration, CostTable, Plan, Truncator
from evict_profile.runtime.decision import Objective
from evict_profile.stats import Bools, Floats, Ints


class Guided:
    """What a truncator plans from a cost table."""

    def __init__(
        self,
        name: str,
        depth: int,
        truncator: Truncator,
        chooses_depth: bool = False,
        links: bool = False,
    ) -> None:
        """A truncator at work.

        Args:
            name: of the policy.
            depth: most levels.
            truncator: which plans.
            chooses_depth: ask it before each level; else all are drafted.
            links: tell it the parents, so that it scores link by link.
        """
        self.name = name
        self.depth = depth
        self._truncator = truncator
        self._chooses_depth = chooses_depth
        self._links = links
        self._plan: Plan | None = None

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Whether the truncator expects another level to pay."""
        if not self._chooses_depth:
            return True
        return self._truncator.deeper(
            torch.from_numpy(path_prob),
            torch.from_numpy(depth),
            context,
            parent=self._told(parent),
        )

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """The plan's nodes, less padding that fills a tier."""
        self._plan = self._truncator.plan(
            torch.from_numpy(path_prob),
            context,
            depth=torch.from_numpy(depth),
            parent=self._told(parent),
        )
        kept: Bools = self._plan.keep.numpy()
        return kept & (path_prob > 0.0)

    def observe(self, committed: int, step_us: float) -> None:
        """Told to the truncator."""
        if self._plan is not None:
            self._truncator.observe(self._plan, committed, step_us)

    def _told(self, parent: Ints) -> torch.Tensor | None:
        return torch.from_numpy(parent) if self._links else None


Scores = Calibration | Literal["table"] | None
"""The table's own calibration, another one, or scores as they are."""


class Remembering(Truncator):
    """A truncator whose past fades at another pace, to ask which pace is right."""

    def fade_in(self, half_life_steps: float) -> None:
        """Set it, before the first step."""
        self._groups.memory_half_life_steps = half_life_steps


def truncator(
    table: CostTable,
    objective: Objective,
    scores: Scores = "table",
    kind: type[Truncator] = Truncator,
) -> Truncator:
    """A truncator for trees of the drafter's best tokens, accepted target-only.

    What lies outside the table it prices at the edge: a replay says so beside its
    numbers, and an engine looks before it starts.
    """
    return kind(
        table,
        drafts="topk",
        acceptance="target-only",
        objective=objective,
        calibration=scores,
        outside="clamp",
    )


def remembering(table: CostTable, depth: int, half_life_steps: float) -> Guided:
    """The policy "rate" with another memory than the runtime's."""
    made = truncator(table, "rate", kind=Remembering)
    assert isinstance(made, Remembering)
    made.fade_in(half_life_steps)
    return Guided(RATE, depth, made)


def guided(table: CostTable, depth: int) -> Mapping[str, MakePolicy]:
    """What makes each policy that reads a table, by name.

    A table without calibration has no scores but raw ones, and says nothing of links or
    of a level not yet drafted; then the policies that differ in those are left out.

    Args:
        table: what they decide with, right or wrong.
        depth: most levels to draft.
    """

    def one(
        name: str, objective: Objective, scores: Scores = "table", **how: bool
    ) -> MakePolicy:
        return lambda: Guided(name, depth, truncator(table, objective, scores), **how)

    known = table.acceptance
    found = {RATIO: one(RATIO, "ratio"), RATE: one(RATE, "rate")}
    if known:
        found[RATIO_RAW] = one(RATIO_RAW, "ratio", None)
        found[RATE_RAW] = one(RATE_RAW, "rate", None)
    if known and known.links:
        found[RATE_LINKS] = one(RATE_LINKS, "rate", links=True)
    if known and known.continuation and table.drafting:
        found[RATE_DEPTH] = one(RATE_DEPTH, "rate", chooses_depth=True)
        if known.links:
            found[DEPTH_LINKS] = one(
                DEPTH_LINKS, "rate", chooses_depth=True, links=True
            )
    return {name: found[name] for name in GUIDED if name in found}
