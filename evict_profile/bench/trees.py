"""Synthetic draft trees whose acceptance is known, grown as EAGLE-2 and -3 grow them.

Each level expands its best nodes by path probability; then all candidates are
reranked and the best are kept. A node's children share a Dirichlet draw with one more
category, "none of these", so that siblings are exclusive and sum to less than one.
Acceptance walks from the root: one child is accepted with its probability, or none.
So a node's path probability is exactly the probability that it is accepted, unless
`trust` is below one: then each step of the walk succeeds only trust times as often
as the drafter says.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.stats import Bools, Floats, Ints

BRANCH = 8
DEPTH = 6
MOST_NODES = 60


@dataclass(frozen=True)
class Trees:
    """Trees of independent steps; arrays [steps, nodes], best node first, no root."""

    path_prob: Floats
    accept_prob: Floats
    depth: Ints
    accepted: Bools

    def best(self, nodes: int) -> "Trees":
        """The same trees, cut to their best nodes."""
        return Trees(
            self.path_prob[:, :nodes],
            self.accept_prob[:, :nodes],
            self.depth[:, :nodes],
            self.accepted[:, :nodes],
        )


@dataclass(frozen=True)
class Difficulty:
    """Dirichlet concentrations: of each child, and of none of them being right.

    Small ones make a sure drafter, whose mass lies on one child.
    """

    child: float
    none: float

    @property
    def concentration(self) -> Floats:
        """All categories, float64 [BRANCH + 1]."""
        return np.array([self.child] * BRANCH + [self.none])


EASY = Difficulty(child=0.05, none=0.06)
"""First child 0.73 on average: code, or text the model repeats."""
HARD = Difficulty(child=0.3, none=1.2)
"""First child 0.35 on average: open-ended chat at temperature one."""


def concentrations(rng: np.random.Generator, steps: int, easy_share: float) -> Floats:
    """Each step easy or hard, independently; float64 [steps, BRANCH + 1]."""
    easy = rng.random((steps, 1)) < easy_share
    return np.where(easy, EASY.concentration, HARD.concentration)


def draw_trees(
    rng: np.random.Generator, concentration: Floats, trust: float = 1.0
) -> Trees:
    """One tree a step, with what the target would accept if all were verified."""
    return _rerank(draw_levels(rng, concentration, trust), trust)


def draw_levels(
    rng: np.random.Generator, concentration: Floats, trust: float = 1.0
) -> list[tuple[Floats, Bools]]:
    """Path probability and acceptance of all nodes drafted, level by level.

    Each [steps, BRANCH] at first, then [steps, BRANCH * BRANCH].
    """
    steps = len(concentration)
    parent_prob, parent_accepted = np.ones((steps, 1)), np.ones((steps, 1), bool)
    levels: list[tuple[Floats, Bools]] = []
    for _ in range(DEPTH):
        child_prob = _child_probs(rng, concentration, parent_prob.shape[1])
        # One that is right more often than it says cannot be right more than always.
        child_prob /= max(trust, 1.0)
        picked = _pick(rng.random((steps, 1, 1)), trust * child_prob)
        path_prob = (parent_prob[:, :, None] * child_prob).reshape(steps, -1)
        accepted = (parent_accepted[:, :, None] & picked).reshape(steps, -1)
        levels.append((path_prob, accepted))
        beam = _best_first(path_prob, BRANCH)
        parent_prob = np.take_along_axis(path_prob, beam, axis=1)
        parent_accepted = np.take_along_axis(accepted, beam, axis=1)
    return levels


def _child_probs(
    rng: np.random.Generator, concentration: Floats, parents: int
) -> Floats:
    """Conditional probabilities, float64 [steps, parents, BRANCH]."""
    shape = (len(concentration), parents, BRANCH + 1)
    # Concentrations near zero underflow to 0; a floor keeps 0 / 0 out.
    draws = rng.standard_gamma(concentration[:, None, :], shape) + 1e-30
    children: Floats = draws[..., :BRANCH] / draws.sum(axis=-1, keepdims=True)
    return children


def _pick(uniform: Floats, child_prob: Floats) -> Bools:
    """The child in whose slice of [0, 1) the draw falls, or none."""
    upper = np.cumsum(child_prob, axis=-1)
    picked: Bools = (uniform < upper) & (uniform >= upper - child_prob)
    return picked


def _best_first(path_prob: Floats, count: int) -> Ints:
    """Places of the most probable nodes; stable, so that parents win ties."""
    return np.argsort(-path_prob, axis=1, kind="stable")[:, :count]


def _rerank(levels: list[tuple[Floats, Bools]], trust: float) -> Trees:
    path_prob = np.concatenate([prob for prob, _ in levels], axis=1)
    accepted = np.concatenate([hit for _, hit in levels], axis=1)
    sizes = [prob.shape[1] for prob, _ in levels]
    depth = np.repeat(np.arange(1, DEPTH + 1), sizes)
    order = _best_first(path_prob, MOST_NODES)
    kept_prob = np.take_along_axis(path_prob, order, axis=1)
    return Trees(
        path_prob=kept_prob,
        accept_prob=kept_prob * trust ** depth[order],
        depth=depth[order],
        accepted=np.take_along_axis(accepted, order, axis=1),
    )
