"""What a terminal shows of a workload in a table."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from evict_profile.cells import cell_of
from evict_profile.fit.fitted import Fitted, fitted_of_table
from evict_profile.report.console import show_fit
from evict_profile.report.cost_page import page
from evict_profile.report.data import View
from evict_profile.report.tables import show_diff, show_table
from evict_profile.table import load_table


def test_a_workload_has_a_line_each(workload_table: Path) -> None:
    """Growth, acceptance and drafting, each with what it was measured on."""
    console = Console(record=True, width=200)
    show_table(console, load_table(workload_table))
    shown = console.export_text()
    assert "union growth: code, batch 1" in shown
    assert (
        "acceptance: code, 100 trees, calibration error on unseen text 0.200" in shown
    )
    assert "drafting: code, a test, batch 1: 3 levels in 0.45 ms" in shown


def test_a_workload_is_a_difference(saved_table: Path, workload_table: Path) -> None:
    """Beside the prices that it moved."""
    console = Console(record=True, width=200)
    before, after = map(load_table, (saved_table, workload_table))
    assert show_diff(console, before, after)
    shown = console.export_text()
    assert "acceptance: not measured -> acceptance: code" in shown
    assert "step cost -" in shown


def test_the_report_names_the_workload(workload_table: Path) -> None:
    """And is drawn at its growth."""
    fitted, table = fitted_of_table(workload_table)
    text = page(View(fitted, table))
    assert "with the tokens is measured: code." in text
    assert "holds acceptance as measured on code" in text
    assert View(fitted, table).ratios[-1].union == 4.0 + 0.25 * 15


def test_a_cell_that_failed_is_named_with_its_reason(fitted: Fitted) -> None:
    """One line each."""
    frame = fitted.frame.copy()
    frame.loc[0, ["status", "reason"]] = ["failed", "no execution plans"]
    cell = cell_of(frame.loc[0])
    console = Console(record=True, width=200)
    show_fit(console, replace(fitted, frame=frame))
    words = f"not measured (failed): {cell}: no execution plans"
    assert words in console.export_text()
