"""The page of MoE-Spec's claims states what its data files hold."""

import csv
from pathlib import Path

import pytest

from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/results/moe-spec.md").read_text()
EARLIER = {2: ("mass", "truncation", "layers", "static", "oracle"), 5: ("mass",)}
"""Rules of each file of the earlier recording."""


def rows_of(path):
    with (ROOT / path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["claims", "overhead"])
def test_the_page_shows_the_rows_of_its_data(name):
    rows = rows_of(f"docs/results/data/moe-spec-{name}.csv")
    assert rows
    for row in rows:
        assert f"| {' | '.join(row.values())} |" in PAGE


@pytest.mark.parametrize("number", EARLIER)
def test_the_page_shows_what_an_earlier_recording_has(number):
    rows = {
        row["rule"]: row
        for row in rows_of(f"docs/research/data/budgets-front-{number}.csv")
    }
    for rule in EARLIER[number]:
        cells = (rows[rule][f"B = {budget}"] for budget in (12, 24, 48))
        assert f"| {rule} | {' | '.join(cells)} |" in PAGE


def test_the_page_links_its_data():
    for path in tracked("docs/results/data/moe-spec-*.csv"):
        assert f"(data/{path.name})" in PAGE
