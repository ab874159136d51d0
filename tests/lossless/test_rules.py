"""The four words, the verdicts, and what is offered instead."""

import subprocess
import sys
from itertools import product

import pytest

from evict_profile.errors import ConfigError
from evict_profile.lossless import (
    RULES,
    SCORES,
    Combination,
    classify,
    nearest_lossless,
)
from tests.lossless.proof.audit import COMBINATIONS


def test_a_refused_combination_names_a_lossless_one():
    """`instead` is there exactly where the verdict is biased; that can only be under
    rejection, as elsewhere what is emitted is the target's own sample."""
    for combination in COMBINATIONS:
        verdict, nearest = classify(combination), nearest_lossless(combination)
        assert classify(nearest).lossless
        assert (verdict.instead is None) == verdict.lossless == (nearest == combination)
        assert verdict.lossless or combination.acceptance == "rejection"


@pytest.mark.parametrize(
    ("rule", "lossless_scores"),
    [
        *((rule, {"own", "shifted", "max"}) for rule in ("fixed", "depth")),
        *((rule, {"shifted", "max"}) for rule in ("threshold", "stop")),
        *((rule, set()) for rule in ("ratio", "rate")),
    ],
)
def test_rejection_of_sampled_drafts_asks_for_non_anticipation(rule, lossless_scores):
    """Own scores read the token they decide on; a global argmax reads later ones."""
    words = "sampled", "rejection", rule
    found = {s for s in SCORES if classify(Combination(*words, s)).lossless}
    assert found == lossless_scores


def test_top_k_drafts_under_rejection_are_always_biased():
    """min(1, p/q) assumes a draft drawn from q; the way out is target-only."""
    for rule, score in product(RULES, SCORES):
        verdict = classify(Combination("topk", "rejection", rule, score))
        assert not verdict.lossless and "target-only" in verdict.instead


@pytest.mark.parametrize("field", ["drafts", "accept", "rule", "score"])
def test_an_unknown_word_is_answered_with_the_known_ones(field):
    """The error names the field, the word and every allowed value."""
    words = {"drafts": "topk", "accept": "match", "rule": "stop", "score": "own"}
    words[field] = "nonsense"
    with pytest.raises(ConfigError, match=f"^{field} 'nonsense' is unknown; give"):
        Combination(*words.values())


def test_the_runtime_pays_nothing_for_the_import():
    heavy = "m for m in ('numpy', 'torch', 'fractions') if m in sys.modules"
    code = f"import sys, evict_profile.lossless; print([{heavy}])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
