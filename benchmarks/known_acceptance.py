"""Judge what replay and calibration say of their own error, where acceptance is known.

    python -m benchmarks.known_acceptance --trials 100 --out acceptance.json

A trial draws its prompts with replacement from a population that is known, so that the
truth of a mean is the population's own; they are replayed, calibrated and judged by the
real commands' code. Prints the share of truths inside the stated 95 % intervals with
its standard error over trials, the stated half-width over the one that would hold 95 %
of the errors, and how often a verdict is sure to adapt, and wrongly: the fixed setting
that it names is really as fast. "Of ties" all adaptive policies are made as fast as the
best fixed setting of all, which a verdict on few prompts may not name. Exit code 1
where a study holds fewer truths than `LEAST`, or verdicts are wrong more often than
`MOST_WRONG`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import Answer, command, count, restart_on_one_thread
from evict_profile.calibrate.acceptance import RAW
from evict_profile.calibrate.activation import measure_activation
from evict_profile.calibrate.study import calibrate, calibrated_table, calibration_study
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
    plain_decoding,
    table_policies,
)
from evict_profile.replay.sums import COLUMNS
from evict_profile.runtime import CostTable
from evict_profile.stats import Bootstrap, Estimate, Floats, Ints
from evict_profile.traces import Trace, TraceInfo
from evict_profile.traces.synthetic import Mix, concentrations, dense_trace, grow
from evict_profile.traces.trace import Routes, ranges

LEAST, MOST_WRONG = 0.85, 0.05
"""Of all truths of a study, 0.93 to 0.96 were inside; 0.02 of verdicts were wrong."""

PROMPTS = (8, 16, 32, 64)
STUDIES = ("replay", "batch 4", "calibrate")
POPULATIONS = {"replay": 120, "batch 4": 120, "calibrate": 300}
CALIBRATED_STEPS, TRUE_DRAWS, SEEDS = 6, 10, 2
ACTIVATED = {1: (4, 12), 4: (16, 48)}
"""Tokens at which experts are judged, by batch."""

TABLE = "cost_tables/intel-xeon-processor-amx-bf16/small-world-9.04m/tree-decoding"
US, COMMITTED, REQUESTS = map(COLUMNS.index, ("us", "committed", "requests"))
TIE = 1e-9
SURE, WRONG = "is sure to adapt", "and wrong"

LAYERS, EXPERTS, TOP_K = 2, 32, 2
ABOUT = TraceInfo(
    "synthetic", LAYERS, EXPERTS, TOP_K, depth=3, topk=8, nodes=12, engine="synthetic"
)
CONTEXT, TOKENS = 128, 16
SHORTEST, LONGEST = 4, 80

TEXTS: dict[str, Callable[[np.random.Generator], tuple[float, float, float]]] = {
    "alike": lambda rng: (0.5, TOKENS, 1.0),
    "prompts differ": lambda rng: (rng.random(), TOKENS, 1.0),
    "heavy tails": lambda rng: (rng.beta(0.3, 0.6), TOKENS * rng.lognormal(), 1.0),
    "drafter claims too much": lambda rng: (0.5, TOKENS, rng.uniform(0.3, 1.0)),
    "one in ten is long and easy": lambda rng: (
        (1.0, 48.0, 1.0) if rng.random() < 0.1 else (0.0, 12.0, 1.0)
    ),
    "drafter claims too little": lambda rng: (0.5, TOKENS, rng.uniform(1.0, 1.6)),
    "two kinds, one overconfident": lambda rng: (
        (0.9, 32.0, 0.6) if rng.random() < 0.5 else (0.1, 12.0, 1.0)
    ),
}
"""Of each prompt: its share of easy positions, the length of its reply, and how far its
drafter is to be trusted."""


@dataclass(frozen=True)
class Finding:
    """One printed number beside the truth, `error` and `half_width` in its own unit."""

    what: str
    inside: bool
    error: float
    half_width: float


def finding(what: str, stated: Estimate, truth: float) -> Finding:
    half_width = (stated.high - stated.low) / 2.0
    inside = bool(stated.low <= truth <= stated.high)
    return Finding(what, inside, abs(stated.value - float(truth)), half_width)


def population(text: str, prompts: int, seed: int) -> Trace:
    """A dense trace of a text with routes, one reply a prompt."""
    trees, routes, lengths = [], [], []
    for rng in np.random.default_rng(seed).spawn(prompts):
        easy, length, trust = TEXTS[text](rng)
        tokens = int(np.clip(length, SHORTEST, LONGEST))
        difficulty = concentrations(rng, Mix(text, (easy,)), tokens)
        trees.append(grow(rng, difficulty, ABOUT.depth, ABOUT.nodes, trust))
        routes.append(_routes(tokens + len(trees[-1]), rng))
        lengths.append(tokens)
    trace = dense_trace(ABOUT, text, trees, lengths, CONTEXT)
    return replace(trace, routes=np.concatenate(routes))


def _routes(tokens: int, rng: np.random.Generator) -> Routes:
    """Experts of so many tokens, which prefer those of their prompt's subject."""
    subject = np.log(rng.dirichlet(np.full(EXPERTS, 0.3), LAYERS) + 1e-6)
    score = subject + rng.gumbel(size=(tokens, LAYERS, EXPERTS))
    best = np.argpartition(-score, TOP_K, axis=2)[:, :, :TOP_K]
    return best.astype(np.int16)


def drawn(trace: Trace, chosen: Ints) -> Trace:
    """A trace of these prompts; one that is drawn twice counts as two."""
    size = (trace.end - trace.first)[chosen]
    part = trace.take(ranges(trace.first[chosen], size))
    replies = (trace.replies[place] for place in chosen)
    numbered = tuple(replace(each, prompt=p) for p, each in enumerate(replies))
    return replace(part, replies=numbered, reply=np.repeat(np.arange(len(size)), size))


def unrouted(trace: Trace) -> Trace:
    """The trace evaluated at a table's activation curve."""
    about = replace(trace.about, layers=0, experts=0, top_k=0)
    return replace(trace, about=about, routes=None)


class KnownReplay(ScenarioReplay):
    """The replay of a population at the costs of a shipped table, calibrated on other
    prompts of the text.

    At batch 1 a prompt takes what it takes, whoever comes before it: so each policy is
    simulated once, and a trial sums up the prompts that it drew. In a batch the others
    matter, and every trial is simulated.
    """

    def __init__(self, text: str, batch: int, prompts: int, seed: int) -> None:
        arrays = TraceArrays(unrouted(population(text, prompts, seed)))
        others = unrouted(population(text, prompts // 4, seed + 1))
        table = CostTable.load(data_root() / TABLE / "1.0.3.json")
        table = calibrated_table(calibration_study(others, table), table)
        super().__init__(arrays, table, Scenario(text, 0.0, batch), SEEDS)
        self.policies: dict[str, Policy] = {
            AR: plain_decoding(),
            FULL_TREE: full_tree(arrays.nodes, arrays.depth),
            **{
                name: make()
                for name, make in table_policies(self.table, arrays.depth).items()
            },
        }
        self.oracle = lru_cache(None)(super()._oracle)
        self._kept: dict[object, Floats] = {}

    def by_prompt(self, policy: Policy, seed: int) -> Floats:
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
        total = self.truth(self.policies[policy] if isinstance(policy, str) else policy)
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
    adaptive = known.rate(comparison.adaptive.policy)
    yield from _policies(known, comparison)
    yield from _chosen(known, comparison, adaptive, fixed)
    yield from _advice(comparison, adaptive, fixed)
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
    found: Comparison, adaptive: float, fixed: float, where: str = ""
) -> Iterator[Finding]:
    """Whether it is sure to adapt, and wrongly: the setting is as fast."""
    adapts = found.choice == "adapt" and found.sure
    wrong = adapts and adaptive < fixed * (1.0 + TIE)
    yield Finding(f"{SURE}{where}", adapts, 0.0, 0.0)
    yield Finding(f"{WRONG}{where}", wrong, 0.0, 0.0)


def _policies(known: KnownReplay, comparison: Comparison) -> Iterator[Finding]:
    """Those that are not chosen, over what is chosen and what is not."""
    best = comparison.best
    fixed = known.rate(Fixed("", best.depth, best.width))
    for name in (FULL_TREE, *known.lead):
        stated, rate = comparison.of(name), known.rate(name)
        sums = known.truth(known.policies[name])
        per_step = float(sums[COMMITTED] / sums[REQUESTS])
        yield finding("tokens/s", stated.tokens_per_s, rate)
        yield finding("tokens a step", stated.committed, per_step)
        yield finding("x plain", stated.over[AR], rate / known.rate(AR))
        yield finding("x best fixed", stated.over[BEST_PAIR], rate / fixed)


def _chosen(
    known: KnownReplay, found: Comparison, adaptive: float, fixed: float
) -> Iterator[Finding]:
    """What is chosen on the trace that judges it."""
    plain = known.rate(AR)
    for name, point in ((BEST_PAIR, found.best), (BEST_WIDTH, found.best_width)):
        speed = known.rate(Fixed("", point.depth, point.width))
        stated = found.of(name).over[AR]
        yield finding("best fixed x plain", stated, speed / plain)
    over_plain = found.adaptive.over[AR]
    yield finding("best adaptive x plain", over_plain, adaptive / plain)
    over_fixed = found.adaptive_over_fixed
    yield finding("best adaptive x best fixed", over_fixed, adaptive / fixed)


class KnownCalibration:
    """The first steps of a population's replies, and the experts that they activate."""

    def __init__(self, text: str, prompts: int, seed: int) -> None:
        trace = population(text, prompts, seed)
        self.trace = trace.take(np.flatnonzero(trace.position < CALIBRATED_STEPS))
        draws = [measure_activation(self.trace, seed) for seed in range(TRUE_DRAWS)]
        self.unions = {
            batch: np.mean([each[batch].union for each in draws if each], axis=0)
            for batch in ACTIVATED
        }

    def judged(self, chosen: Ints) -> Iterator[Finding]:
        """What a calibration prints: Brier scores against its curves' on all prompts,
        and experts by tokens."""
        part, known = drawn(self.trace, chosen), self.trace.nodes
        found = calibrate(part)
        true = {
            name: float(np.mean((curve(known) - known.accepted) ** 2))
            for name, curve in (("raw", RAW), (found.chosen, found.curves))
        }
        for name, truth in true.items():
            kind = "raw" if name == "raw" else "calibrated"
            yield finding(f"Brier, {kind}", found.errors[name].brier, truth)
        if len(true) > 1:
            excess = true["raw"] - true[found.chosen]
            yield finding("Brier over", found.errors["raw"].excess_brier, excess)
        activation = measure_activation(part)
        assert activation, "populations have routes"
        for batch, union in self.unions.items():
            for tokens in ACTIVATED[batch]:
                stated = activation[batch].at(tokens)
                yield finding(f"U(t), batch {batch}", stated, union[tokens])


def findings(
    trials: int, prompts: Sequence[int], seed: int, job: tuple[str, str]
) -> list[dict[str, Any]]:
    """Every finding of every trial of one study of one text."""
    name, text = job
    size = POPULATIONS[name]
    if name == "calibrate":
        find = KnownCalibration(text, size, seed).judged
    else:
        known = KnownReplay(text, 4 if name == "batch 4" else 1, size, seed)
        find = partial(judged_replay, known)
    rows = []
    for number in prompts:
        rng = np.random.default_rng((seed, number))
        for trial in range(trials):
            place = {"study": name, "text": text, "prompts": number, "trial": trial}
            found = find(rng.integers(0, size, number))
            rows.extend(place | asdict(each) for each in found)
    return rows


@command
def main(arguments: Sequence[str]) -> int:
    """Judge all studies of all texts, or one; 1 where intervals hold too little."""
    parser = argparse.ArgumentParser(prog="known_acceptance", description=__doc__)
    parser.add_argument("--trials", type=count, default=100, help="of each text")
    parser.add_argument("--prompts", type=count, nargs="*", default=PROMPTS)
    parser.add_argument("--only", choices=STUDIES)
    parser.add_argument("--seed", type=int, default=0, help="of populations and draws")
    parser.add_argument("--out", type=Path, default=Path("acceptance.json"))
    asked = parser.parse_args(arguments)
    answer = Answer(asked.out, [])
    studies = [asked.only] if asked.only else STUDIES
    jobs = [(study, text) for study in studies for text in TEXTS]
    judge = partial(findings, asked.trials, asked.prompts, asked.seed)
    rows: list[dict[str, Any]] = []
    with Pool() as pool:
        for job, found in zip(jobs, pool.imap(judge, jobs), strict=True):
            rows.extend(found)
            answer.keep(rows)
            print(", ".join(job), file=sys.stderr)
    answer.write(rows)
    found = pd.DataFrame(rows)
    show(found)
    return int(misses(found))


def misses(rows: pd.DataFrame) -> bool:
    """Whether a study's intervals hold too little, or its verdicts are wrong."""
    wrong = rows["what"].str.startswith(WRONG)
    stated = rows[~wrong & ~rows["what"].str.startswith(SURE)]
    held = stated.groupby("study")["inside"].mean()
    return bool((held < LEAST).any() or rows[wrong]["inside"].mean() > MOST_WRONG)


def show(rows: pd.DataFrame) -> None:
    """One table a study: a line a number and text, a column a count of prompts."""
    for study_name, own in rows.groupby("study", sort=False):
        print(f"\n{study_name}: % inside, and half-width over what 95 % need")
        by = own.groupby(["what", "text", "prompts"], sort=False)
        print(by.apply(_share, include_groups=False).unstack().to_string())


def _share(own: pd.DataFrame) -> str:
    """Share inside and its error over trials: numbers of one trial err together."""
    by_trial = own.groupby("trial")["inside"].mean()
    error = (
        by_trial.std(ddof=1) / np.sqrt(len(by_trial)) if len(by_trial) > 1 else np.nan
    )
    share = f"{100.0 * by_trial.mean():.0f} +- {100.0 * error:.0f}"
    need = np.percentile(own["error"], 95)
    return share + (f"  {own['half_width'].mean() / need:.2f}" if need > 0.0 else "")


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
