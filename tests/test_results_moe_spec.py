"""The page of MoE-Spec's claims states what its data files hold."""

import csv
from pathlib import Path

import pytest

from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/results/moe-spec.md").read_text()


def rows_of(path):
    with (ROOT / path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_shows_rows_of_its_data():
    lines = {
        f"| {' | '.join(row.values())} |"
        for row in rows_of("docs/results/data/moe-spec-claims.csv")
    }
    table = PAGE[PAGE.index("| claim | paper |") :].partition("\n\n")[0]
    shown = table.splitlines()[2:]
    assert len(shown) == 6
    assert {*shown} <= lines


@pytest.mark.parametrize(
    ("rule", "share"), [("mass", "3.5"), ("sqrt-path+top-k", "9.3")]
)
def test_the_page_states_what_routing_takes(rule, share):
    [row] = [
        row
        for row in rows_of("docs/results/data/moe-spec-overhead.csv")
        if row["routing"] == rule and row["on"].startswith("small world")
    ]
    found = float(row["beyond the model's own, % of the layers"].partition(" ")[0])
    assert f"{found:.1f}" == share
    assert f"{share} %" in PAGE


def test_the_page_links_its_data():
    for path in tracked("docs/results/data/moe-spec-*.csv"):
        assert f"(data/{path.name})" in PAGE
