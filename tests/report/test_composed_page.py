"""The page of a composed table names its origin and what it leaves out."""

import pandas as pd

from evict_profile.report import public
from evict_profile.report.public import composed_page
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
        "rows of other routings",
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
