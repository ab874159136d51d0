"""The page of many tables, and why others are missing."""

import pytest

from evict_profile.records import replace
from evict_profile.report import many as pages
from evict_profile.report.many import by_device, many_tables_page, ratios
from evict_profile.table import CostTable


def test_ratios_are_over_one_token_where_the_smallest_width_is_two(saved_table):
    table = CostTable.load(saved_table)
    wide = replace(table, axes=replace(table.axes, width=(2, 4, 8, 16)))
    cost_us = table.costs(1, 64).step_cost_us
    assert ratios(wide, [2, 99]) == [pytest.approx(cost_us[2] / cost_us[1]), None]


def test_shown_widths_are_spread_evenly_and_end_with_the_largest(saved_table):
    table = CostTable.load(saved_table)
    many = replace(table, axes=replace(table.axes, width=tuple(range(1, 34))))
    shown = pages.shown_widths([table, many])
    assert len(shown) <= pages.MAX_WIDTHS
    assert shown[-1] == 33
    assert pages.shown_widths([]) == []


def test_a_device_shows_the_least_of_its_kernels(composed_path):
    table = CostTable.load(composed_path)
    [stairs, *others] = table.staircases
    cost_us = list(stairs.step_cost_us)
    cost_us[32] *= 2.0
    costlier = replace(stairs, step_cost_us=tuple(cost_us))
    worse = replace(table, staircases=(costlier, *others))
    elsewhere = replace(worse, key=replace(table.key, gpu="other"))
    rows = by_device([worse, table, elsewhere])
    [times] = ratios(table, [32])
    [row] = rows.cells
    shown = dict(zip(rows.head, row, strict=True))
    assert shown["model"] == "qwen3-30b-a3b"
    assert shown[table.key.where] == times
    assert shown[elsewhere.key.where] == pytest.approx(2.0 * times)


def test_the_page_links_reports_and_says_why_tables_are_missing(saved_table, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/report.html").touch()
    outcomes = {
        "a": {"table": str(saved_table)},
        "b": {"table": str(saved_table)},
        "c": {"why": "slope: an expert implies <0.09> of peak"},
    }
    page = many_tables_page("Both", outcomes, tmp_path)
    table = CostTable.load(saved_table)
    assert "2 of 3 pairs have a table" in page
    assert f'<a href="a/report.html">{table.key.model}</a>' in page
    assert "b/report.html" not in page
    assert "an expert implies &lt;0.09&gt; of peak" in page
    assert f">{ratios(table, [2])[0]:.2f}</td>" in page
    nothing = many_tables_page("Nothing", {"c": outcomes["c"]}, tmp_path)
    assert "0 of 1 pairs have a table" in nothing
