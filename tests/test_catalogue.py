"""The catalogue's page and data are those that its command writes."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from evict_profile.records import read_mapping

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def command():
    return runpy.run_path(str(ROOT / "docs/write_catalogue.py"))


@pytest.fixture(scope="module")
def rows(command):
    return pd.read_csv(command["DATA"])


def test_the_rows_of_shipped_tables_are_what_these_tables_give(command, rows):
    kept = rows[rows["table"] == "shipped"].reset_index(drop=True)
    found = pd.DataFrame(command["shipped"]())
    pd.testing.assert_frame_equal(kept, found, check_dtype=False, atol=0.001, rtol=0)


def test_the_page_is_written_from_the_rows(command, rows):
    head, mark, table = command["PAGE"].read_text().partition(command["MARK"])
    assert head and mark
    assert table.splitlines() == ["", *"\n".join(command["lines"](rows)).splitlines()]


def test_the_page_is_short(command):
    page = command["PAGE"].read_text()
    assert page.count("\n| ") <= 62


def test_other_rows_are_of_settings_whose_public_rows_can_be_used(command, rows):
    usable = read_mapping(ROOT / "configs/public_rows.yaml")
    other = rows[rows["table"] != "shipped"][command["SETTING"]].drop_duplicates()
    for model, gpu, engine, dtype, tp in other.itertuples(index=False):
        sizes = usable[model][f"{gpu.lower()}_sxm"][engine][dtype]
        assert {tp, f"near {tp}"} & {*sizes}


@pytest.mark.parametrize("rate", [0.75, 0.6])
def test_a_settled_row_has_an_interval_without_one(rows, rate):
    own = rows[(rows["accept"] == rate) & (rows["K"] > 0)]
    assert (own["settled"] == (own["low"] > 1.0)).all()
    assert (own["low"] < own["speed"]).all() and (own["speed"] < own["high"]).all()
