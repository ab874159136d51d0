"""The pages of results state what their data files hold."""

import csv
import json
from pathlib import Path

import pytest

from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
SHOWN = {"evict-claims": 4, "evict-fixed": 4, "moe-spec-claims": 5}
"""How many rows of a data file its page shows, each as it is there."""
HEADS = dict(zip(SHOWN, ("## Claims", "## Fixed trees", "| claim |"), strict=True))


def rows_of(name):
    with (RESULTS / f"data/{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_the_rows_of_its_data(name):
    page = (RESULTS / f"{name.rpartition('-')[0]}.md").read_text()
    lines = {f"| {' | '.join(row.values())} |" for row in rows_of(name)}
    section = page[page.index("|---|", page.index(HEADS[name])) :].partition("\n\n")[0]
    shown = section.splitlines()[1:]
    assert len(shown) == SHOWN[name]
    assert {*shown} <= lines


@pytest.mark.parametrize(
    ("rule", "share"), [("mass", "3.5"), ("sqrt-path+top-k", "9.3")]
)
def test_a_page_states_what_routing_takes(rule, share):
    [row] = [
        row
        for row in rows_of("moe-spec-overhead")
        if row["routing"] == rule and row["on"].startswith("small world")
    ]
    found = float(row["beyond the model's own, % of the layers"].partition(" ")[0])
    assert f"{found:.1f}" == share
    assert f"{share} %" in (RESULTS / "moe-spec.md").read_text()


def test_each_data_file_is_linked_by_its_page():
    for path in tracked("docs/results/data/*.csv"):
        page = RESULTS / f"{path.stem.rpartition('-')[0]}.md"
        assert f"(data/{path.name})" in page.read_text()


def test_the_sweep_and_error_on_the_page_are_those_of_the_shipped_table():
    (path,) = tracked("examples/small_world/cost_tables/intel-*.json")
    table = json.loads(path.read_text())
    swept, error = table["provenance"], table["fit"]["held_out"]["hinge"]
    page = " ".join((RESULTS / "evict.md").read_text().split())
    assert (
        f"({swept['cells']} cells, {swept['samples']:,} samples; held-out error "
        f"{100 * error['median']:.1f} %, p90 {100 * error['p90']:.1f} %)"
    ) in page
