"""Replays of prompts whose acceptance is known."""

from collections.abc import Iterator
from functools import cached_property, lru_cache

from benchmarks.known_acceptance.populations import drawn, population
from evict_profile.calibrate.study import calibrated_table, calibration_study
from evict_profile.io import data_root
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Comparison, Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    Fixed,
    Policy,
    full_tree,
    plain_decoding,
    table_policies,
)
from evict_profile.replay.sums import COLUMNS, Sums, tokens_per_s
from evict_profile.runtime import CostTable
from evict_profile.stats import Estimate, Floats, Ints
from evict_profile.traces.resampling import Bootstrap

TABLES = "examples/small_world/cost_tables/intel-xeon-processor-amx-bf16"
SEEDS = 2
TIE = 1e-9
SURE, WRONG = "is sure to adapt", "and wrong"

Judged = tuple[str, bool, float, float]
"""What is judged, whether the truth is inside, the error, and the half-width."""


def finding(what: str, stated: Estimate, truth: float) -> Judged:
    """One printed number beside the truth."""
    inside = bool(stated.low <= truth <= stated.high)
    return what, inside, abs(stated.value - truth), (stated.high - stated.low) / 2.0


class KnownReplay(ScenarioReplay):
    """A population's replay at a shipped table's costs, calibrated on other prompts.

    At batch 1 a prompt takes what it takes, whoever comes before it: so each policy is
    simulated once, and a trial sums up the prompts that it drew. In a batch the others
    matter, and every trial is simulated.
    """

    def __init__(self, text: str, batch: int, prompts: int, seed: int) -> None:
        arrays = TraceArrays(population(text, prompts, seed, routed=False))
        others = population(text, prompts // 4, seed + 1, routed=False)
        table = CostTable.load(next((data_root() / TABLES).rglob("1.0.3.json")))
        table = calibrated_table(calibration_study(others, table), table)
        super().__init__(arrays, table, Scenario(text, 0.0, batch), SEEDS)
        self.guided = table_policies(self.table, arrays.depth)
        self.policies: dict[str, Policy] = {
            AR: plain_decoding(),
            FULL_TREE: full_tree(arrays.nodes, arrays.depth),
            **{name: make() for name, make in self.guided.items()},
        }
        self.oracle = lru_cache(None)(super()._oracle)
        self._kept: dict[object, Floats] = {}

    def by_prompt(self, policy: Policy, seed: int) -> Floats:
        key = (policy if isinstance(policy, Fixed) else policy.name, seed)
        if key not in self._kept:
            self._kept[key] = super().by_prompt(policy, seed)
        return self._kept[key]

    def truth(self, policy: str | Policy) -> Sums:
        """Sums over the population, and over orders in a batch."""
        own = self.policies[policy] if isinstance(policy, str) else policy
        seeds = range(SEEDS if self.scenario.batch > 1 else 1)
        total: Floats = sum(self.by_prompt(own, seed).sum(axis=0) for seed in seeds)
        return dict(zip(COLUMNS, total, strict=True))

    def rate(self, policy: str | Policy) -> float:
        """True tokens a second."""
        return float(tokens_per_s(self.truth(policy)))

    @cached_property
    def fastest(self) -> float:
        """Tokens a second of the best setting that knows no cost."""
        return max(self.rate(policy) for policy, _ in self.chosen(self.tune()))

    @cached_property
    def lead(self) -> dict[str, float]:
        """Of each policy that reads the table, over the best setting."""
        return {name: self.rate(name) / self.fastest for name in self.guided}

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
        sums = self.known.by_prompt(policy, seed)[self.drawn]
        if self.tied:
            sums[:, COLUMNS.index("us")] *= self.known.lead.get(policy.name, 1.0)
        return sums

    def _oracle(self, seed: int) -> Floats:
        return self.known.oracle(seed)[self.drawn]


def judged_replay(known: KnownReplay, chosen: Ints) -> Iterator[Judged]:
    """What the replay of some prompts prints, and what it advises of ties."""
    trial, rate = known.trial(chosen), known.rate
    found = trial.compare()
    plain, adaptive = rate(AR), rate(found.adaptive.policy)
    pair, width = (
        rate(Fixed("", point.depth, point.width))
        for point in (found.best, found.best_width)
    )
    for name in (FULL_TREE, *known.lead):
        stated, true = found.of(name), known.truth(name)
        per_step = float(true["committed"] / true["requests"])
        yield finding("tokens/s", stated.tokens_per_s, rate(name))
        yield finding("tokens a step", stated.committed, per_step)
        yield finding("x plain", stated.over[AR], rate(name) / plain)
        yield finding("x best fixed", stated.over[BEST_PAIR], rate(name) / pair)
    # These are chosen on the prompts that judge them.
    for name, speed in ((BEST_PAIR, pair), (BEST_WIDTH, width)):
        yield finding("best fixed x plain", found.of(name).over[AR], speed / plain)
    over_plain, over_fixed = found.adaptive.over[AR], found.adaptive_over_fixed
    fixed = _strongest(known, trial, found)
    yield finding("best adaptive x plain", over_plain, adaptive / plain)
    yield finding("best adaptive x best fixed", over_fixed, adaptive / fixed)
    yield from _advice(found, adaptive, fixed)
    if known.scenario.batch == 1:
        trial = DrawnReplay(known, chosen, tied=True)
        found = trial.compare()
        fixed = _strongest(known, trial, found)
        yield from _advice(found, known.fastest, fixed, ", of ties")


def _strongest(known: KnownReplay, trial: ScenarioReplay, found: Comparison) -> float:
    """True tokens a second of the setting that a verdict names."""
    policies = {policy.name: policy for policy, _ in trial.chosen(trial.tune())}
    return known.rate(policies[found.strongest.policy])


def _advice(
    found: Comparison, adaptive: float, fixed: float, where: str = ""
) -> Iterator[Judged]:
    """Whether it is sure to adapt, and wrongly: the setting is as fast."""
    adapts = found.choice == "adapt" and found.sure
    yield f"{SURE}{where}", adapts, 0.0, 0.0
    yield f"{WRONG}{where}", adapts and adaptive < fixed * (1.0 + TIE), 0.0, 0.0
