"""The pages of results state what their data files hold."""

import csv
import json
from pathlib import Path

import pytest

from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
SHOWN = {
    "evict-claims": lambda row: True,
    "evict-ablations": lambda row: True,
    "evict-dense": lambda row: True,
    "evict-curves": lambda row: True,
    "evict-chains": lambda row: row["text"] == "mixed",
    "evict-trees": lambda row: row["text"] == "mixed",
    "evict-fixed": lambda row: True,
    "evict-prior": lambda row: True,
    "evict-monotone": lambda row: True,
}
"""Rows of each data file that its page shows, without the columns that are the same."""
HIDDEN = {"evict-chains": {"text"}, "evict-trees": {"text"}}


def rows_of(name):
    with (RESULTS / f"data/{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_the_rows_of_its_data(name):
    page = (RESULTS / f"{name.partition('-')[0]}.md").read_text()
    for row in filter(SHOWN[name], rows_of(name)):
        cells = [v for k, v in row.items() if k not in HIDDEN.get(name, ())]
        assert f"| {' | '.join(cells)} |" in page, row


def test_each_data_file_is_linked_by_its_page():
    for path in tracked("docs/results/data/*.csv"):
        page = RESULTS / f"{path.stem.rpartition('-')[0]}.md"
        assert f"(data/{path.name})" in page.read_text()


def test_the_configurations_on_the_page_are_those_of_the_shipped_table():
    (path,) = tracked("examples/small_world/cost_tables/intel-*.json")
    axes = json.loads(path.read_text())["axes"]
    page = (RESULTS / "evict.md").read_text()
    for axis in ("width", "batch", "context", "union"):
        assert f"| {axis} | {', '.join(map(str, axes[axis]))} |" in page
