"""Numbers in README and in the claims are those that the benchmarks found."""

import json
from pathlib import Path

import pytest

from evict_profile.served.growth import unserved
from evict_profile.table import CostTable, measured
from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
FOUND = json.loads((ROOT / "docs/research/data/served.json").read_text())
CLAIMS = "docs/research/claims.md"
NO_RUN = "no run, {}"
ONE_K = "plain and one K, {}"
RIVALS = [
    *map(NO_RUN.format, ("1 + c (n - 1)", "speed-up 1", "table", "AISimulate")),
    NO_RUN.format("mean of table and n^p"),
    ONE_K.format("ratio stays"),
]
GROUPS = ("chosen on, table", "chosen on, power", "composable, table")
BESIDE = [*RIVALS, *GROUPS, "composable, power", ONE_K.format("n^p")]
README = [
    "errs by {no run, n^p, median} % (p90 {no run, n^p, p90} %) on "
    "{no run, n^p, rows:.0f} public runs of {no run, n^p, servers:.0f} servers",
    "{no run, inside 95 %:.0f} % of runs are inside an interval of a factor of "
    "{no run, high over low:.1f}, and {no run, inside, servers once:.0f} % with",
    "{no run, settled:.0f} % are settled, {no run, surely wrong:.0f} runs wrongly",
    "n^0.37 {no run, table, package median} % ({no run, table, package p90} %)",
    "{plain and one K, n^p, rows:.0f} pairs of {plain and one K, n^p, servers:.0f} s",
    "a factor of {plain and one K, high over low:.1f} (aim 1.6), "
    "{plain and one K, settled:.0f} % are settled (aim 60 %)",
    "loses {loss, n^p:.1f} % of speed, the longest accepted length "
    "{loss, longest length:.1f} %. Where a table is, it loses {loss, table:.1f} %",
    *(f"{{{name}, median:.1f}} % ({{{name}, p90:.1f}} %)" for name in BESIDE),
]
ANSWERS = ("no run", "plain and one K", "plain and two K", "between batches")
SERVED = [
    "p = {EXPONENT:.2f}, error {ERROR:.2f} |",
    "p = {OWN_EXPONENT:.2f}, error {OWN_ERROR:.2f} |",
    "error {BETWEEN_ERROR:.2f} between",
    "at least {BATCH_ERROR:.2f} beyond",
    "n^p | error {ESTIMATE_ERROR:.2f} |",
    "each server counted once, n^p errs by {no run, n^p, servers once} %",
    *(
        f"| {{{name}, median}} % | {{{name}, p90}} % |"
        for name in [*RIVALS, NO_RUN.format("n^p"), ONE_K.format("n^p")]
    ),
    *(
        f"| {{{name}, answers:.0f}} | {{{name}, inside 95 %:.0f}} % "
        f"| {{{name}, inside, servers once:.0f}} % | {{{name}, high over low:.2f}} "
        f"| {{{name}, settled:.0f}} % | {{{name}, surely wrong:.0f}}"
        for name in ANSWERS
    ),
    *(f"| {{left out, {why}:.0f}} |" for why in ("dense", "not stated", "above n")),
]
SENTENCES = [
    *(("README.md", each) for each in README),
    *((CLAIMS, each) for each in README[-len(BESIDE) :]),
    (CLAIMS, "{plain and one K, settled} % settled (aim 60, met), "),
    *(("docs/explanation/served.md", each) for each in SERVED),
]
"""What pages say, with names of findings in place of their numbers."""


def filled(sentence):
    """The sentence with the benchmark's numbers in place of their names."""
    for name, value in FOUND.items():
        sentence = sentence.replace(f"{{{name}}}", str(value))
        for digits in range(3):
            sentence = sentence.replace(f"{{{name}:.{digits}f}}", f"{value:.{digits}f}")
    return sentence


@pytest.mark.parametrize(("page", "sentence"), SENTENCES)
def test_a_page_states_what_the_benchmark_found(page, sentence):
    text = " ".join((ROOT / page).read_text().split())
    assert filled(sentence) in text


@pytest.mark.parametrize("page", ["README.md", CLAIMS])
def test_errors_without_and_with_u_are_those_of_the_shipped_table(page):
    [path] = tracked("cost_tables/*/torch-moe/1.2.1.json")
    error = CostTable.load(path).fit.held_out
    without, with_u = (f"{error[k].median:.1%}" for k in ("tokens only", "hinge"))
    text = (ROOT / page).read_text().replace(" %", "%")
    [row] = [line for line in text.splitlines() if without in line]
    assert f" {with_u}" in row


def test_the_latencies_that_readme_begins_with_are_those_of_the_shipped_table():
    [path] = tracked("cost_tables/*/torch-moe/1.2.1.json")
    found = measured(CostTable.load(path).provenance).union_test
    few, many = (
        f"{found[f'{size}_us'] / 1e3:.0f} ms with {found[f'{size}_union']}"
        for size in ("small", "large")
    )
    sentence = (
        f"the same {found['width']} tokens take {few} activated experts and > {many}."
    )
    assert sentence in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize("drafts", [1, 3, 5, 7])
def test_the_printed_break_evens_are_those_of_a_server_without_runs(drafts):
    ratio = unserved(drafts + 1).value
    row = f"| {drafts} | {ratio.value:.2f} | {ratio.low:.2f}..{ratio.high:.2f} |"
    assert row in (ROOT / "README.md").read_text()
