"""What to do on real GPUs, and what it costs to believe a start-up profile there.

`verdicts` prices synthetic text of three kinds at four batch sizes with each composed
table that is shipped: plain decoding, a fixed width, or adapting, with intervals over
prompts. Then the same adaptive policy decides with what engines see that profile
themselves at start-up: no routed experts, or all tokens alike. True prices are charged
either way, so the difference is what believing the profile loses. `growth` prints how
shipped tables grow with n at batch 1, measured ones beside composed ones.

    python -m benchmarks.composed_tables verdicts --out verdicts.json
    python -m benchmarks.composed_tables growth

Verdicts assume what `evict-profile replay` does: uniform routing, and levels of
drafting that each cost as one of the target's layers and its head. `growth` also has
text that activates 22 % fewer experts beyond the first token's, as in
`benchmarks.public_prices`. A verdict takes some seconds; what is done is in the
`.partly` file from the first table on.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks.common import Answer, command, restart_on_one_thread
from benchmarks.public_prices import ACTIVATED
from evict_profile.io import data_root, finite
from evict_profile.records import to_mapping
from evict_profile.replay.compare import Scenario, ScenarioReplay
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import RATE
from evict_profile.replay.simulate import StepPrices
from evict_profile.replay.verdict import judge, percent
from evict_profile.replay.wrong_tables import start_up_dummies, study_wrong_tables
from evict_profile.report.tables import Rows, print_rows
from evict_profile.stats import Estimate, Floats, Ints
from evict_profile.table import ActivationCurve, CostTable
from evict_profile.traces.synthetic import mix_of, synthetic_trace

TEXTS = ("easy", "bimodal", "hard")
PROMPTS = {1: 16, 4: 16, 16: 32, 64: 64}
"""By batch: enough for intervals, and for every request of a batch to be another."""

TOKENS, CONTEXT, ORDERS = 32, 1024, 1
WIDTHS = (8, 32, 64)

console = Console()


@dataclass(frozen=True)
class Advice:
    """What to do with one table, text and batch; throughputs over plain decoding.

    Attributes:
        settled: whether the intervals settle the choice.
        fixed: the strongest setting that knows no cost, in hindsight.
        none, alike: throughput of "rate" believing a dummy, over its own with the
            right prices.
    """

    table: str
    text: str
    batch: int
    choice: str
    settled: bool
    fixed: str
    fixed_over_plain: Estimate
    adaptive_over_plain: Estimate
    adaptive_over_fixed: Estimate
    none: Estimate
    alike: Estimate

    def __str__(self) -> str:
        gain = f"{self.fixed} {percent(self.fixed_over_plain)}"
        return (
            f"{self.choice}{'' if self.settled else '?'}: {gain}, adaptive "
            f"{percent(self.adaptive_over_plain)}, believing none "
            f"{percent(self.none)}, alike {percent(self.alike)}"
        )


def shipped(origin: str) -> list[Path]:
    """The newest table of each kind under a folder of `cost_tables/`."""
    found = sorted((data_root() / "cost_tables" / origin).glob("*/*/*/*.json"))
    return list({path.parent: path for path in found}.values())


def on_real_text(table: CostTable) -> ActivationCurve:
    """The unions of real text."""
    uniform, top_k = np.array(table.activation.union), float(table.model.moe.top_k)
    union = np.minimum(uniform, top_k + ACTIVATED * (uniform - top_k))
    return ActivationCurve("22 % fewer than uniform", True, tuple(union.tolist()))


@cache
def trace_of(text: str, prompts: int, tokens: int) -> TraceArrays:
    """A synthetic trace; every table replays the same."""
    return TraceArrays(synthetic_trace(mix_of(text), prompts, tokens, CONTEXT))


class AtOneContext(StepPrices):
    """Prices of steps that hardly grow: read once for each number of tokens."""

    def verify_us(self, tokens: Ints, union: Floats, context: float) -> Floats:
        """At the activation curve's union, as a trace without routes has it."""
        found: Floats = self._us[tokens]
        return found

    @cached_property
    def _us(self) -> Floats:
        tokens = np.arange(self.batch * (self.arrays.nodes + 1) + 1)
        unions = self.expected_union(tokens.astype(np.float64))
        return super().verify_us(tokens, unions, CONTEXT)


def advise(table: CostTable, text: str, batch: int, tokens: int = TOKENS) -> Advice:
    """The verdict on one text and batch, and what each dummy leaves of it."""
    arrays = trace_of(text, PROMPTS[batch], tokens)
    replay = ScenarioReplay(arrays, table, Scenario(text, 0.0, batch), ORDERS)
    replay.prices = AtOneContext(table, arrays, batch)
    verdict = judge(replay.compare())
    dummies = start_up_dummies(replay.table)
    found = study_wrong_tables(replay, dummies, RATE).results
    alike, none = (each.over_right for each in found)
    return Advice(
        name_of(table),
        text,
        batch,
        verdict.choice,
        verdict.settled,
        verdict.fixed,
        verdict.fixed_over_plain,
        verdict.adaptive_over_plain,
        verdict.adaptive_over_fixed,
        none,
        alike,
    )


def name_of(table: CostTable) -> str:
    """Model, device and engine."""
    return f"{table.key.model} on {table.key.gpu}, {table.key.engine}"


def verdicts(paths: Sequence[Path], answer: Answer) -> list[Advice]:
    """All texts and batches of all tables; kept after each table."""
    found: list[Advice] = []
    for path in track(paths, "replaying", console=console):
        table = CostTable.load(path)
        for text in TEXTS:
            for batch in PROMPTS:
                found.append(advise(table, text, batch))
                at = f"{found[-1].table}, {text}, batch {batch}"
                console.print(f"{at}: {found[-1]}", soft_wrap=True, highlight=False)
        answer.keep(finite(to_mapping(found)))
    return found


def show_losses(found: Sequence[Advice]) -> None:
    """Medians and the worst over tables, of losses by text and batch."""
    rows = pd.DataFrame(
        {
            "text": each.text,
            "batch": each.batch,
            "none": 1.0 - each.none.value,
            "alike": 1.0 - each.alike.value,
        }
        for each in found
    )
    cells = []
    for (text, batch), own in rows.groupby(["text", "batch"], sort=False):
        medians = (f"{own[name].median():.0%}" for name in ("none", "alike"))
        worst = (f"{own[name].max():.0%}" for name in ("none", "alike"))
        cells.append((text, batch, *medians, *worst))
    head = ("text", "batch", "no experts", "all alike", "worst: none", "alike")
    print_rows(console, Rows(head, cells), "lost by believing a start-up profile")


def growth(table: CostTable) -> Iterator[str]:
    """C(n)/C(1) at batch 1 by the union, all tokens alike, and one expert's share."""
    context, tokens = min(table.axes.context), np.array([1, *WIDTHS], dtype=np.float64)
    top_k, experts = table.model.moe.top_k, table.model.moe.num_experts
    alike = table.cost.price(tokens, float(top_k), context, 1)
    for activation in (on_real_text(table), table.activation):
        us = table.cost.price(tokens, activation.at(tokens, 1), context, 1)
        yield " ".join(f"{each:.2f}" for each in us[1:] / us[0])
    yield " ".join(f"{each:.2f}" for each in alike[1:] / alike[0])
    narrow, wide = table.cost.price(32.0, np.array([top_k, experts]), context, 1)
    yield f"{(wide - narrow) / (experts - top_k) / alike[0]:.2%}"


def show_growth(paths: Sequence[Path]) -> None:
    """One line a table."""
    tables = [CostTable.load(path) for path in paths]
    cells = [(name_of(each), each.origin, *growth(each)) for each in tables]
    at = f"C({'), C('.join(map(str, WIDTHS))}) over C(1)"
    head = ("table", "origin", f"{at}: 22 % fewer", "uniform", "all alike", "an expert")
    print_rows(console, Rows(head, cells))


@command
def main(arguments: Sequence[str]) -> None:
    """Run one of the two over all shipped tables, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("verdicts", "growth"))
    parser.add_argument("tables", type=Path, nargs="*", help="else all composed ones")
    parser.add_argument("--out", type=Path, default=Path("verdicts.json"))
    asked = parser.parse_args(arguments)
    if asked.what == "growth":
        show_growth(asked.tables or shipped("composed") + shipped("."))
        return
    paths = asked.tables or shipped("composed")
    answer = Answer(asked.out, paths)
    found = verdicts(paths, answer)
    show_losses(found)
    answer.write(finite(to_mapping(found)))


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
