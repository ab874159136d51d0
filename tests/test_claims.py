"""Numbers in README and in the claims are those that the benchmarks found."""

import json
from pathlib import Path

import pytest

from evict_profile.fit.fitted import fitted_of_table
from evict_profile.report.data import View
from evict_profile.served.growth import unserved
from evict_profile.table import CostTable
from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
FOUND = json.loads((ROOT / "docs/research/data/served.json").read_text())
CLAIMS = "docs/research/claims.md"
MEDIAN = "{{{0}, median:.1f}} % ({{{0}, p90:.1f}} %)"
IN_PERCENT = "| {{{0}, median:.1f}} ({{{0}, p90:.1f}}) |"
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
    "{no run, n^p, median} % ({no run, n^p, p90} %) on {no run, n^p, rows:.0f} runs of "
    "{no run, n^p, servers:.0f} servers; {no run, surely wrong:.0f} answers surely",
    "{plain and one K, n^p, rows:.0f} pairs of {plain and one K, n^p, servers:.0f} s",
    "n^0.37 {no run, AISimulate, package median} % "
    "({no run, AISimulate, package p90} %)",
]
SHOWN = [NO_RUN.format("speed-up 1"), NO_RUN.format("AISimulate"), *BESIDE[-6:]]
ANSWERS = {
    "no run": "ERROR",
    "plain and one K": "OWN_ERROR",
    "plain and two K": "BETWEEN_ERROR",
    "between batches": "BATCH_ERROR",
    "plain alone at a batch": "FAR_ERROR",
}
"""By what is known, the constant of the answers' error."""
SERVED = [
    "| n^p, p = {EXPONENT:.2f} |",
    "| r0 (n / n0)^p, p = {OWN_EXPONENT:.2f} |",
    "{BETWEEN_ERROR:.2f} between the two K",
    "at least {BATCH_ERROR:.2f} beyond",
    "{FAR_ERROR:.2f} times the root",
    "mean of table and n^p is {ESTIMATE_ERROR:.2f}.",
    "{no run, n^p, rows:.0f} rows of {no run, n^p, servers:.0f} servers",
    "{plain and one K, n^p, rows:.0f} pairs of {plain and one K, n^p, servers:.0f} s",
    "each server counted once, n^p errs by {no run, n^p, servers once} %",
    "tables err by {composable, table, median:.1f} %, "
    "n^p by {composable, power, median:.1f} %",
    *map(IN_PERCENT.format, [*RIVALS, NO_RUN.format("n^p"), ONE_K.format("n^p")]),
    *(
        f"| {{{error}:.2f}} | {{{name}, inside 95 %:.0f}} "
        f"| {{{name}, inside, servers once:.0f}} "
        f"| {{{name}, settled:.0f}} | {{{name}, surely wrong:.0f}}"
        for name, error in ANSWERS.items()
    ),
    "loses {loss, n^p:.1f} % of speed, the longest accepted length "
    "{loss, longest length:.1f} %",
    "{left out, dense:.0f} rows of dense models, "
    "{left out, Llama-4-Scout:.0f} of Llama-4-Scout",
    "{left out, not stated:.0f} without accepted length or verified tokens, and "
    "{left out, above n:.0f} steps of more than n plain steps",
]
SENTENCES = [
    *(("README.md", each) for each in [*README, *map(MEDIAN.format, SHOWN)]),
    *((CLAIMS, MEDIAN.format(each.format("n^p"))) for each in (NO_RUN, ONE_K)),
    (CLAIMS, "{plain and one K, settled} % settled (aim 60, met), "),
    *(("docs/explanation/estimated-tables.md", each) for each in SERVED),
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


def test_the_latencies_that_readme_states_are_those_of_the_shipped_table():
    [path] = tracked("cost_tables/*/torch-moe/1.2.1.json")
    view = View(*fitted_of_table(path))
    ms = {
        cell.union: f"{view.medians[cell].value / 1e3:,.0f}"
        for cell in view.forced
        if cell.width == 64
    }
    *first, last = ms.values()
    *unions, most = map(str, ms)
    assert (
        f"same 64 tokens in {', '.join(first)} and {last} ms where they activate U = "
        f"{', '.join(unions)} and {most} experts"
    ) in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize("drafts", [1, 3, 5, 7])
def test_the_printed_break_evens_are_those_of_a_server_without_runs(drafts):
    ratio = unserved(drafts + 1).value
    page = " ".join((ROOT / "docs/decide/draft-length.md").read_text().split())
    assert f"{ratio.value:.2f} at K = {drafts}" in page
