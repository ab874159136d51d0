"""Every verdict survives exact trials, and a wrong verdict does not."""

import csv
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from evict_profile.lossless import SCORES, Combination, classify
from tests.lossless.cases import CASES, at_temperature_zero, crossed
from tests.lossless.proof.audit import (
    COMBINATIONS,
    WORLDS,
    Contradiction,
    audit,
    examine,
    largest,
    settle,
    summary,
)
from tests.lossless.proof.audit import trials as trials_of
from tests.lossless.proof.cuts import Cut
from tests.lossless.proof.enumeration import Decoding
from tests.lossless.proof.trials import draw_costs, draw_decoding, readable
from tests.lossless.proof.world import Tree, coin_world

DATA = Path(__file__).parents[2] / "docs/research/data"
FILES = ("lossless-combinations", "lossless-further-cases", "expert-budgets-lossy")
DOCUMENTED = {
    subject: shown
    for name in FILES
    for subject, shown in csv.reader((DATA / f"{name}.csv").read_text().splitlines())
}
"""The published largest total variation of each line."""
DISTINCT = [each for each in COMBINATIONS if each.acceptance != "match"]
BIASED = [each for each in DISTINCT if not classify(each).lossless]


def shown(tv):
    return f"{float(tv):.3f}" if tv else "0"


@pytest.mark.parametrize("combination", DISTINCT, ids=str)
def test_every_verdict_survives_exact_trials(combination):
    lossless = classify(combination).lossless
    found = settle(str(combination), lossless, trials_of(combination, 8))
    assert bool(found) != lossless
    # With p one-hot only one token can come out, whatever is drafted or cut.
    for seed in range(4):
        warm = draw_decoding(combination, Random(seed))
        assert examine(at_temperature_zero(warm)) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.subject)
def test_every_further_case_is_what_the_page_says(case):
    """Exact in fewer trials than the page's, or biased by as much as it says."""
    seeds = range(12 if case.lossless else WORLDS)
    trials = {seed: case.draw(Random(seed)) for seed in seeds}
    found = largest(settle(case.subject, case.lossless, trials, case.alone))
    assert shown(found and found.tv) == DOCUMENTED[case.subject]


def test_biased_rules_are_one_line_each_as_on_the_page():
    words = "sampled", "rejection", "ratio"
    audits = [audit(Combination(*words, score)) for score in SCORES]
    lines = {name: shown(tv) for name, tv in summary(audits)}
    assert len(lines) == len(audits)
    assert lines.items() <= DOCUMENTED.items()


@pytest.mark.parametrize("combination", BIASED, ids=str)
def test_the_readable_example_shows_every_bias(combination):
    """One token of the coin world: .55 from sampled drafts, 5/9 from top-k ones."""
    example = examine(readable(combination))
    assert example is not None
    assert (example.output, example.expected) == (((0,),), Fraction(1, 2))
    sampled = combination.drafts == "sampled"
    assert example.got == (Fraction(11, 20) if sampled else Fraction(5, 9))


def test_a_wrong_verdict_is_a_contradiction():
    of_own, of_max = (
        trials_of(Combination("sampled", "rejection", "threshold", score), 4)
        for score in ("own", "max")
    )
    with pytest.raises(Contradiction, match="called lossless, but"):
        settle("threshold", True, of_own)
    with pytest.raises(Contradiction, match="called biased, but 5 trials are exact"):
        settle("threshold", False, of_max)


def test_match_is_audited_as_target_only():
    """The same law, in one line."""
    ways = ("match", "target-only")
    pair = [audit(Combination("topk", way, "ratio", "own")) for way in ways]
    assert summary(pair) == [("topk drafts, target-only or match, ratio, own", 0)]


def test_the_joint_law_of_crossed_widths_by_hand():
    """Each output alone is fair; both are 0 with .25 + .05 * .05, not .25."""
    how = "sampled", "rejection", "own", Cut(crossed, bound=Fraction(1, 2))
    decoding = Decoding((coin_world(),) * 2, Tree((-1,)), *how, horizon=1)
    assert decoding.law()[(0,), (0,)] == Fraction(2525, 10000)
    assert examine(decoding, alone=True) is None


def test_drawn_costs_take_every_shape_and_stay_positive():
    """A verdict must hold for flat, rising and falling tables."""
    tables = [draw_costs(3, Random(seed)) for seed in range(200)]
    steps = {b - a for table in tables for a, b in pairwise(table)}
    assert min(steps) < 0 < max(steps)
    assert 0 in steps
    assert min(map(min, tables)) > 0
