"""Sentences that carry a condition."""

from dataclasses import replace

from evict_profile.cells import Cell
from evict_profile.report import prose
from evict_profile.report.findings import Dip
from evict_profile.report.provenance import dtype, scaling, skipped, term_range
from evict_profile.report.view import View
from evict_profile.stats import MedianInterval
from evict_profile.table import Gate


def test_failed_gates_are_named(view: View) -> None:
    """A failure is not hidden behind a count."""
    gates = (Gate("coverage", False, "half missing"), *view.table.gates)
    table = replace(view.table, gates=gates)
    assert prose.gates(replace(view, table=table)).endswith("failed: coverage.")


def test_dip_states_both_intervals() -> None:
    """A reader can check the claim."""
    narrow = Cell("layers", 2, 8, 64, 1, "balanced")
    wide = replace(narrow, width=4)
    said = prose.dip(
        Dip(
            narrow,
            wide,
            MedianInterval(20e3, 19e3, 21e3, 8),
            MedianInterval(10e3, 9e3, 11e3, 8),
        )
    )
    assert "n=4 was measured 50.0% cheaper than n=2" in said
    assert "[9.00, 11.0] against 20.0 ms [19.0, 21.0]" in said


def test_unmeasured_nuisance_says_how_to_measure_it() -> None:
    """One sentence of fact, one of what to do."""
    assert prose.nuisance(()).startswith("Not measured")
    assert "grid.split" in prose.nuisance(())


def test_told_ratios_hold_the_widest(view: View) -> None:
    """The headline never leaves out the end of the axis."""
    told = prose.told_ratios(view.ratios)
    assert told[-1] == view.ratios[-1]
    assert view.ratios[0] not in told


def test_scaling_is_an_assumption_unless_all_layers_ran(view: View) -> None:
    """Two of four layers ran here."""
    assert "assumption" in scaling(view)
    whole = replace(view.table.fit, measured_layers=4, layer_scale=1.0)
    table = replace(view.table, fit=whole)
    assert "nothing is scaled" in scaling(replace(view, table=table))


def test_the_reason_for_a_dtype_is_given(view: View) -> None:
    """As the runner gave it; nothing where it did not choose."""
    assert dtype(view) == ""
    made = replace(view.table.provenance, dtype_reason="emulated else")
    table = replace(view.table, provenance=made)
    assert "emulated else" in dtype(replace(view, table=table))


def test_skipped_cells_are_counted(view: View) -> None:
    """By the kind of reason."""
    count = view.table.provenance.skipped["infeasible"]
    assert skipped(view) == f"Not measured: {count} infeasible cells."


def test_term_range_names_rows() -> None:
    """The crowd's ramp runs over rows per expert."""
    assert term_range("crowd", 2.0, 4.0) == "rows per expert from 2 to 4"
    assert term_range("union", 0.0, None) == "always"
