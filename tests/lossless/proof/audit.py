"""The audit: every classification beside its exact enumeration.

`rules` classifies from a theorem; here each verdict has to survive trials in which it
could fail. A claim that is called lossless must show a total variation of exactly zero
in every trial, and one that is called biased must show a counterexample. Anything else
means that the classification or the enumeration is wrong, and is a defect of this
package.
"""

from fractions import Fraction
from functools import lru_cache
from random import Random

from msgspec.structs import replace

from evict_profile.lossless.audit import WORLDS, Audit, Counterexample
from evict_profile.lossless.rules import classify
from tests.lossless.proof.enumeration import marginal, target_law, total_variation
from tests.lossless.proof.trials import draw_decoding, readable
from tests.lossless.proof.world import COIN_WORLD


class Contradiction(AssertionError):
    """The enumeration does not show what the classification says."""


def audit(combination):
    """Classify a combination, and prove or show it in exact trials."""
    accept, score = combination.acceptance, combination.score
    alike = replace(
        combination,
        acceptance="target-only" if accept == "match" else accept,
        score="own" if combination.rule == "fixed" else score,
    )
    biased = _settled(alike)
    by_hand = next((each for each in biased if each.seed is None), None)
    return Audit(combination, classify(combination), largest(biased), by_hand)


@lru_cache
def _settled(combination):
    """The counterexamples of all combinations that decode like this one."""
    lossless = classify(combination).lossless
    return settle(str(combination), lossless, trials(combination, WORLDS))


def trials(combination, count):
    """Decodings that could refute a classification; the readable one has no seed."""
    drawn = {seed: draw_decoding(combination, Random(seed)) for seed in range(count)}
    return {**drawn, None: readable(combination)}


def settle(subject, lossless, trials, alone=False):
    """Enumerate the trials of a claim; every one that is biased.

    `alone` compares the law of each request's output; otherwise all are taken together.
    """
    found = (examine(decoding, alone, seed) for seed, decoding in trials.items())
    biased = tuple(filter(None, found))
    if lossless and biased:
        raise Contradiction(f"'{subject}' is called lossless, but: {biased[0]}")
    if not lossless and not biased:
        raise Contradiction(
            f"'{subject}' is called biased, but {len(trials)} trials are exact"
        )
    return biased


def largest(biased):
    """The counterexample of the largest total variation, if there is one."""
    return max(biased, key=lambda each: Fraction(each.tv), default=None)


def examine(decoding, alone=False, seed=None):
    """The bias of one way of decoding; None where it is exact."""
    law, expected = decoding.law(), target_law(decoding.worlds, decoding.horizon)
    if alone:
        requests = range(len(decoding.worlds))
        pairs = [(marginal(law, r), marginal(expected, r)) for r in requests]
        law, expected = max(pairs, key=lambda pair: total_variation(*pair))
    tv = total_variation(law, expected)
    if not tv:
        return None
    zero = Fraction(0)
    gaps = {o: law.get(o, zero) - expected.get(o, zero) for o in law.keys() | expected}
    output = max(sorted(gaps), key=lambda o: abs(gaps[o]))
    return Counterexample(
        seed=seed,
        vocabulary=decoding.worlds[0].vocabulary,
        parents=decoding.tree.parents,
        cut=str(decoding.cut),
        horizon=decoding.horizon,
        tv=str(tv),
        output=output,
        expected=str(expected.get(output, zero)),
        got=str(law.get(output, zero)),
        world=COIN_WORLD if seed is None else f"random, of seed {seed}",
        tv_value=float(tv),
    )
