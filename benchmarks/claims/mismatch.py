"""What a wrong table costs: rules decide with it, and steps take their true time.

Scaled and shifted tables, another machine's, another text's calibration, and the table
of an engine that profiles itself at its start.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims.evict import rule
from benchmarks.claims.worlds import EPYC, World
from benchmarks.wrong_tables import start_up_profiles
from evict_profile.fit.export import with_workload
from evict_profile.io import write_text
from evict_profile.records import replace
from evict_profile.replay.compare import MIXED
from evict_profile.replay.policies import RATE_DEPTH, RATIO
from evict_profile.replay.sums import tokens_per_s
from evict_profile.report.render import colours
from evict_profile.report.style import ACCENT, BAD, QUIET, SECOND, canvas, inline_svg
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from evict_profile.table.parts import TermCost

RULES, BATCHES = (RATIO, RATE_DEPTH), (1, 4, 16)
SHIFT_US = 5000.0
"""About half of a plain step."""


@dataclass(frozen=True)
class Loss:
    """Share of throughput lost against deciding with the true table."""

    table: str
    rule: str
    batch: int
    lost: Estimate


def losses(world: World) -> Iterator[Loss]:
    """Of code and prose mixed, then of each text with the other's calibration."""
    wrong = wrong_tables(world.table)
    for batch in BATCHES:
        yield from _lost(world, MIXED, batch, wrong)
    for text, other in (("code", "prose"), ("prose", "code")):
        tables = {f"{other}'s calibration on {text}": world.calibrated(other)}
        true = world.calibrated(text)
        for batch in BATCHES:
            yield from _lost(world, text, batch, tables, true)


def _lost(
    world: World,
    text: str,
    batch: int,
    wrong: dict[str, CostTable],
    true: CostTable | None = None,
) -> Iterator[Loss]:
    replay = world.replay(text, batch, table=true)
    depth, estimate = replay.arrays.depth, replay.bootstrap.estimate
    for name in RULES:
        right = tokens_per_s(replay.sums(rule(replay.table, name, depth)))
        for label, table in wrong.items():
            speed = tokens_per_s(replay.sums(rule(table, name, depth)))
            yield Loss(label, name, batch, estimate(1.0 - speed / right))


def wrong_tables(true: CostTable) -> dict[str, CostTable]:
    def scaled(factor: float) -> CostTable:
        return with_costs(true, lambda t: factor * t.us_per_unit)

    def shifted(by_us: float) -> CostTable:
        return with_costs(
            true, lambda t: max(0.0, t.us_per_unit + by_us * (t.feature == "one"))
        )

    return {
        "costs times 0.5": scaled(0.5),
        "costs times 2": scaled(2.0),
        "costs less 5 ms": shifted(-SHIFT_US),
        "costs plus 5 ms": shifted(SHIFT_US),
        "another machine's table": of_workload(CostTable.load(EPYC), true),
        **start_up_profiles(true),
    }


def with_costs(table: CostTable, us: Callable[[TermCost], float]) -> CostTable:
    """The table with other verification costs; a shift is of its layers."""
    layers = tuple(replace(t, us_per_unit=us(t)) for t in table.fit.layers)
    fit = replace(table.fit, layers=layers)
    return replace(table, fit=fit).read_anew()


def of_workload(table: CostTable, true: CostTable) -> CostTable:
    """A table with the workload and the drafting of another."""
    return with_workload(table, true.acceptance, true.activation, true.drafting)


def draw(found: list[Loss], out: Path) -> None:
    """Losses with intervals: a panel a rule, a line a table, a colour a batch."""
    labels = list(dict.fromkeys(each.table for each in found))
    shades = dict(zip(BATCHES, (ACCENT, SECOND, BAD), strict=True))
    with canvas(9.6, 4.4) as figure:
        panels = figure.subplots(1, len(RULES), sharex=True, sharey=True)
        for axes, name in zip(panels, RULES, strict=True):
            for loss in (each for each in found if each.rule == name):
                place = BATCHES.index(loss.batch)
                y = len(labels) - labels.index(loss.table) - 0.2 * (place - 1)
                ends = [[100.0 * loss.lost.low], [100.0 * loss.lost.high]]
                look = {"color": shades[loss.batch], "linewidth": 1.1}
                axes.hlines([y], *ends, **look)
                axes.plot([100.0 * loss.lost.value], [y], "o", color=look["color"])
            axes.axvline(0.0, color=QUIET, linewidth=0.8)
            axes.set_title(name)
            axes.set_xlabel("throughput lost, %")
            axes.set_yticks(range(len(labels), 0, -1), labels)
        for batch, colour in shades.items():
            panels[-1].plot([], [], "o", color=colour, label=f"batch {batch}")
        figure.legend(loc="outside lower center", ncols=len(shades))
        label = "Throughput lost by rules that decide with a wrong table"
        drawing = str(inline_svg(figure, "mismatch", label))
    style = f"<style>svg{{font-family:sans-serif}}{colours()}</style>"
    opening = '<svg xmlns="http://www.w3.org/2000/svg" '
    drawing = drawing.replace("<svg ", opening, 1).replace(">", f">{style}", 1)
    write_text(drawing + "\n", out)
