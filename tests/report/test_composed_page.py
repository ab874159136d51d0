"""The page of a composed table names its origin and what it leaves out."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from evict_profile.report import public
from evict_profile.report.public import (
    break_evens,
    composed_page,
    show_estimate,
)
from evict_profile.served.growth import EXPONENT
from evict_profile.table import CostTable


def cells_beside(path):
    return pd.read_parquet(path.with_suffix(".parquet"))


def test_the_page_says_that_nothing_was_measured(composed_path):
    page = composed_page(CostTable.load(composed_path), cells_beside(composed_path))
    assert page == composed_path.with_suffix(".html").read_text()
    for words in (
        "composed from public rows, not measured",
        "Apache-2.0",
        "launch gaps and the host".capitalize(),
        "other routings",
    ):
        assert words in page


def test_parts_of_a_layer_add_up(composed_path):
    cells = cells_beside(composed_path)
    rows = public.part_rows(cells)
    wide = cells[(cells["width"] == 64) & (cells["batch"] == 1)].dropna(
        subset="experts_us"
    )
    wide = wide[wide["context"] == wide["context"].min()]
    added = sum(float(str(cell)) for cell in rows.cells[-1][1:])
    assert abs(added - wide["clock_us"].iloc[-1]) < 0.5


def test_break_evens_are_the_growth_of_kernels_beside_that_of_servers(composed_path):
    table = CostTable.load(composed_path)
    rows = break_evens(table)
    assert rows.head == ("K", "batch 1", "batch 4", "any server")
    us = table.step_cost_us(4, min(table.axes.context))
    for drafts, _, four, server in rows.cells:
        assert float(four) == pytest.approx(us[4 * (drafts + 1)] / us[4], abs=0.006)
        assert server.startswith(f"{(drafts + 1) ** EXPONENT:.2f} (")
    assert [cell[0] for cell in rows.cells] == [1, 3, 5, 7]


def test_the_terminal_has_break_evens_and_no_speed(composed_path, capsys):
    table = CostTable.load(composed_path)
    show_estimate(Console(width=300), table, composed_path, Path("page.html"), False)
    said = capsys.readouterr().out
    assert f"table: {composed_path}" in said and "evict-profile import" in said
    assert not re.search(r"speed-?up|tok/s|times plain", said)


def test_the_json_holds_the_same_break_evens(composed_path, capsys):
    table = CostTable.load(composed_path)
    show_estimate(Console(), table, composed_path, Path("page.html"), True)
    found = json.loads(capsys.readouterr().out)
    assert found["break_evens"] == break_evens(table).records
    assert found["table"] == str(composed_path)
