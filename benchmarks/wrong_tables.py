"""How much throughput deciding with a start-up profile loses.

    python -m benchmarks.wrong_tables [--table TABLE.json] [--out losses.json]

The rule "rate" decides with a wrong table, and each step is charged its true cost. An
engine that profiles itself with dummy tokens, as vLLM and SGLang do, sees identical
tokens, which activate the same experts, or no routed experts. The texts are synthetic,
the tables are the estimated ones that are shipped. Exit code 1 where the median loss at
one request is below `LEAST`: then U would not matter.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.common import Answer, command, restart_on_one_thread
from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import RATE, table_policies
from evict_profile.replay.sums import tokens_per_s
from evict_profile.stats import Estimate, Floats
from evict_profile.table import ActivationCurve, CostTable
from evict_profile.traces.synthetic import synthetic_trace

LEAST = 0.05
TEXTS, BATCHES, SEEDS = ("easy", "bimodal", "hard"), (1, 4, 16, 64), 3
CONTEXT = 1024


@command
def main(arguments: Sequence[str]) -> int:
    """Print the losses; 1 where they are smaller than `LEAST`."""
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
    by = found.groupby(["text", "batch", "wrong"], sort=False)["loss"]
    print((100.0 * by.agg(["median", "max"])).round(1).unstack().to_string())
    alone = found[found["batch"] == 1].groupby(["text", "wrong"])["loss"].median()
    return int(alone.min() < LEAST)


def losses(table: CostTable) -> Iterator[dict[str, object]]:
    """A row a text, batch and wrong table: the share of throughput lost."""
    for text in TEXTS:
        arrays = TraceArrays(synthetic_trace(text, context=CONTEXT))
        for batch in BATCHES:
            replay = ScenarioReplay(arrays, table, Scenario(text, 0.0, batch), SEEDS)
            for wrong, loss in lost(replay).items():
                place = {"table": str(table.path), "text": text, "batch": batch}
                ends = {"loss": loss.value, "low": loss.low, "high": loss.high}
                yield place | {"wrong": wrong} | ends


def lost(replay: ScenarioReplay) -> dict[str, Estimate]:
    """Share of throughput lost by each wrong table."""

    def speed(table: CostTable) -> Floats:
        return tokens_per_s(
            replay.sums(table_policies(table, replay.arrays.depth)[RATE])
        )

    right, estimate = speed(replay.table), replay.bootstrap.estimate
    wrong = start_up_profiles(replay.table)
    return {name: estimate(1.0 - speed(table) / right) for name, table in wrong.items()}


def start_up_profiles(table: CostTable) -> dict[str, CostTable]:
    """The table as an engine would measure it that profiles itself at its start."""
    experts = {"identical tokens": table.cost.shape.top_k, "no routed experts": 0}
    return {
        name: replace(
            table, activation=ActivationCurve("another", True, (float(union),))
        ).read_anew()
        for name, union in experts.items()
    }


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
