"""Every verdict survives exact trials, and a wrong verdict does not."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from random import Random

import pytest

from evict_profile.lossless.audit import (
    Contradiction,
    audit,
    audit_case,
    claim_of,
    examine,
    settle,
    summary,
)
from evict_profile.lossless.cases import (
    BUDGET_CASES,
    CASES,
    Claim,
    draw_costs,
    draw_decoding,
    readable,
)
from evict_profile.lossless.cuts import Crossed
from evict_profile.lossless.enumeration import Decoding, Tree, coin_world
from evict_profile.lossless.rules import (
    DRAFTS,
    RULES,
    SCORES,
    Combination,
    classify,
)

DISTINCT = [
    Combination(drafts, acceptance, rule, score)
    for drafts, acceptance, rule, score in product(
        DRAFTS, ("target-only", "rejection"), RULES, SCORES
    )
]
BIASED = [each for each in DISTINCT if not classify(each).lossless]


@pytest.mark.parametrize("combination", DISTINCT, ids=str)
def test_every_verdict_survives_exact_trials(combination: Combination) -> None:
    """Lossless: zero in every trial. Biased: an exact counterexample."""
    found = settle(claim_of(combination), range(8))
    assert (found.max_tv == 0) == classify(combination).lossless


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.subject)
def test_every_further_case_survives_exact_trials(case: Claim) -> None:
    """Trees, orders, rates, batches and budgets are what is said of them."""
    assert (settle(case, range(24)).max_tv == 0) == case.lossless


@pytest.mark.parametrize("combination", BIASED, ids=str)
def test_the_readable_example_shows_every_bias(combination: Combination) -> None:
    """One token of the coin world: .55 from sampled drafts, 5/9 from top-k ones."""
    example = examine(readable(combination))
    assert example is not None
    assert (example.output, example.expected) == (((0,),), Fraction(1, 2))
    sampled = combination.drafts == "sampled"
    assert example.got == (Fraction(11, 20) if sampled else Fraction(5, 9))


@pytest.mark.parametrize("combination", DISTINCT, ids=str)
def test_at_temperature_zero_every_rule_is_lossless(combination: Combination) -> None:
    """With p one-hot only one token can come out, whatever is drafted or cut."""
    for seed in range(4):
        warm = draw_decoding(combination, Random(seed))
        cold = tuple(world.at_temperature_zero() for world in warm.worlds)
        assert examine(replace(warm, worlds=cold)) is None


def test_a_wrong_verdict_is_a_contradiction() -> None:
    """Both mistakes are caught: bias called lossless, and exactness called biased."""
    claim = claim_of(Combination("sampled", "rejection", "threshold", "own"))
    with pytest.raises(Contradiction, match="called lossless, but"):
        settle(replace(claim, lossless=True), range(4))
    claim = claim_of(Combination("sampled", "rejection", "threshold", "max"))
    with pytest.raises(Contradiction, match="called biased, but 4 trials are exact"):
        settle(replace(claim, lossless=False), range(4))


def test_an_audit_reads_as_json_and_its_counterexample_can_be_redrawn() -> None:
    """The seed alone gives the same bias again; fractions stay exact as text."""
    combination = Combination("sampled", "rejection", "ratio", "own")
    told = json.loads(json.dumps(audit(combination).as_json()))
    assert not told["lossless"]
    assert told["instead"] == "the stop rule on shifted scores"
    shown = told["counterexample"]
    again = examine(draw_decoding(combination, Random(shown["seed"])))
    assert again is not None
    assert (str(again.tv), again.cut) == (shown["tv"], shown["cut"])
    assert told["max_tv"] == shown["tv_value"] == float(again.tv)


def test_a_lossless_audit_has_no_counterexample() -> None:
    """Zero, nothing to show and nothing to use instead; match is target-only."""
    found = audit(Combination("topk", "match", "ratio", "own"))
    told = found.as_json()
    assert told["lossless"]
    assert (told["max_tv"], told["counterexample"], told["instead"]) == (0, None, None)
    same = audit(Combination("topk", "target-only", "ratio", "own"))
    assert same.settlement is found.settlement
    assert [line.subject for line in summary([found, same])] == [
        "topk drafts, target-only or match, ratio, own"
    ]


def test_a_budget_is_told_with_its_constants_and_its_bias() -> None:
    """The counterexample names the cut and the budget."""
    subject = "budget below all experts, truncation"
    (case,) = (case for case in BUDGET_CASES if case.subject == subject)
    told = audit_case(case).as_json()
    assert (told["subject"], told["lossless"]) == (subject, False)
    shown = told["counterexample"]
    assert isinstance(shown, dict)
    again = examine(case.draw(Random(shown["seed"])))
    assert again is not None
    assert shown["cut"] == again.cut
    assert re.match(r"Fixed: width \d; Mass\(mode='truncation', size=\d", again.cut)


def test_the_joint_law_of_crossed_widths_by_hand() -> None:
    """Each output alone is fair; both are 0 with .25 + .05 * .05, not .25."""
    decoding = Decoding(
        (coin_world(), coin_world()),
        Tree((-1,)),
        "sampled",
        "rejection",
        "own",
        Crossed(Fraction(1, 2)),
        horizon=1,
    )
    assert decoding.law()[(0,), (0,)] == Fraction(2525, 10000)
    assert examine(decoding, alone=True) is None


def test_drawn_costs_take_every_shape_and_stay_positive() -> None:
    """A verdict must hold for flat, rising and falling tables."""
    tables = [draw_costs(3, Random(seed)) for seed in range(200)]
    steps = {b - a for table in tables for a, b in pairwise(table)}
    assert min(steps) < 0 < max(steps)
    assert 0 in steps
    assert min(map(min, tables)) > 0


def test_the_document_lists_every_case_with_its_verdict() -> None:
    """The page says 0 where a case is lossless, and a bias elsewhere."""
    text = (Path(__file__).parents[2] / "docs/explanation/lossless.md").read_text()
    rows = dict(re.findall(r"^\| (.+?) \| (\S+) \|$", text, re.MULTILINE))
    told = {case.subject: rows[case.subject] == "0" for case in CASES}
    assert told == {case.subject: case.lossless for case in CASES}
