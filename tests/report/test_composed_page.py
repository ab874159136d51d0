"""The page of a composed table names its origin and what it leaves out."""

import pandas as pd
import pytest

from evict_profile.records import replace
from evict_profile.report import public
from evict_profile.report.public import composed_page, growths
from evict_profile.report.tables import break_even_rows
from evict_profile.table import BatchActivation, CostTable, ServedStep


def cells_beside(path):
    return pd.read_parquet(path.with_suffix(".parquet"))


def test_the_page_says_that_nothing_was_measured(composed_path):
    page = composed_page(CostTable.load(composed_path), cells_beside(composed_path))
    assert page == composed_path.with_suffix(".html").read_text()
    for words in (
        "composed from public rows, not measured",
        "Apache-2.0",
        "C(n)/C(1) at batch 1 is an upper bound",
        "launch gaps and the host".capitalize(),
        "rows of other routings",
    ):
        assert words in page


def test_ratios_grow_with_the_union_alone(composed_path):
    found = public.ratio_rows(CostTable.load(composed_path))
    rows = {row[1]: row for row in found.cells[:3]}
    last = {name: float(str(row[-1])) for name, row in rows.items()}
    assert last["uniform routing"] > 1.5 * last["identical tokens"]
    assert all(row[3] == "1.00" for row in rows.values())


def test_each_batch_is_drawn_at_the_experts_that_it_activates(composed_path):
    """A text that repeats itself at batch 4 costs less there, and not at batch 1."""
    table = CostTable.load(composed_path)
    one = table.activation.union
    four = BatchActivation(4, tuple(union / 2.0 for union in one))
    known = (BatchActivation(1, one), four)
    routed = replace(table, activation=replace(table.activation, by_batch=known))
    before, after = (
        {each.batch: each.us for each in growths(t) if each.routing == public.UNIFORM}
        for t in (table, routed)
    )
    assert after[1] == pytest.approx(before[1])
    assert (after[4] < before[4]).all()


def test_parts_of_a_layer_add_up(composed_path):
    cells = cells_beside(composed_path)
    rows = public.part_rows(cells)
    wide = cells[(cells["width"] == 64) & (cells["batch"] == 1)].dropna(
        subset="experts_us"
    )
    wide = wide[wide["context"] == wide["context"].min()]
    added = sum(float(str(cell)) for cell in rows.cells[-1][1:])
    assert abs(added - wide["clock_us"].iloc[-1]) < 0.5


def test_the_page_states_the_accepted_length_at_which_drafts_pay(composed_path):
    table = CostTable.load(composed_path)
    page = composed_page(table, cells_beside(composed_path))
    rows = break_even_rows(table)
    assert rows.head[:3] == ("batch", "K=1", "K=2")
    assert all(str(cell) in page for cell in rows.cells[0])
    ratio = ServedStep.of(table).ratio(1, 4, 3, 512).value
    assert float(rows.cells[0][3]) == pytest.approx(ratio, abs=0.01)
    # The page draws the growth of each batch.
    drawing = public.growth_curves(table)
    assert all(f"batch {batch}" in drawing for batch in table.axes.batch)
    assert drawing in page


def test_a_table_without_drafting_states_no_accepted_length(saved_table):
    assert break_even_rows(CostTable.load(saved_table)).cells == ()
