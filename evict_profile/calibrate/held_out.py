"""How wrong each calibrator is on prompts that it has not seen.

Nodes of one tree share a fate, and trees of one reply a subject. So whole prompts are
held out, and intervals draw whole prompts: with their seeds and all their trees.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from evict_profile.calibrate.calibrators import CANDIDATES, CLOSED
from evict_profile.calibrate.nodes import Nodes, places
from evict_profile.errors import TraceError
from evict_profile.stats import Floats
from evict_profile.traces.forest import Bools, Ints

FOLDS = 10
FEWEST_PROMPTS = 5
BINS = 15
BEST = 32
"""Nodes of a tree that a policy would mostly look at; the rest are rarely accepted."""
WIDTHS = (4, 8, 16, 32)
REPLICATES = 1000
QUANTILES = (0.05, 0.95)


@dataclass(frozen=True)
class Estimate:
    """A number with its 90 % bootstrap interval over prompts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


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
        tokens: by width, tokens that the best nodes by this chance commit in a step;
            empty where those nodes may lack their parents.
    """

    ece: Estimate
    best_ece: Estimate
    brier: Estimate
    log_loss: Estimate
    excess_brier: Estimate
    tokens: dict[int, Estimate]


@dataclass(frozen=True)
class HeldOut:
    """Chances of every node by every candidate, none of which saw the node's prompt."""

    nodes: Nodes
    chances: Mapping[str, Floats]

    def errors(self, chosen: str, seed: int = 0) -> dict[str, HeldOutErrors]:
        """Errors of each candidate, all on the same draws of prompts."""
        draws = _draws(int(self.nodes.prompt.max()) + 1, seed)
        best = self.nodes.place < BEST
        reference = _squares(self.nodes, self.chances[chosen])
        return {
            name: HeldOutErrors(
                ece=_ece(self.nodes, chance, draws),
                best_ece=_ece(self.nodes.take(best), chance[best], draws),
                brier=_mean(self.nodes, _squares(self.nodes, chance), draws),
                log_loss=_mean(self.nodes, _surprise(self.nodes, chance), draws),
                excess_brier=_mean(
                    self.nodes, _squares(self.nodes, chance) - reference, draws
                ),
                tokens={
                    width: _tokens(self.nodes, chance, width, draws)
                    for width in (WIDTHS if name in CLOSED else ())
                },
            )
            for name, chance in self.chances.items()
        }

    def of_prompts(self, prompts: Bools) -> "HeldOut":
        """The same of some prompts only, given a mask over all of them."""
        own = prompts[self.nodes.prompt]
        nodes = self.nodes.take(own)
        renumbered = np.unique(nodes.prompt, return_inverse=True)[1]
        chances = {name: chance[own] for name, chance in self.chances.items()}
        return HeldOut(replace(nodes, prompt=renumbered), chances)

    def brier(self, name: str) -> float:
        """The Brier score of a candidate."""
        return float(_squares(self.nodes, self.chances[name]).mean())


def hold_out(nodes: Nodes, seed: int = 0) -> HeldOut:
    """Cross-validated chances, folds of whole prompts drawn by the seed.

    Raises:
        TraceError: too few prompts to hold any out.
    """
    prompts = len(np.unique(nodes.prompt))
    if prompts < FEWEST_PROMPTS:
        raise TraceError(
            f"the trace holds {prompts} prompts and calibration needs at least "
            f"{FEWEST_PROMPTS}, since it is tested on prompts it has not seen; trace "
            "more prompts, 30 or more for useful intervals"
        )
    fold = folds(nodes.prompt, seed)
    chances = {name: np.empty(len(nodes)) for name in CANDIDATES}
    for number in range(int(fold.max()) + 1):
        test = fold == number
        train, unseen = nodes.take(~test), nodes.take(test)
        for name, fit in CANDIDATES.items():
            chances[name][test] = fit(train)(unseen)
    return HeldOut(nodes, chances)


def folds(prompt: Ints, seed: int) -> Ints:
    """The fold of each node; all nodes of a prompt are in one."""
    count = int(prompt.max()) + 1
    order = np.random.default_rng(seed).permutation(count)
    return (order % min(FOLDS, count))[prompt]


def _equal_bins(chance: Floats) -> Ints:
    bins = np.empty(len(chance), dtype=np.int64)
    order = np.argsort(chance, kind="stable")
    bins[order] = np.arange(len(chance)) * BINS // len(chance)
    return bins


def _draws(prompts: int, seed: int) -> Floats:
    """How often each prompt is drawn, [replicates + 1, prompts]; first: once each."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(prompts, np.full(prompts, 1.0 / prompts), REPLICATES)
    return np.concatenate([np.ones((1, prompts)), drawn])


def _ece(nodes: Nodes, chance: Floats, draws: Floats) -> Estimate:
    prompts = draws.shape[1]
    cell = nodes.prompt * BINS + _equal_bins(chance)
    gaps = np.bincount(cell, chance - nodes.accepted, prompts * BINS)
    totals = draws @ np.bincount(nodes.prompt, minlength=prompts)
    summed = np.abs(draws @ gaps.reshape(prompts, BINS)).sum(axis=1)
    found = _estimate(summed / totals)
    return replace(found, low=max(found.low, 0.0))


def _tokens(nodes: Nodes, chance: Floats, width: int, draws: Floats) -> Estimate:
    prompts = draws.shape[1]
    kept = nodes.accepted & (places(chance, nodes.tree) < width - 1)
    committed = np.bincount(nodes.prompt[kept], minlength=prompts)
    first = np.diff(nodes.tree, prepend=-1) > 0
    trees = np.bincount(nodes.prompt[first], minlength=prompts)
    return _estimate(1.0 + (draws @ committed) / (draws @ trees))


def _mean(nodes: Nodes, values: Floats, draws: Floats) -> Estimate:
    prompts = draws.shape[1]
    totals = draws @ np.bincount(nodes.prompt, minlength=prompts)
    return _estimate(draws @ np.bincount(nodes.prompt, values, prompts) / totals)


def _estimate(values: Floats) -> Estimate:
    """The first value, and where the others lie about it.

    Drawing again adds noise, and noise only ever raises a calibration error; so the
    draws are moved until their mean is the value.
    """
    value = float(values[0])
    low, high = np.quantile(values[1:], QUANTILES) + value - values[1:].mean()
    return Estimate(value, min(float(low), value), max(float(high), value))


def _squares(nodes: Nodes, chance: Floats) -> Floats:
    return (chance - nodes.accepted) ** 2


def _surprise(nodes: Nodes, chance: Floats) -> Floats:
    right = np.where(nodes.accepted, chance, 1.0 - chance)
    return -np.log(np.maximum(right, 1e-9))
