"""All policies on one trace and one table: the fastest, with its interval.

Throughputs of settings chosen on the trace are stated less their optimism (selection
bias); every resample chooses again. Both sides of a comparison share resamples of
prompts and orders, which cancels most of the spread between prompts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from shlex import quote

import numpy as np

from evict_profile.replay.comparison import (
    Comparison,
    FixedPoint,
    PolicyResult,
    Scenario,
)
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import (
    AR,
    FULL_TREE,
    GUIDED,
    HINDSIGHT,
    ORACLE,
    RATE,
    Fixed,
    MakePolicy,
    Policy,
    Schedule,
    full_tree,
    table_policies,
)
from evict_profile.replay.simulate import ReplayRun, StepTimes, simulate
from evict_profile.replay.sums import (
    COLUMNS,
    PER_STEP,
    Sums,
    less_optimism,
    sums_by_prompt,
    tokens_per_s,
)
from evict_profile.replay.tuning import Tuned, candidates, fixed_points
from evict_profile.runtime import CostTable
from evict_profile.served.growth import ESTIMATE_ERROR, around
from evict_profile.stats import CONFIDENCE, WORTHWHILE, Floats, Ints
from evict_profile.traces import Trace
from evict_profile.traces.resampling import MIN_PROMPTS, Bootstrap, optimism

MIXED = "mixed"
BASELINES = (AR, FULL_TREE, *HINDSIGHT, ORACLE)


def parts(trace: Trace) -> Iterator[tuple[Trace, str, float]]:
    """Parts of a trace that are replayed apart, the mix last."""
    for temperature in trace.temperatures:
        whole = trace.only(temperatures=[temperature])
        for workload in whole.workloads:
            yield whole.only([workload]), workload, temperature
        if len(whole.workloads) > 1:
            yield whole, MIXED, temperature


class ScenarioReplay:
    """Replays of one scenario, in as many orders of replies as there are `seeds`.

    `speed` is the table's machine over the recorder's; see `StepTimes`.
    """

    def __init__(
        self,
        arrays: TraceArrays,
        table: CostTable,
        scenario: Scenario,
        seeds: int,
        speed: float = 1.0,
    ) -> None:
        self.arrays = arrays
        self.scenario = scenario
        self.seeds = seeds
        self.costs = StepTimes(table, arrays, scenario.batch, speed)
        self.table = self.costs.table
        self.bootstrap = Bootstrap(len(arrays.prompts), seeds)
        self.parts: Sequence[ScenarioReplay] = [self]
        self.rates = lru_cache(None)(self._first_rates)

    def compare(self) -> Comparison:
        points = self.tune()
        chosen = [*self.tuned(points)]
        settings = {policy.name: policy for policy, _ in chosen}
        sums = self.policy_sums(settings)
        for policy, too_fast in chosen:
            sums[policy.name] = less_optimism(sums[policy.name], too_fast)
        best = dict(_best_of(kind, sums) for kind in (HINDSIGHT, GUIDED))
        strongest, adaptive = (
            self._result(name, settings.get(name), {**sums, **best}) for name in best
        )
        results = [self._result(name, settings.get(name), sums) for name in sums]
        verified = np.array([each.verified.value for each in results])
        costs = [part.costs for part in self.parts]
        error = around(1.0, ESTIMATE_ERROR) if self.table.is_estimated else None
        own = [] if error else [each.interval_note(verified) for each in costs]
        caveats = (each.caveats for each in costs)
        return Comparison(
            self.scenario,
            len(self.arrays.prompts),
            self.arrays.tokens,
            tuple(results),
            tuple(points),
            strongest,
            adaptive,
            _distinct(each.assumptions for each in costs),
            any(each.served.assumes_drafting for each in costs),
            (error.low, error.high) if error else (),
            _distinct([self._of_prompts(), *caveats, own]),
        )

    def policy_sums(self, settings: Mapping[str, Tuned]) -> dict[str, Sums]:
        """Sums of all policies by name, not corrected for optimism."""
        sums = {
            name: self._sums(partial(self.by_prompt, self._own(policy)), learns=False)
            for name, policy in settings.items()
        }
        for name, make in table_policies(self.table, self.arrays.depth).items():
            sums[name] = self.sums(make)
        return {**sums, ORACLE: self._sums(self._oracle, learns=False)}

    def run(self, policy: Policy, seed: int) -> ReplayRun:
        return simulate(self.arrays, policy, self.costs, self.scenario.batch, seed)

    def by_prompt(self, policy: Policy, seed: int) -> Floats:
        """Sums of `COLUMNS` of a run, float64 [prompts, columns]."""
        return self._by_prompt(self.run(policy, seed))

    def sums(self, make: MakePolicy) -> Sums:
        return self._sums(lambda seed: self.by_prompt(make(), seed))

    def tune(self) -> list[FixedPoint]:
        """Throughput by fixed depth and width, in the first order of replies."""
        arrays = self.arrays
        return fixed_points(self._rate, arrays.nodes, arrays.depth, arrays.topk)

    def tuned(self, points: Sequence[FixedPoint]) -> Iterator[tuple[Tuned, Floats]]:
        yield from self.chosen(points)

    def chosen(self, points: Sequence[FixedPoint]) -> Iterator[tuple[Fixed, Floats]]:
        """The fastest of each kind without a table, baselines first; its optimism."""
        for kind in self.kinds(points):
            rates = np.stack([self.rates(each) for each in kind])
            fastest = rates.argmax(axis=0)
            yield kind[fastest[0]], optimism(rates, fastest)

    def kinds(self, points: Sequence[FixedPoint]) -> Iterator[Sequence[Fixed]]:
        known = self.table.acceptance
        conditional = known.conditional if known and self.arrays.topk > 1 else None
        return candidates(points, self.arrays.nodes, conditional)

    def _own(self, policy: Tuned) -> Fixed:
        """What a setting is at this batch."""
        if isinstance(policy, Schedule):
            return policy.settings[self.scenario.batch]
        return policy

    def _rate(self, policy: Fixed) -> float:
        return float(self.rates(policy)[0])

    def _first_rates(self, policy: Fixed) -> Floats:
        """Tokens/s in the first order of replies, float64 [1 + resamples]."""
        return tokens_per_s(self._resampled(self.by_prompt(policy, 0)))

    def _oracle(self, seed: int) -> Floats:
        batch = self.scenario.batch
        return self._by_prompt(oracle_run(self.arrays, self.costs, batch, seed))

    def _by_prompt(self, run: ReplayRun) -> Floats:
        return sums_by_prompt(self.arrays, run, self.costs.undrafted_us)

    def _sums(self, run: Callable[[int], Floats], learns: bool = True) -> Sums:
        """Sums over runs in every order.

        One request in a dense trace takes the same steps in all, unless the policy
        learns.
        """
        alone = self.scenario.batch == 1 and self.arrays.trace.dense
        seeds = range(self.seeds) if learns or not alone else [0] * self.seeds
        by_seed = {seed: run(seed) for seed in set(seeds)}
        return self._resampled(np.stack([by_seed[seed] for seed in seeds]))

    def _resampled(self, by_prompt: Floats) -> Sums:
        return dict(zip(COLUMNS, self.bootstrap.sums(by_prompt), strict=True))

    def _result(
        self, name: str, policy: Tuned | None, sums: Mapping[str, Sums]
    ) -> PolicyResult:
        own, estimate, ratio = sums[name], self.bootstrap.estimate, self.bootstrap.ratio
        served_by, topk, arrays = "", self.arrays.trace.about.topk, self.arrays
        set_here = policy if name in HINDSIGHT else None
        if isinstance(set_here, Fixed):
            served_by = set_here.served_by(self.table, topk, arrays.nodes)
        elif name == RATE and not self.table.key.engine.startswith(("vllm", "trtllm")):
            tree = full_tree(arrays.nodes, arrays.depth)
            served_by = f"EVICT_PROFILE_TABLE={quote(str(self.table.path))} "
            served_by += "EVICT_PROFILE_ALLOW=composed " * self.table.is_estimated
            served_by += tree.served_by(self.table, topk, arrays.nodes)
        return PolicyResult(
            policy=name,
            setting=set_here.setting if set_here else "",
            served_by=served_by,
            tokens_per_s=ratio(tokens_per_s(own)),
            over={
                baseline: ratio(tokens_per_s(own) / tokens_per_s(sums[baseline]))
                for baseline in BASELINES
                if baseline in sums
            },
            **{name: estimate(own[name] / own["requests"]) for name in PER_STEP},
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
                f"with {prompts} prompts, a kind that is rarer than one in "
                f"{1.0 / rarest:.0f} may be missing; no interval covers it"
            )


def _distinct(words: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(words)))


def _best_of(kind: Sequence[str], sums: Mapping[str, Sums]) -> tuple[str, Sums]:
    """The simplest policy within one per cent of the fastest; sums less optimism."""
    names = [name for name in kind if name in sums]
    rates = np.stack([tokens_per_s(sums[name]) for name in names])
    chosen = one_percent_rule(rates)
    name = names[chosen[0]]
    return name, less_optimism(sums[name], optimism(rates, chosen))


def one_percent_rule(rates: Floats) -> Ints:
    """The first policy within one per cent of the fastest, int64 [...].

    `rates` is float64 [policies, ...], the simplest first.
    """
    first: Ints = (rates * WORTHWHILE >= rates.max(axis=0)).argmax(axis=0)
    return first
