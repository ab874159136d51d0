"""Numbers in README and in the claims are those that the benchmarks found."""

import json
from pathlib import Path

import pytest

from evict_profile.table import CostTable, measured
from tests.command import evict
from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
FOUND = json.loads((ROOT / "docs/research/data/served.json").read_text())
SERVED = "docs/explanation/served.md"
CLAIMS = "docs/research/claims.md"
SENTENCES = [
    (
        "README.md",
        "predicts {runs:.0f} served speed-ups of three deployments with a median "
        "error of {as advised, median} % (p90 {as advised, p90} %, aim 10 %, "
        "**missed**); "
        "{prefill as served, median} % (p90 {prefill as served, p90} %)",
    ),
    (
        "README.md",
        "weight bytes {weight bytes, median} % (p90 {weight bytes, p90} %), one "
        "parameter {one parameter, median} % ({one parameter, p90} %), the table with "
        "identical tokens {identical tokens, median} % ({identical tokens, p90} %)",
    ),
    (
        "README.md",
        "errs by {elsewhere, median} % (p90 {elsewhere, p90} %)",
    ),
    (
        "README.md",
        "loses {predicted best, mean loss} % on average, at worst "
        "{predicted best, worst loss} % (aim: 5 %, **missed**); the longest accepted "
        "length loses {longest accepted length, mean loss} %, weight bytes "
        "{best by weight bytes, mean loss} %",
    ),
    (
        CLAIMS,
        "error {as advised, median} % median (aim 5 %, met), {as advised, p90} % p90",
    ),
    (
        CLAIMS,
        "{prefill as served, median} % median, {prefill as served, p90} % p90; aims 4",
    ),
    (
        CLAIMS,
        "weight bytes {weight bytes, median} % (p90 {weight bytes, p90} %), one "
        "parameter {one parameter, median} % ({one parameter, p90} %), identical "
        "tokens {identical tokens, median} % ({identical tokens, p90} %)",
    ),
    (
        CLAIMS,
        "weight bytes {best by weight bytes, mean loss} %, identical tokens "
        "{best by identical tokens, mean loss} %, longest accepted length "
        "{longest accepted length, mean loss} %, one parameter "
        "{best by one parameter, mean loss} %, 3 drafts "
        "{engine's default, 3 drafts, mean loss} %",
    ),
    (CLAIMS, "| {as advised, inside 95 %} % (aim 90 to 99 %"),
    (
        CLAIMS,
        "error {elsewhere, median} % median, {elsewhere, p90} % p90; "
        "{elsewhere, inside 95 %} % inside",
    ),
    (
        CLAIMS,
        "a speed-up of 1: {elsewhere, no gain, median} % median, {elsewhere, no gain, "
        "p90} % p90, **better** than without a run; one parameter {elsewhere, one "
        "parameter, median} %, {elsewhere, one parameter, p90} %; with the plain run "
        "known {plain run elsewhere, median} %, {plain run elsewhere, p90} %",
    ),
    (
        CLAIMS,
        "a model: {union, its trace, worst} % worst; the estimates' one share: {union, "
        "the record's share, median} % median, {union, the record's share, worst} % "
        "worst; growth changes by {growth by unions, batch 1} % at batch 1, {growth by "
        "unions, batch 8} % at batch 8",
    ),
    (CLAIMS, "worst error {growth with batch, worst} %"),
    (SERVED, "| {as advised, median} % | {as advised, p90} % (aim 10 %"),
    (
        SERVED,
        "| {prefill as served, median} % | {prefill as served, p90} % | "
        "{predicted best, mean loss} %, at worst {predicted best, worst loss} %",
    ),
    (
        SERVED,
        "| {weight bytes, median} % | {weight bytes, p90} % | "
        "{best by weight bytes, mean loss} % |",
    ),
    (
        SERVED,
        "| {one parameter, median} % | {one parameter, p90} % | "
        "{best by one parameter, mean loss} % |",
    ),
    (
        SERVED,
        "| {identical tokens, median} % | {identical tokens, p90} % | "
        "{best by identical tokens, mean loss} % |",
    ),
    (SERVED, "| | | {longest accepted length, mean loss} % |"),
    (SERVED, "| | | {engine's default, 3 drafts, mean loss} % |"),
    (SERVED, "median, p90 | {one own run, median} %, {one own run, p90} % |"),
    (
        SERVED,
        "| `calibrate --served` | {one own run, median} %, {one own run, p90} % | "
        "{one own run elsewhere, median} %, {one own run elsewhere, p90} % |",
    ),
    (
        SERVED,
        "| {one own run, its ratio stays, median} %, {one own run, its ratio stays, "
        "p90} % | {one own run elsewhere, its ratio stays, median} %, {one own run "
        "elsewhere, its ratio stays, p90} % |",
    ),
    (
        SERVED,
        "| 48 | {one own run, batch near, median} %, {one own run, batch near, p90} %",
    ),
    (
        SERVED,
        "| 48 | {one own run, batch near, its ratio stays, median} %, {one own run, "
        "batch near, its ratio stays, p90} %",
    ),
    (
        SERVED,
        "| {one own run less its ratio stays} ({one own run less its ratio stays, "
        "low}..{one own run less its ratio stays, high}) |",
    ),
    (SERVED, "worst | {growth with batch, worst} % | 8 %"),
    (SERVED, "`advise` | {as advised, inside 95 %} % | 90 to 99 %"),
    (SERVED, "error of {elsewhere, median} % (p90 {elsewhere, p90} %)"),
    (SERVED, "and {elsewhere, inside 95 %} % of the 20 speed-ups are inside"),
    *(
        (SERVED, f"{row} | {{{name}, median}} % | {{{name}, p90}} % |")
        for row, name in (
            ("`calibrate --served` with the plain run alone", "plain run elsewhere"),
            ("(n - 1), from the record", "elsewhere, one parameter"),
            ("a speed-up of 1", "elsewhere, no gain"),
            ("other runs of the same K", "elsewhere, its other runs"),
            ("SpecBundle | 150", "plain run"),
            ("EAGLE-3 | 12", "plain run elsewhere, EAGLE-3"),
            ("all | 20", "plain run elsewhere"),
        )
    ),
    (SERVED, "{plain run elsewhere, inside 95 %} % of the 20 are inside the 95 %"),
    *(
        (
            SERVED,
            f"{row} | {{union, {way}, median}} % | {{union, {way}, p90}} % | "
            f"{{union, {way}, worst}} % |",
        )
        for row, way in (
            ("its own trace, both exponents", "its trace"),
            ("for 4 and 8", "its trace at two tokens"),
            ("the eight other models", "other models' traces"),
            ("one share of uniform unions", "its trace, one share"),
            ("the estimates' share, 0.76", "the record's share"),
        )
    ),
    (
        SERVED,
        "changes by {growth by unions, batch 1} % at batch 1 and {growth by unions, "
        "batch 8} % at batch 8",
    ),
]


def filled(sentence):
    """The sentence with the benchmark's numbers in place of their names."""
    for name, value in FOUND.items():
        sentence = sentence.replace(f"{{{name}}}", str(value))
        sentence = sentence.replace(f"{{{name}:.0f}}", f"{value:.0f}")
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


VERDICT = "--model qwen3-30b-a3b --gpu h200 --engine sglang --tp 4 --batch 8 --md"
EXAMPLE = "examples/specbundle-qwen3-30b-a3b.yaml"


@pytest.mark.parametrize("page", ["README.md", "docs/decide/recommendation.md"])
def test_the_printed_verdict_is_what_the_command_prints(page):
    """Each row of `make verdict`."""
    done = evict("advise", *VERDICT.split(), "--accept", EXAMPLE, folder=ROOT)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 8 |")]
    assert len(rows) == 3
    known = [row.rpartition(" | ")[0] for row in rows]  # all but tokens per second
    assert all(row in (ROOT / page).read_text() for row in known)


def test_the_printed_lengths_are_what_the_command_prints():
    words = "--model qwen3-30b-a3b --gpu h200 --engine sglang --tp 1 --accept"
    lengths = "1.84,2.51,3.01,3.36,3.61,3.77,3.73,3.47"
    done = evict("advise", *words.split(), lengths, folder=ROOT)
    rows = [line for line in done.stdout.splitlines() if "K=" in line and ".." in line]
    rows = [row.rpartition(")")[0] for row in rows]  # all but tokens per second
    page = (ROOT / "docs/decide/draft-length.md").read_text()
    assert len(rows) == 4
    assert all(row in page for row in rows)
