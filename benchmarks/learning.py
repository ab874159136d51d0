"""How much throughput a wrong table loses, as it is and corrected by served steps.

    python -m benchmarks.learning [--table TABLE.json] [--out losses.json]

An engine that profiles itself with dummy tokens, as vLLM and SGLang do, sees tokens
that activate the same experts. The rule "rate" decides with such a start-up profile, or
with the right table, and each step takes its true cost, with noise. Learning adds the
time of each verification (`evict_profile.runtime.learning`). Texts are synthetic,
tables the estimated ones that are shipped. Exit code 1 where a bound of `BOUNDS` is
missed, or where the profile alone loses less than `LEAST` at batch 1: then U would not
matter.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import Answer, command, restart_on_one_thread
from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import RATE, Guided
from evict_profile.replay.sums import tokens_per_s
from evict_profile.table import ActivationCurve, CostTable
from evict_profile.traces.synthetic import synthetic_trace

TEXTS, BATCHES, SEEDS = ("easy", "bimodal", "hard"), (1, 4, 16), 6
CONTEXT = 1024
LEAST = 0.05
NOISE = 0.03
"""Of a verification's time, one standard deviation."""

BOUNDS = {
    ("start-up profile", "median"): 0.01,
    ("start-up profile", "max"): 0.04,
    ("right table", "median"): 0.005,
}
"""Share of throughput that a table may lose where it learns."""


class Learning(Guided):
    """The rule with the time of each verification, less what is known beside it."""

    def __init__(self, depth: int, table: CostTable, noise: float = NOISE) -> None:
        super().__init__(RATE, depth, table)
        self._rng, self._noise = np.random.default_rng(0), noise
        self._table = table

    def observe(self, committed: int, step_us: float) -> None:
        assert self._step is not None, "a step is begun before it is observed"
        plan, drafting = self._step.last_plan, self._table.drafting
        batch, beside_us = len(plan.host_keep), 0.0
        if drafting:
            clock, levels = drafting.at(batch), self._step.levels
            beside_us = clock.overhead_us(levels)
            beside_us += clock.token_us * (plan.tokens - batch)
        noise = 1.0 + self._noise * self._rng.standard_normal()
        self._step.observe(committed, step_us, (step_us - beside_us) * noise)


@command
def main(arguments: Sequence[str]) -> int:
    """Print the losses; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path, action="append", help="repeatable")
    parser.add_argument("--out", type=Path, help="JSON of every loss")
    asked = parser.parse_args(arguments)
    shipped = sorted((data_root() / "cost_tables/composed").rglob("*.json"))
    answer = Answer(asked.out, asked.table or []) if asked.out else None
    rows = []
    for path in asked.table or shipped:
        rows += list(losses(CostTable.load(path)))
        print(path, file=sys.stderr)
    if answer:
        answer.write(rows)
    found = pd.DataFrame(rows)
    by = found.groupby(["batch", "table", "learns"], sort=False)["loss"]
    print((100.0 * by.agg(["median", "max"])).round(2).to_string())
    return int(bool([*missed(found)]))


def missed(found: pd.DataFrame) -> Iterator[str]:
    """A sentence for each bound that the losses miss."""
    learnt = found[found["learns"]].groupby(["batch", "table"])["loss"]
    for (table, statistic), bound in BOUNDS.items():
        for batch, loss in learnt.agg(statistic).xs(table, level="table").items():
            if loss > bound:
                sentence = (
                    f"{table}, batch {batch}: {statistic} {loss:.1%} > {bound:.1%}"
                )
                print(f"missed: {sentence}", file=sys.stderr)
                yield sentence
    alone = found[~found["learns"] & (found["batch"] == 1)]
    if alone[alone["table"] == "start-up profile"]["loss"].median() < LEAST:
        yield f"a start-up profile loses less than {LEAST:.0%}"


def losses(table: CostTable) -> Iterator[dict[str, object]]:
    """The share of throughput lost, a row a text, batch, table and way."""
    for text in TEXTS:
        arrays = TraceArrays(synthetic_trace(text, context=CONTEXT))
        for batch in BATCHES:
            replay = ScenarioReplay(arrays, table, Scenario(text, 0.0, batch), SEEDS)
            right = speed(replay, replay.table, learns=False)
            tables = {
                "right table": replay.table,
                "start-up profile": start_up_profile(replay.table),
            }
            for name, each in tables.items():
                for learns in (False, True):
                    loss = 1.0 - speed(replay, each, learns) / right
                    place = {"cost": str(table.path), "text": text, "batch": batch}
                    yield place | {"table": name, "learns": learns, "loss": loss}


def speed(replay: ScenarioReplay, table: CostTable, learns: bool) -> float:
    """Tokens a second in the median of prompts and seeds."""
    depth = replay.arrays.depth
    make = (
        partial(Learning, depth, table)
        if learns
        else partial(Guided, RATE, depth, table)
    )
    return float(np.median(tokens_per_s(replay.sums(make))))


def start_up_profile(table: CostTable) -> CostTable:
    """The table as an engine measures it with tokens that choose the same experts."""
    flat = ActivationCurve("identical tokens", True, (float(table.cost.shape.top_k),))
    return replace(table, activation=flat).read_anew()


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
