"""The page of a composed table names its origin and what it leaves out."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from evict_profile.advice.advise import Advisor
from evict_profile.advice.lengths import of_lengths
from evict_profile.report import public
from evict_profile.report.figures_step import break_even
from evict_profile.report.numbers import spread
from evict_profile.report.pays import break_evens
from evict_profile.report.public import composed_page, show_estimate
from evict_profile.served.growth import EXPONENT
from evict_profile.served.step import ServedStep
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
    rows = public.part_rows(CostTable.load(composed_path), cells)
    one = cells[(cells["width"] == 1) & (cells["batch"] == 1)].dropna(
        subset="experts_us"
    )
    one = one[one["context"] == one["context"].min()]
    added = sum(float(str(cell)) for cell in rows.cells[0][1:-1])
    assert abs(added - one["clock_us"].iloc[0]) < 0.5


def test_the_parts_of_a_step_agree_with_the_table(composed_path):
    """At the experts that a step activates, not at all that a cell forced."""
    table = CostTable.load(composed_path)
    rows = public.part_rows(table, cells_beside(composed_path))
    step_us = table.step_cost_us(1, min(table.axes.context))
    assert [str(row[0]).split(",")[0] for row in rows.cells] == [
        f"n {n}" for n in table.axes.width
    ]
    for row, n in zip(rows.cells, table.axes.width, strict=True):
        assert 1e3 * float(str(row[-1])) == pytest.approx(step_us[n], rel=0.07)


def test_break_evens_of_an_estimate_are_those_that_advice_judges_by(composed_path):
    table = CostTable.load(composed_path)
    rows = break_evens(table)
    assert rows.head == ("batch", "K=1", "K=3", "K=5", "K=7")
    assert [row[0] for row in rows.cells] == ["1", "4", "any server"]
    advisor = Advisor.of(table, of_lengths({3: 2.4}, ""))
    for batch, _, three, *_ in rows.cells[:2]:
        assert three == spread(advisor.at(int(batch)).by_levels[3].break_even)
    assert rows.cells[2][2].startswith(f"{4**EXPONENT:.2f} (")


def test_the_figure_has_the_break_even_of_the_sentence(composed_path):
    served = ServedStep.of(CostTable.load(composed_path))
    shown = f"batch 1, K = 3: {break_evens(served.table).cells[0][2]}"
    assert shown in str(break_even(served))


def test_the_page_of_an_estimate_asks_for_no_drafting_time(composed_path):
    page = composed_page(CostTable.load(composed_path), cells_beside(composed_path))
    assert "--draft-level-ms" not in page and "ASSUMED" not in page
    assert "A step is the mean of kernels' growth and that of other servers" in page


def test_the_terminal_has_break_evens_and_no_speed(composed_path, capsys):
    table = CostTable.load(composed_path)
    show_estimate(Console(width=300), table, composed_path, Path("page.html"), False)
    said = capsys.readouterr().out
    assert f"table: {composed_path}" in said and "evict-profile import" in said
    assert not re.search(r"speed-?up|tok/s|times plain", said)


def test_the_import_is_a_command_of_its_own(composed_path, capsys):
    table, page = CostTable.load(composed_path), Path("page.html")
    show_estimate(Console(), table, composed_path, page, False)
    said = capsys.readouterr().out.replace(" \\\n", "")
    [line] = [each for each in said.splitlines() if "evict-profile import" in each]
    assert shlex.split(line) == [
        *("evict-profile", "import", "runs.jsonl", "--model", table.key.model),
        *("--gpu", table.key.gpu, "--shape", str(composed_path)),
    ]


def test_the_json_holds_the_same_break_evens(composed_path, capsys):
    table = CostTable.load(composed_path)
    show_estimate(Console(), table, composed_path, Path("page.html"), True)
    found = json.loads(capsys.readouterr().out)
    assert found["break_evens"] == break_evens(table).records
    assert found["table"] == str(composed_path)
