"""Rivals: policies that others serve or publish, replayed beside ours.

Each follows the description of its source. None reads a cost table: they watch accepted
drafts (`AdaptiveSteps`), throughput (`Utility`, `ServedSearch`) or the drafter's
probabilities (`DynamicDepth`, `BatchGate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evict_profile.replay.policies import Fixed, PolicyStep
from evict_profile.runtime.scoring import GrowingTrees
from evict_profile.stats import Bools, Floats, Ints

STEPS = {
    1: ((1, 3, 5, 7), -0.25),
    8: ((0, 1, 3), 0.0),
    32: ((0, 1), 0.0),
    64: ((0,), 0.0),
}
"""SGLang 0.5.23's candidates from each batch on, and the margin to step down."""


def chains(depth: int) -> list[Fixed]:
    """Plain decoding, and chains of each length."""
    return [Fixed(f"chain of {n}", n, n + 1) for n in range(depth + 1)]


class AdaptiveSteps:
    """SGLang's adaptive steps of a chain: a moving average of accepted drafts.

    Every 5th step after 10, it takes fewer steps where the average is half a token
    below the fewer, and more where it is less than half a token below the present.
    """

    name = "SGLang's adaptive steps"

    def __init__(self, depth: int, batch: int) -> None:
        candidates, self._margin = STEPS[max(b for b in STEPS if b <= batch)]
        self._steps = [each for each in candidates if each <= depth]
        self.depth, self._batch, self._seen = depth, batch, 0
        self._place = len(self._steps) // 2
        self._average = self.steps - 1.0

    @property
    def steps(self) -> int:
        return self._steps[self._place]

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        return Fixed("", self.steps, self.steps + 1).begin(batch, context, nodes)

    def observe(self, committed: int, step_us: float) -> None:
        if self.steps:
            self._average += 0.2 * (committed / self._batch - 1.0 - self._average)
        self._seen += 1
        if self._seen > 10 and self._seen % 5 == 0:
            self._place = self._next_place()

    def _next_place(self) -> int:
        place, last = self._place, len(self._steps) - 1
        if not self.steps:
            self._average = max(self._average, self._steps[min(1, last)] - 1.0)
            return min(1, last)
        while place and self._average <= self._floor(self._steps[place - 1]):
            place -= 1
        if place == self._place:
            while place < last and self._average > self._steps[place] - 0.5:
                place += 1
        return place

    def _floor(self, fewer: int) -> float:
        return (fewer - 0.5 if fewer else 0.5) + self._margin


class Utility:
    """Cascade (arXiv 2506.20675): tests settings upwards while throughput rises, then
    sets the best; where plain decoding is, twice as long as before.

    The abstract has no lengths of these phases; `TEST` and `SET` steps are ours.
    """

    name = "Cascade's utility"
    TEST, SET = 4, 16

    def __init__(self, arms: Sequence[Fixed]) -> None:
        self.depth, self._arms = max(arm.depth for arm in arms), arms
        self._rates, self._set_for, self._is_set = list[float](), self.SET, False
        self._tokens, self._us = 0, 0.0
        self._use(0, self.TEST)

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        return self._arms[self._arm].begin(batch, context, nodes)

    def observe(self, committed: int, step_us: float) -> None:
        self._tokens, self._us = self._tokens + committed, self._us + step_us
        self._left -= 1
        if not self._left:
            self._end_phase(self._tokens / self._us)

    def _end_phase(self, rate: float) -> None:
        if self._is_set:
            self._is_set = False
            self._rates = self._rates[:1]
            return self._use(1, self.TEST)
        rises = rate >= max(self._rates[1:], default=0.0)
        self._rates = [*self._rates[: self._arm], rate]
        if rises and self._arm + 1 < len(self._arms):
            return self._use(self._arm + 1, self.TEST)
        best, self._is_set = int(np.argmax(self._rates)), True
        self._set_for = self.SET if best else 2 * self._set_for
        return self._use(best, self._set_for)

    def _use(self, arm: int, steps: int) -> None:
        self._arm, self._left, self._tokens, self._us = arm, steps, 0, 0.0


class ServedSearch:
    """The served search of eagle-harness 0.1.3: each setting is forced for 3 rounds,
    and the fastest is kept, for each batch by itself.

    Times are the least of the forced rounds, then a moving average in which a round
    counts twice the average at most. A batch chooses nothing wider than a smaller one.
    The source interleaves blocks of settings; their number, `PASSES`, is ours.
    """

    name = "eagle-harness' served search"
    PASSES, ROUNDS, WEIGHT = 4, 3, 0.05

    def __init__(self, arms: Sequence[Fixed]) -> None:
        self.depth, self._arms = max(arm.depth for arm in arms), arms
        self._searches: dict[int, _Search] = {}

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        if batch not in self._searches:
            smaller = [s for size, s in self._searches.items() if size < batch]
            most = min((s.fastest.width for s in smaller), default=nodes + 1)
            self._searches[batch] = _Search([a for a in self._arms if a.width <= most])
        self._now = self._searches[batch]
        return self._now.arm.begin(batch, context, nodes)

    def observe(self, committed: int, step_us: float) -> None:
        self._now.observe(committed, step_us)

    def choice(self, batch: int) -> Fixed | None:
        """What a batch has settled on; None while settings are forced."""
        now = self._searches[batch]
        return None if now.forced else now.fastest


class _Search:
    def __init__(self, arms: Sequence[Fixed]) -> None:
        self._arms, (passes, rounds) = arms, (ServedSearch.PASSES, ServedSearch.ROUNDS)
        self.forced = [n for n in range(len(arms)) for _ in range(rounds)] * passes
        self._tokens, self._us = np.ones(len(arms)), np.full(len(arms), np.inf)
        self._weight = np.zeros(len(arms))

    @property
    def fastest(self) -> Fixed:
        return self._arms[int(np.argmax(self._tokens / self._us))]

    @property
    def arm(self) -> Fixed:
        return self._arms[self.forced[0]] if self.forced else self.fastest

    def observe(self, committed: int, step_us: float) -> None:
        at, is_forced = self._arms.index(self.arm), bool(self.forced)
        del self.forced[:1]
        self._weight[at] += is_forced
        share = 1.0 / self._weight[at] if is_forced else ServedSearch.WEIGHT
        self._tokens[at] += share * (committed - self._tokens[at])
        if is_forced:
            self._us[at] = min(self._us[at], step_us)
        else:
            self._us[at] += share * (min(step_us, 2.0 * self._us[at]) - self._us[at])


@dataclass(frozen=True)
class DynamicDepth:
    """Dynamic depth decoding (arXiv 2409.00142): drafts on while the path probabilities
    of a level sum to `least`; verifies the best `width` - 1 nodes of each request."""

    name: str
    depth: int
    width: int
    least: float

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        return _DepthStep(batch, self.width - 1, self.least)

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


class _DepthStep:
    def __init__(self, batch: int, nodes: int, least: float) -> None:
        self._trees, self._nodes, self._least = GrowingTrees(batch), nodes, least
        self.extend = self._trees.grow

    def deeper(self) -> bool:
        levels, last = self._trees.levels, self._trees.last_level
        return not levels or bool((last.sum(axis=1) >= self._least).any())

    def keep(self) -> Bools:
        return best(self._trees.scores, self._nodes)


@dataclass(frozen=True)
class BatchGate:
    """ECHO (arXiv 2604.09603, SGLang pull request 33295): a request drafts on while its
    best node of a level has `least`; all requests share a budget of `width` - 1 nodes
    each."""

    name: str
    depth: int
    width: int
    least: float = 0.2

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        return _GatedStep(batch, min(self.width - 1, nodes), nodes, self.least)

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


class _GatedStep:
    def __init__(self, batch: int, share: int, most: int, least: float) -> None:
        self._trees, self._budget, self._most = GrowingTrees(batch), batch * share, most
        self._open, self._least = np.ones(batch, np.bool_), least
        self._shown = np.ones((batch, 0), np.bool_)

    def deeper(self) -> bool:
        if self._trees.levels:
            self._open &= self._trees.last_level.max(axis=1) >= self._least
        return bool(self._open.any())

    def extend(self, prob: NDArray[Any], parent: Ints | None) -> None:
        self._trees.grow(prob, parent)
        more = self._trees.nodes - self._shown.shape[1]
        shown = np.repeat(self._open[:, None], more, axis=1)
        self._shown = np.concatenate([self._shown, shown], axis=1)

    def keep(self) -> Bools:
        scores = self._trees.scores * self._shown
        own = np.where(best(scores, self._most), scores, 0.0)
        return best(own.reshape(1, -1), self._budget).reshape(own.shape)


def best(scores: Floats, nodes: int) -> Bools:
    """The best nodes of each row, of equal ones the first; bool [B, M]."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :nodes]
    kept = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(kept, order, True, axis=1)
    return kept & (scores > 0.0)
