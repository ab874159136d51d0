"""Errors of each calibrator on held-out prompts.

Nodes of a tree and trees of a reply are dependent; folds and resamples are of prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.calibrate.acceptance import CANDIDATES
from evict_profile.errors import DataError
from evict_profile.stats import Bools, Estimate, Floats, Ints, folds
from evict_profile.traces import Trace
from evict_profile.traces.resampling import MIN_PROMPTS, Bootstrap

FOLDS = 10
BINS = 15


@dataclass(frozen=True)
class HeldOutErrors:
    """`excess_brier` is over the Brier score of the chosen calibrator."""

    ece: float
    brier: Estimate
    excess_brier: Estimate


@dataclass(frozen=True)
class HeldOutChances:
    """Chance of every node by candidate, fitted without its prompt; [nodes]."""

    accepted: Bools
    prompt: Ints
    chances: Mapping[str, Floats]

    def errors(self, chosen: str) -> dict[str, HeldOutErrors]:
        bootstrap = Bootstrap(int(self.prompt.max()) + 1)
        reference = self.squares(chosen)

        def mean(values: Floats) -> Estimate:
            columns = [np.bincount(self.prompt, values), np.bincount(self.prompt)]
            total, count = bootstrap.sums(np.stack(columns, axis=1))
            return bootstrap.estimate(total / count)

        return {
            name: HeldOutErrors(
                calibration_error(chance, self.accepted),
                mean(self.squares(name)),
                mean(self.squares(name) - reference),
            )
            for name, chance in self.chances.items()
        }

    def squares(self, name: str) -> Floats:
        errors: Floats = (self.chances[name] - self.accepted) ** 2
        return errors

    def one_standard_error_rule(self, names: Sequence[str]) -> str:
        """The rule of Breiman et al., "Classification and regression trees", 1984."""
        best = min((self.squares(name) for name in names), key=np.mean)
        return next(n for n in names if self._is_noise(self.squares(n) - best))

    def _is_noise(self, values: Floats) -> bool:
        by_prompt = np.bincount(self.prompt, values)
        count = np.bincount(self.prompt)
        apart = by_prompt - values.mean() * count
        return bool(by_prompt.sum() <= np.sqrt(len(count)) * apart.std(ddof=1))


def calibration_error(chance: Floats, accepted: Bools) -> float:
    """Expected calibration error over 15 bins of equal count."""
    order = np.argsort(chance, kind="stable")
    bins = np.arange(len(chance)) * BINS // len(chance)
    gaps = np.bincount(bins, (chance - accepted)[order])
    return float(np.abs(gaps).sum()) / len(chance)


def hold_out(trace: Trace, seed: int = 0) -> HeldOutChances:
    prompts, nodes = len(trace.prompts), trace.nodes
    if prompts < MIN_PROMPTS:
        raise DataError(
            f"the trace holds {prompts} prompts and calibration needs at least "
            f"{MIN_PROMPTS}, since it is tested on prompts it has not seen; trace "
            "more prompts, 30 or more for useful intervals"
        )
    prompt = trace.prompt[trace.reply[nodes.step]]
    fold = folds(prompts, FOLDS, seed)[prompt]
    chances = {name: np.empty(len(nodes)) for name in CANDIDATES}
    for number in np.unique(fold):
        test = np.flatnonzero(fold == number)
        train, unseen = nodes.take(np.flatnonzero(fold != number)), nodes.take(test)
        for name, fit in CANDIDATES.items():
            chances[name][test] = fit(train)(unseen)
    return HeldOutChances(nodes.accepted, prompt, chances)
