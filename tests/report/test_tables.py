"""What a terminal shows."""

import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from evict_profile.cells import cell_of
from evict_profile.drafting import DraftClock, Drafting, TimedRound
from evict_profile.fit.fitted import fitted_of_table
from evict_profile.records import replace
from evict_profile.report.console import Rows, print_rows
from evict_profile.report.cost_page import cost_page
from evict_profile.report.data import View
from evict_profile.report.fits import show_fit
from evict_profile.report.tables import show_diff, show_table
from evict_profile.sweep.latency import Samples
from evict_profile.table import CostTable


def shown(table):
    console = Console(record=True, width=80)
    show_table(console, table)
    return console.export_text()


def test_a_table_is_never_folded_or_cut():
    """However narrow the terminal; nothing in it is read as markup."""
    console = Console(record=True, width=10)
    row = ("a long name [bold] of a policy", "1.23 (1.10..1.30)")
    print_rows(console, Rows(("policy", "over plain decoding"), [row]), "a title")
    title, head, _, line = console.export_text().splitlines()
    assert title == "a title"
    assert head.split() == ["policy", "over", "plain", "decoding"]
    assert all(cell in line for cell in row)


def test_show_starts_without_heavy_libraries(saved_table):
    heavy = ["matplotlib", "pandas", "pyarrow", "scipy", "torch"]
    program = (
        "import sys; from evict_profile.cli import app\n"
        f"app(['show', {str(saved_table)!r}], standalone_mode=False)\n"
        f"print('loaded', [name for name in {heavy} if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "x C(1)" in shown
    assert shown.splitlines()[-1] == "loaded []"


def test_costs_stand_before_their_evidence(saved_table):
    text = shown(CostTable.load(saved_table))
    places = [text.index(w) for w in ("pays at batch", "step cost", "measured:")]
    assert places == sorted(places)


def test_tokens_of_a_step_are_said_to_be_of_the_whole_batch(saved_table):
    _, printed = shown(CostTable.load(saved_table)).split("step cost\n")
    assert "   tokens, all requests   " in printed.splitlines()[0]


def test_a_workload_has_a_line_each(workload_table):
    text = shown(CostTable.load(workload_table))
    assert "activation: code, batch 1" in text
    assert "acceptance: code, 100 trees, calibration error on unseen text 0.2" in text
    assert "drafting: code, a test, batch 1: 3 levels in 0.45 ms" in text
    assert "deciding" not in text


def test_what_deciding_adds_is_shown_where_it_was_measured(workload_table):
    clock = DraftClock(1, (0.0, 100.0), 40.0, 0.0, mechanism_us=250.0)
    drafting = Drafting("none", "a test", (clock,))
    text = shown(replace(CostTable.load(workload_table), drafting=drafting))
    said = "1 levels in 0.10 ms, 0.04 ms fixed, deciding 250 us"
    assert said in " ".join(text.split())


def test_rounds_are_shown_as_ratios_to_the_tables_own_steps(workload_table):
    table = CostTable.load(workload_table)
    parts_us = table.cost.latency_us(np.array([2.0, 4.0]), 4.0, 64.0, 1.0) + 100.0
    rounds = tuple(
        TimedRound(width, 4.0, 64.0, ratio * us)
        for width, ratio, us in zip((2, 4), (1.25, 1.5), parts_us, strict=True)
    )
    clock = DraftClock(1, (0.0, 100.0), 0.0, 0.0, rounds=rounds)
    text = shown(replace(table, drafting=Drafting("none", "a test", (clock,))))
    assert "rounds: batch 1, widths 2, 4: 1.25..1.50 of forward and drafting" in text


@pytest.mark.parametrize(
    ("finished", "clock", "said"),
    [
        ("2026-11-21T09:00", "cpu", True),
        ("2026-11-22T09:00", "cpu", False),
        ("2026-11-21T09:00", "datasheet", False),
    ],
)
def test_a_table_of_one_day_says_what_a_day_adds(saved_table, finished, clock, said):
    table = CostTable.load(saved_table)
    made = replace(
        table.provenance, started="2026-11-21T08:00", finished=finished, clock=clock
    )
    assert ("days: one" in shown(replace(table, provenance=made))) == said


def test_scaled_costs_say_what_the_scaling_test_found(saved_table):
    table = CostTable.load(saved_table)
    words = " ".join(shown(table).split())
    assert "scaled by 2; no scaling test was run" in words
    test = {"error": -0.076, "error_low": -0.09, "error_high": -0.068}
    made = replace(table.provenance, scaling_test=test)
    words = " ".join(shown(replace(table, provenance=made)).split())
    assert "missed by -7.6% (95 % interval -9.0%..-6.8%)" in words


def test_a_workload_is_a_difference(saved_table, workload_table):
    console = Console(record=True, width=200)
    before, after = map(CostTable.load, (saved_table, workload_table))
    assert show_diff(console, before, after)
    shown = console.export_text()
    assert "acceptance: not measured before, code, 100 trees" in shown
    assert "step cost -" in shown


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_the_workload(workload_table):
    fitted, table = fitted_of_table(workload_table)
    text = cost_page(View(fitted, table))
    assert "the tokens activate is measured: code." in text
    assert "holds acceptance as measured on code" in text


def test_a_cell_that_failed_is_named_with_its_reason(fitted):
    frame = fitted.frame.copy()
    frame.loc[0, ["status", "reason"]] = ["failed", "no execution plans"]
    cell = cell_of(frame.loc[0])
    console = Console(record=True, width=200)
    show_fit(console, replace(fitted, samples=Samples(frame)))
    words = f"not measured (failed): {cell}: no execution plans"
    assert words in console.export_text()
