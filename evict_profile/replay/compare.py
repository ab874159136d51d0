"""All policies on one trace and one table: which is fastest, and how sure is that?

A scenario is one workload, temperature and batch size; "mixed" has the replies of all
workloads in one order. The baselines that matter know no cost: the best width at full
depth, the best pair of depth and width, that pair with nodes ranked by conditional
acceptance, and the best threshold of the path probability, all chosen in hindsight on
the trace that is replayed. Whoever tunes one or two numbers by hand gets as far as the
strongest of them, so only what a policy earns beyond it is due to reading prices.

What is chosen because it was the fastest here will be slower elsewhere. So throughputs
of chosen settings are told less their optimism, as they are expected of other prompts;
a verdict's strongest setting and its adaptive policy, each the best of several,
likewise. An interval is of what was chosen here, on other prompts; every resample
chooses anew, as other prompts would have.

Every policy decodes the same prompts, so a comparison takes both sides from the same
resamples of prompts and orders, and most of the spread between prompts cancels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    GUIDED,
    HINDSIGHT,
    ORACLE,
    PAIR_CONDITIONAL,
    SERVED_TREE,
    THRESHOLD,
    Fixed,
    MakePolicy,
    Policy,
    Threshold,
    full_tree,
    guided,
    plain_decoding,
)
from evict_profile.replay.simulate import Run, StepPrices, simulate
from evict_profile.replay.sums import (
    COLUMNS,
    PER_STEP,
    SPEED,
    mean,
    slowed,
    sums_by_prompt,
    tokens_per_s,
)
from evict_profile.runtime import CostTable
from evict_profile.stats import (
    CONFIDENCE,
    MIN_PROMPTS,
    Bools,
    Bootstrap,
    Estimate,
    Floats,
    Ints,
    optimism,
)
from evict_profile.traces import Trace

MIXED = "mixed"
BASELINES = (AR, FULL_TREE, *HINDSIGHT, ORACLE)
SERVED_TOKENS = 32
THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Tried first; then `FINER` between the neighbours of the best."""
FINER = 7
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fixed widths tried first; then all between the neighbours of the best."""

WORTHWHILE = 1.01
"""Throughput over that of a simpler policy from which the effort pays."""

UNSET = ("", "")
"""Of a policy that needs no setting."""

Progress = Callable[[str], None]
Tuned = Fixed | Threshold


@dataclass(frozen=True)
class Scenario:
    """A part of a trace at a batch size."""

    workload: str
    temperature: float
    batch: int

    def __str__(self) -> str:
        return f"{self.workload}, temperature {self.temperature:g}, batch {self.batch}"


@dataclass(frozen=True)
class PolicyResult:
    """One policy in one scenario. Means are over the steps of requests.

    Attributes:
        policy: its name.
        setting: what it was set to in hindsight; empty for one that needs no setting.
        served_by: environment and flags that set SGLang so; empty where none can.
        tokens_per_s: of the whole batch; less the optimism of a setting.
        over: its throughput over that of each baseline there is, and of the oracle.
        committed: tokens a request gains in a step.
        verified: tokens of a request verified in a step, its root included.
        depth: levels drafted.
        union: distinct experts a layer, of the whole batch.
        step_us, verify_us, draft_us, fixed_us: time of a step of the batch.
    """

    policy: str
    setting: str
    served_by: str
    tokens_per_s: Estimate
    over: Mapping[str, Estimate]
    committed: Estimate
    verified: Estimate
    depth: Estimate
    union: Estimate
    step_us: Estimate
    verify_us: Estimate
    draft_us: Estimate
    fixed_us: Estimate

    def __str__(self) -> str:
        return f"{self.policy} ({self.setting})" if self.setting else self.policy


@dataclass(frozen=True)
class FixedPoint:
    """Throughput at one fixed depth and width, as replayed."""

    depth: int
    width: int
    tokens_per_s: float

    def __str__(self) -> str:
        return f"{self.width} tokens at depth {self.depth}"


@dataclass(frozen=True)
class Comparison:
    """All policies in one scenario.

    Attributes:
        best: the fixed depth and width that were fastest in hindsight.
        best_width: the width that was fastest at full depth.
        fixed: every fixed depth and width that was tried.
        strongest, adaptive: the simplest within one per cent of the fastest of those
            set in hindsight, and of those that read a table; each less the optimism of
            having been chosen.
        assumptions: what of prices nobody measured, and the choice rests on.
        drafting_is_assumed: whether times of drafting are among them.
        caveats: all that prices assume, and whether prompts are too few.
    """

    scenario: Scenario
    prompts: int
    tokens: int
    results: tuple[PolicyResult, ...]
    best: FixedPoint
    best_width: FixedPoint
    fixed: tuple[FixedPoint, ...]
    strongest: PolicyResult
    adaptive: PolicyResult
    assumptions: tuple[str, ...]
    drafting_is_assumed: bool
    caveats: tuple[str, ...]

    def of(self, policy: str) -> PolicyResult:
        """The result of a policy."""
        return next(each for each in self.results if each.policy == policy)


def parts(trace: Trace) -> Iterator[tuple[Trace, str, float]]:
    """Parts of a trace that are replayed apart, the mix last."""
    for temperature in trace.temperatures:
        whole = trace.only(temperature=temperature)
        for workload in whole.workloads:
            yield whole.only(workload=workload), workload, temperature
        if len(whole.workloads) > 1:
            yield whole, MIXED, temperature


class ScenarioReplay:
    """Replays of one scenario: policies are tuned, simulated and compared."""

    def __init__(
        self,
        arrays: TraceArrays,
        table: CostTable,
        scenario: Scenario,
        seeds: int,
        speed: float = 1.0,
    ) -> None:
        """Prepare a scenario.

        Args:
            arrays: the part of the trace that is replayed.
            table: prices it, and guides policies.
            scenario: what that part is, and at which batch size.
            seeds: orders of replies in which every policy is simulated.
            speed: of the table's machine over the recorder's; see `StepPrices`.
        """
        self.arrays = arrays
        self.scenario = scenario
        self.seeds = seeds
        self.prices = StepPrices(table, arrays, scenario.batch, speed)
        self.table = self.prices.table
        self.bootstrap = Bootstrap(len(arrays.prompts), seeds)
        self._rates = lru_cache(None)(self._first_rates)

    def compare(self) -> Comparison:
        """Tune what can be tuned, then simulate everything with every seed."""
        points = self.tune()
        full_depth = [point for point in points if point.depth == self.arrays.depth]
        width, pair = (max(tried, key=_speed) for tried in (full_depth, points))
        sums, settings = {}, {}
        for policy, flattered in self.chosen(points):
            sums[policy.name] = slowed(self._sums_of_fixed(policy), flattered)
            if policy.name in HINDSIGHT:
                settings[policy.name] = policy.setting, self._served_by(policy)
        for name, make in guided(self.table, self.arrays.depth).items():
            sums[name] = self.sums(make)
        sums[ORACLE] = self._sums(self._oracle, learns=False)
        best = dict(_best_of(kind, sums) for kind in (HINDSIGHT, GUIDED))
        plain = sums[AR]
        sums, best = (
            {name: self._with_growth_error(own, plain) for name, own in each.items()}
            for each in (sums, best)
        )
        strongest, adaptive = (
            self._result(name, settings.get(name, UNSET), {**sums, **best})
            for name in best
        )
        results = [self._result(name, settings.get(name, UNSET), sums) for name in sums]
        verified = np.array([each.verified.value for each in results])
        return Comparison(
            self.scenario,
            len(self.arrays.prompts),
            self.arrays.tokens,
            tuple(results),
            pair,
            width,
            tuple(points),
            strongest,
            adaptive,
            self.prices.assumptions,
            self.prices.drafting_is_assumed,
            (
                *self._of_prompts(),
                *self.prices.caveats,
                self.prices.interval_note(verified),
            ),
        )

    def _with_growth_error(self, sums: Floats, plain: Floats) -> Floats:
        """Sums whose steps beyond plain decoding's err as the table's growth may.

        One draw a resample serves all policies: they are priced by one table.
        """
        if self.prices.overheads is None:
            return sums
        factor = np.exp(self.prices.overheads.growth * self.bootstrap.normal)
        us, requests = (COLUMNS.index(name) for name in ("us", "requests"))
        plain_us = sums[requests] * plain[us] / plain[requests]
        erring = sums.copy()
        erring[us] = plain_us + factor * (sums[us] - plain_us)
        return erring

    def run(self, policy: Policy, seed: int) -> Run:
        """One run of a fresh policy."""
        return simulate(self.arrays, policy, self.prices, self.scenario.batch, seed)

    def by_prompt(self, policy: Policy, seed: int) -> Floats:
        """Sums of `COLUMNS` of such a run, float64 [prompts, columns]."""
        return self._by_prompt(self.run(policy, seed))

    def sums(self, make: MakePolicy) -> Floats:
        """Sums over a policy's runs, of `COLUMNS`; float64 [columns, 1 + resamples]."""
        return self._sums(lambda seed: self.by_prompt(make(), seed))

    def tune(self) -> list[FixedPoint]:
        """Throughput by fixed depth and width, in the first order of replies.

        Some widths at every depth, then all near the best pair and the best width.
        """
        most, deepest = self.arrays.nodes + 1, self.arrays.depth
        coarse = [*(width for width in WIDTHS if width < most), most]
        depths = range(1, deepest + 1)
        tried = {(d, w): self._point(d, w) for d in depths for w in coarse}
        best = max(tried.values(), key=_speed)
        best_width = max((tried[deepest, w] for w in coarse), key=_speed)
        for point in (best, best_width):
            for width in _near(coarse, point.width):
                at = (point.depth, width)
                tried[at] = tried.get(at) or self._point(*at)
        return [tried[at] for at in sorted(tried)]

    def chosen(self, points: Sequence[FixedPoint]) -> Iterator[tuple[Tuned, Floats]]:
        """Policies that read no table, the baselines first, and their optimism.

        Each is the fastest of its kind in the first order of replies.
        """
        for candidates in self._candidates(points):
            rates = np.stack([self._rates(replace(c, name="")) for c in candidates])
            fastest = rates.argmax(axis=0)
            yield candidates[fastest[0]], optimism(rates, fastest)

    def _candidates(self, points: Sequence[FixedPoint]) -> Iterator[Sequence[Tuned]]:
        nodes, deepest = self.arrays.nodes, self.arrays.depth
        pairs = [(point.depth, point.width) for point in points]
        yield [plain_decoding()]
        yield [full_tree(nodes, deepest)]
        if nodes >= SERVED_TOKENS:
            yield [Fixed(SERVED_TREE, deepest, SERVED_TOKENS)]
        yield [Fixed(BEST_WIDTH, d, width) for d, width in pairs if d == deepest]
        yield [Fixed(BEST_PAIR, depth, width) for depth, width in pairs]
        yield self._thresholds()
        known = self.table.acceptance
        if known and known.conditional:
            yield [
                Fixed(PAIR_CONDITIONAL, depth, width, known.conditional)
                for depth in range(1, deepest + 1)
                for width in WIDTHS
                if width <= nodes
            ]

    def _thresholds(self) -> list[Threshold]:
        """Some of the path probability, then more near the best."""

        def tried(values: Iterable[float]) -> list[Threshold]:
            return [Threshold(THRESHOLD, self.arrays.depth, least) for least in values]

        coarse = tried(THRESHOLDS)
        rates = [self._rates(replace(each, name=""))[0] for each in coarse]
        at = int(np.argmax(rates))
        ends = THRESHOLDS[max(at - 1, 0)], THRESHOLDS[min(at + 1, len(THRESHOLDS) - 1)]
        return coarse + tried(np.geomspace(*ends, FINER + 2)[1:-1].round(3).tolist())

    def _served_by(self, policy: Tuned) -> str:
        if not isinstance(policy, Fixed):
            return ""
        topk = self.arrays.trace.about.topk
        return policy.served_by(self.table.path, topk, self.arrays.nodes)

    def _point(self, depth: int, width: int) -> FixedPoint:
        rates = self._rates(Fixed("", depth, width))
        return FixedPoint(depth, width, float(rates[0]))

    def _first_rates(self, policy: Tuned) -> Floats:
        """Tokens/s in the first order of replies, float64 [1 + resamples]."""
        return tokens_per_s(self.bootstrap.sums(self.by_prompt(policy, 0)[:, :SPEED]))

    def _oracle(self, seed: int) -> Floats:
        batch = self.scenario.batch
        return self._by_prompt(oracle_run(self.arrays, self.prices, batch, seed))

    def _by_prompt(self, run: Run) -> Floats:
        return sums_by_prompt(self.arrays, run, self.prices.undrafted_us)

    def _sums_of_fixed(self, policy: Tuned) -> Floats:
        return self._sums(lambda seed: self.by_prompt(policy, seed), learns=False)

    def _sums(self, run: Callable[[int], Floats], learns: bool = True) -> Floats:
        """Sums over runs in every order.

        One request in a dense trace takes the same steps in every order, unless the
        policy learns.
        """
        alone = self.scenario.batch == 1 and self.arrays.trace.dense
        seeds = range(self.seeds) if learns or not alone else [0] * self.seeds
        by_seed = {seed: run(seed) for seed in set(seeds)}
        return self.bootstrap.sums(np.stack([by_seed[seed] for seed in seeds]))

    def _result(
        self, name: str, setting: tuple[str, str], sums: Mapping[str, Floats]
    ) -> PolicyResult:
        own, estimate, ratio = sums[name], self.bootstrap.estimate, self.bootstrap.ratio
        return PolicyResult(
            policy=name,
            setting=setting[0],
            served_by=setting[1],
            tokens_per_s=ratio(tokens_per_s(own)),
            over={
                baseline: ratio(tokens_per_s(own) / tokens_per_s(sums[baseline]))
                for baseline in BASELINES
                if baseline in sums
            },
            **{column: estimate(mean(own, column)) for column in PER_STEP},
        )

    def _of_prompts(self) -> Iterable[str]:
        prompts = len(self.arrays.prompts)
        if prompts < MIN_PROMPTS:
            yield (
                f"{prompts} prompts are too few for intervals; record {MIN_PROMPTS} or "
                "more"
            )
        else:
            # All prompts drawn miss a kind of this share in as many cases.
            rarest = 1.0 - (1.0 - CONFIDENCE) ** (1.0 / prompts)
            yield (
                f"{prompts} prompts may lack kinds of which fewer than one in "
                f"{1.0 / rarest:.0f} prompts are; no interval holds those"
            )


def _best_of(kind: Sequence[str], sums: Mapping[str, Floats]) -> tuple[str, Floats]:
    """The simplest of a kind of policy that will do, and its sums less optimism."""
    names = [name for name in kind if name in sums]
    rates = np.stack([tokens_per_s(sums[name]) for name in names])
    chosen = simplest(rates)
    name = names[chosen[0]]
    return name, slowed(sums[name], optimism(rates, chosen))


def simplest(rates: Floats) -> Ints:
    """The first policy within one per cent of the fastest; the simplest come first.

    Args:
        rates: throughputs, float64 [policies, ...].

    Returns:
        Its row, int64 [...].
    """
    near: Bools = rates * WORTHWHILE >= rates.max(axis=0)
    first: Ints = near.argmax(axis=0)
    return first


def _near(widths: Sequence[int], best: int) -> range:
    """All widths between the neighbours of one of them."""
    at = widths.index(best)
    last = len(widths) - 1
    return range(widths[max(at - 1, 0)] + 1, widths[min(at + 1, last)])


def _speed(point: FixedPoint) -> float:
    return point.tokens_per_s
