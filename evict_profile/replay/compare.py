"""All policies on one trace and one table: which is fastest, and how sure is that?

A scenario is one workload, temperature and batch size; "mixed" has the replies of all
workloads in one order. The baselines that matter are fixed: the best width at full
depth, and the best pair of depth and width, both chosen in hindsight on the trace that
is replayed. A server that tunes two numbers by hand gets that far without reading a
score, so only what a policy earns beyond them is due to adapting.

Every policy decodes the same prompts, so a comparison takes both sides from the same
resamples of prompts and orders, and most of the spread between prompts cancels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
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
from evict_profile.runtime import CostTable
from evict_profile.stats import MIN_PROMPTS, Bootstrap, Estimate, Floats
from evict_profile.table import ConditionalAcceptance
from evict_profile.traces import Trace

MIXED = "mixed"
BASELINES = (AR, FULL_TREE, BEST_WIDTH, BEST_PAIR, ORACLE)
SERVED_TOKENS = 32
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.4)
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fixed widths tried first; then all between the neighbours of the best."""

COLUMNS = (
    "tokens", "us", "requests", "accepted", "verified", "depth", "union", "verify_us",
    "draft_us", "fixed_us", "step_us",
)  # fmt: skip
"""What is summed over the steps of a prompt. `us` is the request's share of a step's
time, and `requests` counts its steps; from `depth` on the values are of whole steps."""

Progress = Callable[[str], None]
P = TypeVar("P", Fixed, Threshold)


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
        tokens_per_s: of the whole batch.
        over: its throughput over that of each baseline, and of the oracle.
        committed: tokens a request gains in a step.
        verified: tokens of a request verified in a step, its root included.
        depth: levels drafted.
        union: distinct experts a layer, of the whole batch.
        step_us, verify_us, draft_us, fixed_us: time of a step of the batch.
    """

    policy: str
    setting: str
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


@dataclass(frozen=True)
class FixedPoint:
    """Throughput at one fixed depth and width."""

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
        caveats: what prices had to assume, and whether prompts are too few.
    """

    scenario: Scenario
    prompts: int
    tokens: int
    results: tuple[PolicyResult, ...]
    best: FixedPoint
    best_width: FixedPoint
    fixed: tuple[FixedPoint, ...]
    caveats: tuple[str, ...]

    def has(self, policy: str) -> bool:
        """Whether a policy was replayed here."""
        return any(each.policy == policy for each in self.results)

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


class _Candidate(NamedTuple):
    """A policy to replay, and what it was set to."""

    setting: str
    make: MakePolicy


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
        self.table = table
        self.scenario = scenario
        self.seeds = seeds
        self.prices = StepPrices(table, arrays, scenario.batch, speed)
        self.bootstrap = Bootstrap(len(arrays.prompts), seeds)

    def compare(self) -> Comparison:
        """Tune what can be tuned, then simulate everything with every seed."""
        points = self.tune()
        full_depth = [point for point in points if point.depth == self.arrays.depth]
        width, pair = (max(tried, key=_speed) for tried in (full_depth, points))
        candidates = self._candidates(width, pair)
        sums = {name: self.sums(each.make) for name, each in candidates.items()}
        sums[ORACLE] = self._summed(self._oracle_runs())
        settings = {name: each.setting for name, each in candidates.items()}
        return Comparison(
            self.scenario,
            len(self.arrays.prompts),
            self.arrays.tokens,
            tuple(self._result(name, settings.get(name, ""), sums) for name in sums),
            pair,
            width,
            tuple(points),
            (*self._too_few(), *self.prices.caveats),
        )

    def _too_few(self) -> tuple[str, ...]:
        prompts = len(self.arrays.prompts)
        if prompts >= MIN_PROMPTS:
            return ()
        return (
            f"{prompts} prompts are too few for intervals; record {MIN_PROMPTS} or "
            "more",
        )

    def _candidates(self, width: FixedPoint, pair: FixedPoint) -> dict[str, _Candidate]:
        """All policies but the oracle, by name."""
        nodes, depth = self.arrays.nodes, self.arrays.depth
        served = Fixed(SERVED_TREE, depth, SERVED_TOKENS)
        return {
            AR: _Candidate("", plain_decoding),
            FULL_TREE: _Candidate("", lambda: full_tree(nodes, depth)),
            **({SERVED_TREE: _always(served)} if nodes >= SERVED_TOKENS else {}),
            BEST_WIDTH: _always(Fixed(BEST_WIDTH, width.depth, width.width)),
            BEST_PAIR: _always(Fixed(BEST_PAIR, pair.depth, pair.width)),
            THRESHOLD: self._best_threshold(),
            **(
                {PAIR_CONDITIONAL: _always(self.conditional_pair())}
                if self.conditional
                else {}
            ),
            **{
                name: _Candidate("", make)
                for name, make in guided(self.table, depth).items()
            },
        }

    def sums(self, make: MakePolicy) -> Floats:
        """Sums over a policy's runs, of `COLUMNS`; float64 [columns, 1 + resamples]."""
        if self._in_any_order and isinstance(make(), Fixed | Threshold):
            return self._summed([self.run(make(), 0)] * self.seeds)
        return self._summed([self.run(make(), seed) for seed in range(self.seeds)])

    def run(self, policy: Policy, seed: int) -> Run:
        """One run of a fresh policy."""
        return simulate(self.arrays, policy, self.prices, self.scenario.batch, seed)

    @property
    def _in_any_order(self) -> bool:
        """Whether a policy that learns nothing does the same in every order."""
        return self.scenario.batch == 1 and self.arrays.trace.dense

    def _oracle_runs(self) -> list[Run]:
        given = (self.arrays, self.prices, self.scenario.batch)
        if self._in_any_order:
            return [oracle_run(*given, 0)] * self.seeds
        return [oracle_run(*given, seed) for seed in range(self.seeds)]

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

    def _point(self, depth: int, width: int) -> FixedPoint:
        run = self.run(Fixed("", depth, width), 0)
        return FixedPoint(depth, width, run.tokens_per_s)

    @property
    def conditional(self) -> ConditionalAcceptance | None:
        """The table's conditional acceptance, if it has one."""
        known = self.table.acceptance
        return known.conditional if known else None

    def conditional_pair(self) -> Fixed:
        """The best fixed pair when nodes are ranked by conditional acceptance."""
        return self._fastest(
            Fixed(PAIR_CONDITIONAL, depth, width, self.conditional)
            for depth in range(1, self.arrays.depth + 1)
            for width in WIDTHS
            if width <= self.arrays.nodes
        )

    def _best_threshold(self) -> _Candidate:
        depth = self.arrays.depth
        best = self._fastest(Threshold(THRESHOLD, depth, least) for least in THRESHOLDS)
        return _Candidate(f"{best.least:g}", lambda: best)

    def _fastest(self, policies: Iterator[P]) -> P:
        return max(policies, key=lambda policy: self.run(policy, 0).tokens_per_s)

    def _summed(self, runs: Sequence[Run]) -> Floats:
        return self.bootstrap.sums(sums_by_prompt(self.arrays, runs))

    def _result(
        self, name: str, setting: str, sums: Mapping[str, Floats]
    ) -> PolicyResult:
        own, estimate = sums[name], self.bootstrap.estimate

        def per_step(column: str) -> Estimate:
            return estimate(mean(own, column))

        return PolicyResult(
            policy=name,
            setting=setting,
            tokens_per_s=estimate(tokens_per_s(own)),
            over={
                baseline: estimate(tokens_per_s(own) / tokens_per_s(sums[baseline]))
                for baseline in BASELINES
            },
            committed=per_step("tokens"),
            verified=per_step("verified"),
            depth=per_step("depth"),
            union=per_step("union"),
            step_us=per_step("step_us"),
            verify_us=per_step("verify_us"),
            draft_us=per_step("draft_us"),
            fixed_us=per_step("fixed_us"),
        )


def sums_by_prompt(arrays: TraceArrays, runs: Sequence[Run]) -> Floats:
    """Sums over the steps of each prompt, float64 [runs, prompts, columns].

    At a batch above one a step's time is shared out equally among its requests.
    """
    return np.stack([_by_prompt(arrays, run) for run in runs])


def _by_prompt(arrays: TraceArrays, run: Run) -> Floats:
    steps, batch = run.rows.shape
    prompt = arrays.prompt[arrays.reply[run.rows]].ravel()
    of_steps = {
        "us": run.step_us / batch,
        "depth": run.depth,
        "union": run.price[:, 3],
        "verify_us": run.price[:, 0],
        "draft_us": run.price[:, 1],
        "fixed_us": run.price[:, 2],
        "step_us": run.step_us,
    }
    of_requests = {
        "tokens": run.counted,
        "requests": np.ones((steps, batch)),
        "accepted": run.accepted,
        "verified": run.verified,
        **{name: np.repeat(values, batch) for name, values in of_steps.items()},
    }
    sums = [
        np.bincount(prompt, of_requests[name].ravel(), minlength=len(arrays.prompts))
        for name in COLUMNS
    ]
    return np.stack(sums, axis=1)


def tokens_per_s(sums: Floats) -> Floats:
    """Tokens of the whole batch a second, float64 [1 + resamples]."""
    rate: Floats = 1e6 * sums[COLUMNS.index("tokens")] / sums[COLUMNS.index("us")]
    return rate


def mean(sums: Floats, column: str) -> Floats:
    """A column over the steps of requests, float64 [1 + resamples]."""
    per_step: Floats = sums[COLUMNS.index(column)] / sums[COLUMNS.index("requests")]
    return per_step


def _always(policy: Fixed) -> _Candidate:
    """A policy that learns nothing, and so serves every run."""
    setting = f"{policy.width} tokens at depth {policy.depth}"
    return _Candidate("" if policy.name == SERVED_TREE else setting, lambda: policy)


def _near(widths: Sequence[int], best: int) -> range:
    """All widths between the neighbours of one of them."""
    at = widths.index(best)
    last = len(widths) - 1
    return range(widths[max(at - 1, 0)] + 1, widths[min(at + 1, last)])


def _speed(point: FixedPoint) -> float:
    return point.tokens_per_s
