"""How wrong each calibrator is on prompts that it has not seen.

Nodes of one tree share a fate, and trees of one reply a subject. So whole prompts are
held out, and intervals draw whole prompts: with their seeds and all their trees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evict_profile.calibrate.acceptance import CANDIDATES, Nodes
from evict_profile.errors import TraceError
from evict_profile.stats import (
    MIN_PROMPTS,
    Bools,
    Bootstrap,
    Estimate,
    Floats,
    Ints,
    folds,
    rank_within,
)

FOLDS = 10
BINS = 15
BEST = 32
"""Nodes of a tree that a policy would mostly look at; the rest are rarely accepted."""
WIDTHS = (4, 8, 16, 32)


@dataclass(frozen=True)
class HeldOutErrors:
    """Errors of one calibrator.

    Attributes:
        ece: expected calibration error, 15 bins of equally many nodes.
        best_ece: the same over the best 32 nodes of each tree.
        brier: mean squared error of the chances.
        log_loss: mean negative log likelihood, nats a node.
        excess_brier: Brier score less that of the calibrator that was chosen, on the
            same prompts; positive where the chosen one is better.
        tokens: by width, tokens that the best nodes by this chance commit in a step.
    """

    ece: Estimate
    best_ece: Estimate
    brier: Estimate
    log_loss: Estimate
    excess_brier: Estimate
    tokens: dict[int, Estimate]


@dataclass(frozen=True)
class HeldOutChances:
    """Chances of every node by every candidate, none of which saw the node's prompt."""

    nodes: Nodes
    chances: Mapping[str, Floats]

    def errors(self, chosen: str) -> dict[str, HeldOutErrors]:
        """Errors of each candidate, all on the same resamples of prompts."""
        prompts = int(self.nodes.prompt.max()) + 1
        per = _Ratios(prompts, Bootstrap(prompts))
        best = self.nodes.place < BEST
        reference = _squares(self.nodes, self.chances[chosen])
        return {
            name: HeldOutErrors(
                ece=per.ece(self.nodes, chance, name != "raw"),
                best_ece=per.ece(self.nodes.take(best), chance[best], name != "raw"),
                brier=per.mean(self.nodes, _squares(self.nodes, chance)),
                log_loss=per.mean(self.nodes, _surprise(self.nodes, chance)),
                excess_brier=per.mean(
                    self.nodes, _squares(self.nodes, chance) - reference
                ),
                tokens={w: per.tokens(self.nodes, chance, w) for w in WIDTHS},
            )
            for name, chance in self.chances.items()
        }

    def of_prompts(self, prompts: Bools) -> "HeldOutChances":
        """The same of some prompts only, given a mask over all of them."""
        own = prompts[self.nodes.prompt]
        nodes = self.nodes.take(own)
        renumbered = np.unique(nodes.prompt, return_inverse=True)[1]
        chances = {name: chance[own] for name, chance in self.chances.items()}
        return HeldOutChances(replace(nodes, prompt=renumbered), chances)

    def brier(self, name: str) -> float:
        """The Brier score of a candidate."""
        return float(_squares(self.nodes, self.chances[name]).mean())

    def simplest(self, names: Sequence[str]) -> str:
        """The first candidate whose Brier score is as good as the best, all but noise.

        It lies within one standard error, over prompts, of their difference (Breiman et
        al., "Classification and regression trees", 1984): what is chosen for the last
        digit of its score owes it to luck.
        """
        best = _squares(self.nodes, self.chances[min(names, key=self.brier)])
        return next(
            name
            for name in names
            if self._is_noise(_squares(self.nodes, self.chances[name]) - best)
        )

    def _is_noise(self, values: Floats) -> bool:
        """Whether a mean over nodes is within its standard error of zero, or below."""
        prompt = self.nodes.prompt
        by_prompt, count = np.bincount(prompt, values), np.bincount(prompt)
        apart = by_prompt - values.mean() * count
        return bool(by_prompt.sum() <= np.sqrt(len(count)) * apart.std(ddof=1))


def hold_out(nodes: Nodes, seed: int = 0) -> HeldOutChances:
    """Cross-validated chances, folds of whole prompts drawn by the seed."""
    prompts = len(np.unique(nodes.prompt))
    if prompts < MIN_PROMPTS:
        raise TraceError(
            f"the trace holds {prompts} prompts and calibration needs at least "
            f"{MIN_PROMPTS}, since it is tested on prompts it has not seen; trace "
            "more prompts, 30 or more for useful intervals"
        )
    fold = folds(int(nodes.prompt.max()) + 1, FOLDS, seed)[nodes.prompt]
    chances = {name: np.empty(len(nodes)) for name in CANDIDATES}
    for number in np.unique(fold):
        test = fold == number
        train, unseen = nodes.take(~test), nodes.take(test)
        for name, fit in CANDIDATES.items():
            chances[name][test] = fit(train)(unseen)
    return HeldOutChances(nodes, chances)


def _equal_bins(chance: Floats) -> Ints:
    bins = np.empty(len(chance), dtype=np.int64)
    order = np.argsort(chance, kind="stable")
    bins[order] = np.arange(len(chance)) * BINS // len(chance)
    return bins


@dataclass(frozen=True)
class _Ratios:
    """Sums over nodes by prompt, divided, with their intervals."""

    prompts: int
    bootstrap: Bootstrap

    def ece(self, nodes: Nodes, chance: Floats, fitted: bool) -> Estimate:
        cell = nodes.prompt * BINS + _equal_bins(chance)
        gaps = np.bincount(cell, chance - nodes.accepted, self.prompts * BINS)
        summed = self.bootstrap.sums(gaps.reshape(self.prompts, BINS))
        count = self._sum(nodes.prompt, np.ones(len(nodes)))
        told = self.bootstrap.fitted if fitted else self.bootstrap.absolute
        return told(summed / count)

    def mean(self, nodes: Nodes, values: Floats) -> Estimate:
        return self._over(self._sum(nodes.prompt, values), nodes.prompt)

    def tokens(self, nodes: Nodes, chance: Floats, width: int) -> Estimate:
        kept = nodes.accepted & (rank_within(nodes.tree, chance) < width - 1)
        first = np.diff(nodes.tree, prepend=-1) > 0
        committed = self._sum(nodes.prompt, 1.0 * kept + first)
        return self._over(committed, nodes.prompt[first])

    def _over(self, sums: Floats, prompt: Ints) -> Estimate:
        return self.bootstrap.estimate(sums / self._sum(prompt, np.ones(len(prompt))))

    def _sum(self, prompt: Ints, values: NDArray[Any]) -> Floats:
        by_prompt = np.bincount(prompt, values, self.prompts)
        sums: Floats = self.bootstrap.sums(by_prompt[:, None])[0]
        return sums


def _squares(nodes: Nodes, chance: Floats) -> Floats:
    return (chance - nodes.accepted) ** 2


def _surprise(nodes: Nodes, chance: Floats) -> Floats:
    right = np.where(nodes.accepted, chance, 1.0 - chance)
    return -np.log(np.maximum(right, 1e-9))
