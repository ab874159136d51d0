"""The cost report as a reader's browser gets it."""

import pytest
from markupsafe import escape

from evict_profile.cells import OK, cell_of
from evict_profile.records import replace
from evict_profile.report.cost_page import cost_page
from evict_profile.report.pays import pays
from evict_profile.table import Gate
from tests.report.pages import check_page


@pytest.fixture(scope="session")
def text(view):
    return cost_page(view)


@pytest.fixture(scope="session")
def rich_text(rich_view):
    """The page of the run with all that is optional."""
    return cost_page(rich_view)


def test_pages_are_whole(text, rich_text):
    check_page(text)
    check_page(rich_text)
    assert text.count("<svg") == rich_text.count("<svg") == 6


def test_names_are_escaped(rich_text):
    assert "&lt;b&gt;&amp;tiny" in rich_text
    assert "<b>&tiny" not in rich_text


@pytest.mark.usefixtures("undrawn")
def test_every_gate_is_listed_and_failed_ones_are_named(view, text):
    for gate in view.table.gates:
        assert f"<td>✓ {gate.name}</td><td>{escape(gate.message)}</td>" in text
    gates = (Gate("coverage", False, "half missing"), *view.table.gates)
    failed = cost_page(replace(view, table=replace(view.table, gates=gates)))
    assert f"1 of {len(gates)} export gates failed: coverage." in failed
    assert "<td>✗ failed: coverage</td><td>half missing</td>" in failed
    header, _, _ = failed.partition("</header>")
    assert "Refused by the gate coverage: half missing." in header
    assert "No cost table was made" in header
    assert "Refused" not in text and "No cost table" not in text


@pytest.mark.usefixtures("undrawn")
def test_scaling_is_an_assumption_unless_all_layers_ran(view, text):
    assert "It is an assumption that layers cost the same." in text
    whole = replace(view.table.fit, measured_layers=4, layer_scale=1.0)
    assert "nothing is scaled" in cost_page(
        replace(view, table=replace(view.table, fit=whole))
    )


@pytest.mark.usefixtures("undrawn")
def test_the_reason_for_a_dtype_is_given(view, text):
    assert "Measured in" not in text
    made = replace(view.table.provenance, dtype_reason="emulated else")
    table = replace(view.table, provenance=made)
    assert "Measured in bfloat16: emulated else." in cost_page(
        replace(view, table=table)
    )


def test_cells_that_were_not_measured_are_listed(rich_view, text, rich_text):
    count = rich_view.table.provenance.skipped["infeasible"]
    assert f"Not measured: {count} infeasible cells." in rich_text
    frame = rich_view.fitted.frame
    for row in frame[frame["status"] != OK].itertuples():
        assert f"<td>{cell_of(row)}</td>" in rich_text
    assert "No cell was skipped." in text


def test_the_page_opens_with_what_decides_and_the_command(view, text):
    opening = text[: text.index("<section")]
    assert pays(view.table) in opening
    assert "evict-profile advise --model" in opening


def test_cost_over_n_and_u_comes_first_and_the_fit_s_figures_are_folded(text):
    """A reader sees three drawings before anything is opened."""
    before, folded = text.split("figures of the cells")
    assert before.index("cost over n and U") < before.index("latency of a step")
    assert before.count("<svg") == 3
    assert folded[: folded.index("</details>")].count("<svg") == 3
