"""Replays of prompts drawn from a population, judged by the population's throughputs.

At batch 1 a prompt takes what it takes, whoever comes before it: so each policy is
simulated once on the whole population, and a trial sums up the prompts that it drew.
In a batch the others matter, and every trial is simulated.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache

from benchmarks.known_acceptance.findings import Finding, finding
from benchmarks.known_acceptance.texts import Text, drawn, population, unrouted
from evict_profile.calibrate.study import calibrated_table, study
from evict_profile.io import data_root
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Comparison, Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    GUIDED,
    Fixed,
    Policy,
    Threshold,
    full_tree,
    guided,
    plain_decoding,
)
from evict_profile.replay.sums import COLUMNS
from evict_profile.runtime import CostTable
from evict_profile.stats import Bootstrap, Floats, Ints

TABLE = "cost_tables/intel-xeon-processor-amx-bf16/small-world-9.04m/tree-decoding"
PROMPTS, SEEDS = 120, 2
US, COMMITTED, REQUESTS = map(COLUMNS.index, ("us", "committed", "requests"))
TIE = 1e-9


def known_table(text: Text, seed: int) -> CostTable:
    """A shipped table, calibrated on other prompts of the text."""
    table = CostTable.load(data_root() / TABLE / "1.0.3.json")
    others = unrouted(population(text, PROMPTS // 4, seed + 1))
    return calibrated_table(study(others, table), table)


class KnownReplay(ScenarioReplay):
    """The replay of a population: sums by prompt are kept."""

    def __init__(self, text: Text, batch: int, seed: int) -> None:
        arrays = TraceArrays(unrouted(population(text, PROMPTS, seed)))
        scenario = Scenario(text.name, 0.0, batch)
        super().__init__(arrays, known_table(text, seed), scenario, SEEDS)
        self.policies: dict[str, Policy] = {
            AR: plain_decoding(),
            FULL_TREE: full_tree(arrays.nodes, arrays.depth),
            **{name: make() for name, make in guided(self.table, arrays.depth).items()},
        }
        self.oracle = lru_cache(None)(super()._oracle)
        self._kept: dict[object, Floats] = {}

    def by_prompt(self, policy: Policy, seed: int) -> Floats:
        """Simulated once."""
        tuned = isinstance(policy, Fixed | Threshold)
        key = (policy if tuned else policy.name, seed)
        if key not in self._kept:
            self._kept[key] = super().by_prompt(policy, seed)
        return self._kept[key]

    def truth(self, policy: Policy) -> Floats:
        """Sums of `COLUMNS` over the population, and over orders in a batch."""
        seeds = range(SEEDS if self.scenario.batch > 1 else 1)
        total: Floats = sum(self.by_prompt(policy, seed).sum(axis=0) for seed in seeds)
        return total

    def rate(self, policy: str | Policy) -> float:
        """True tokens a second."""
        own = self.policies[policy] if isinstance(policy, str) else policy
        total = self.truth(own)
        return float(1e6 * total[COMMITTED] / total[US])

    @cached_property
    def fastest(self) -> float:
        """Tokens a second of the best setting that knows no cost."""
        return max(self.rate(policy) for policy, _ in self.chosen(self.tune()))

    @cached_property
    def lead(self) -> dict[str, float]:
        """Of each policy that reads the table, over the best setting."""
        names = [name for name in self.policies if name in GUIDED]
        return {name: self.rate(name) / self.fastest for name in names}

    def trial(self, chosen: Ints) -> ScenarioReplay:
        """The replay of some of the prompts."""
        if self.scenario.batch == 1:
            return DrawnReplay(self, chosen)
        arrays = TraceArrays(drawn(self.arrays.trace, chosen))
        return ScenarioReplay(arrays, self.table, self.scenario, SEEDS)


class DrawnReplay(ScenarioReplay):
    """The replay of some prompts of a population, one request at a time.

    `tied` brings each policy that reads the table to the speed of the best fixed
    setting: whoever advises to adapt then is wrong.
    """

    def __init__(self, known: KnownReplay, chosen: Ints, tied: bool = False) -> None:
        super().__init__(known.arrays, known.table, known.scenario, seeds=1)
        self.known, self.drawn, self.tied = known, chosen, tied
        self.bootstrap = Bootstrap(len(chosen))

    def by_prompt(self, policy: Policy, seed: int) -> Floats:
        """Theirs, of the population's."""
        sums = self.known.by_prompt(policy, seed)[self.drawn]
        if self.tied:
            sums[:, US] *= self.known.lead.get(policy.name, 1.0)
        return sums

    def _oracle(self, seed: int) -> Floats:
        return self.known.oracle(seed)[self.drawn]


def judged_replay(known: KnownReplay, chosen: Ints) -> Iterator[Finding]:
    """What the replay of some prompts prints, and what it advises of ties."""
    trial = known.trial(chosen)
    comparison = trial.compare()
    fixed = _strongest(known, trial, comparison)
    yield from _policies(known, comparison)
    yield from _chosen(known, comparison, fixed)
    yield from _advice(comparison, known.rate(comparison.adaptive.policy), fixed, "")
    if known.scenario.batch == 1:
        trial = DrawnReplay(known, chosen, tied=True)
        comparison = trial.compare()
        fixed = _strongest(known, trial, comparison)
        yield from _advice(comparison, known.fastest, fixed, ", of ties")


def _strongest(
    known: KnownReplay, trial: ScenarioReplay, comparison: Comparison
) -> float:
    """True tokens a second of the setting that a verdict names."""
    policies = {policy.name: policy for policy, _ in trial.chosen(trial.tune())}
    return known.rate(policies[comparison.strongest.policy])


def _advice(
    found: Comparison, adaptive: float, fixed: float, where: str
) -> Iterator[Finding]:
    """Whether it is sure to adapt, and wrongly: the setting is as fast."""
    adapts = found.choice == "adapt" and found.sure
    yield Finding(f"is sure to adapt{where}", adapts, 0.0, 0.0)
    wrong = adapts and adaptive < fixed * (1.0 + TIE)
    yield Finding(f"and wrong{where}", wrong, 0.0, 0.0)


def _policies(known: KnownReplay, comparison: Comparison) -> Iterator[Finding]:
    """Those that are not chosen, over what is chosen and what is not."""
    rate, best = known.rate, comparison.best
    fixed = rate(Fixed("", best.depth, best.width))
    for name in (FULL_TREE, *known.lead):
        told, own = comparison.of(name), rate(name)
        sums = known.truth(known.policies[name])
        per_step = float(sums[COMMITTED] / sums[REQUESTS])
        yield finding("tokens/s", told.tokens_per_s, own)
        yield finding("tokens a step", told.committed, per_step)
        yield finding("x plain", told.over[AR], own / rate(AR))
        yield finding("x best fixed", told.over[BEST_PAIR], own / fixed)


def _chosen(
    known: KnownReplay, comparison: Comparison, fixed: float
) -> Iterator[Finding]:
    """What is chosen on the trace that judges it."""
    plain, adaptive = known.rate(AR), known.rate(comparison.adaptive.policy)
    points = {BEST_PAIR: comparison.best, BEST_WIDTH: comparison.best_width}
    speed = {
        name: known.rate(Fixed("", point.depth, point.width))
        for name, point in points.items()
    }
    for name in points:
        told = comparison.of(name).over[AR]
        yield finding("best fixed x plain", told, speed[name] / plain)
    told = comparison.adaptive.over[AR]
    yield finding("best adaptive x plain", told, adaptive / plain)
    told = comparison.adaptive_over_fixed
    yield finding("best adaptive x best fixed", told, adaptive / fixed)
