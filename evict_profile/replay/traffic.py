"""All policies over a traffic: the share of plain decoding's time by batch.

At each batch a policy does the work that plain decoding does in its share of the time,
so a gain is the harmonic mean of gains by batch. A setting is one for all batches; a
schedule has the fastest of each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import FixedPoint
from evict_profile.replay.policies import Fixed, Schedule, plain_decoding
from evict_profile.replay.sums import COLUMNS, Sums
from evict_profile.replay.tuning import Tuned
from evict_profile.stats import WORTHWHILE, Floats
from evict_profile.traces.resampling import optimism


class TrafficReplay(ScenarioReplay):
    """A replay at each batch of `traffic`, whose shares sum to 1."""

    def __init__(
        self, parts: Sequence[ScenarioReplay], traffic: Mapping[int, float]
    ) -> None:
        first = parts[0]
        shares = ", ".join(f"{b} ({share:.0%})" for b, share in traffic.items())
        scenario = replace(first.scenario, shares=shares)
        super().__init__(first.arrays, first.table, scenario, first.seeds)
        self.parts = parts
        plain = plain_decoding()
        self._works = [traffic[e.scenario.batch] * e.rates(plain) for e in parts]
        """Tokens at each batch in a second of plain decoding, [1 + resamples]."""

    def policy_sums(self, settings: Mapping[str, Tuned]) -> dict[str, Sums]:
        by_part = [part.policy_sums(settings) for part in self.parts]
        return {name: self._over([own[name] for own in by_part]) for name in by_part[0]}

    def tuned(self, points: Sequence[FixedPoint]) -> Iterator[tuple[Tuned, Floats]]:
        yield from self.chosen(points)
        schedule, bias = self._schedule(points)
        if len({*schedule.settings.values()}) > 1:
            yield schedule, bias

    def _schedule(self, points: Sequence[FixedPoint]) -> tuple[Schedule, Floats]:
        """The fastest setting of each batch, and the optimism of choosing so many.

        Ranks by conditional acceptance take a plug-in, and must gain 1 % over flags.
        """
        fixed = [*dict.fromkeys(each for kind in self.kinds(points) for each in kind)]
        effort = np.array([[WORTHWHILE if s.conditional else 1.0] for s in fixed])
        settings, found, honest = dict[int, Fixed](), list[Floats](), list[Floats]()
        for part in self.parts:
            rates = np.stack([part.rates(setting) for setting in fixed])
            best = (rates / effort).argmax(axis=0)
            settings[part.scenario.batch] = fixed[best[0]]
            found.append(rates[best[0]])
            honest.append(rates[best[0]] / np.exp(optimism(rates, best)))
        bias: Floats = np.log(self._rate_over(found) / self._rate_over(honest))
        return Schedule(settings), bias

    def _first_rates(self, policy: Fixed) -> Floats:
        return self._rate_over(part.rates(policy) for part in self.parts)

    def _rate_over(self, rates: Iterable[Floats]) -> Floats:
        took = [work / own for work, own in zip(self._works, rates, strict=True)]
        rate: Floats = np.sum(self._works, axis=0) / np.sum(took, axis=0)
        return rate

    def _over(self, sums: Sequence[Sums]) -> Sums:
        """Sums of the steps in which each batch commits its work."""
        pairs = zip(self._works, sums, strict=True)
        steps = [(own, work / own["committed"]) for work, own in pairs]
        return {c: np.sum([own[c] * n for own, n in steps], axis=0) for c in COLUMNS}
