"""Calibrations from prompts drawn from a population, judged on all of it."""

from collections.abc import Iterator

import numpy as np

from benchmarks.known_acceptance.findings import Finding, finding
from evict_profile.calibrate.acceptance import RAW, Curves, Nodes, nodes_of
from evict_profile.calibrate.activation import measure_activation
from evict_profile.calibrate.held_out import HeldOutChances, HeldOutErrors
from evict_profile.calibrate.study import calibrate
from evict_profile.stats import Floats
from evict_profile.traces import Trace

WIDTH, TOKENS = 8, (4, 12)
GROUPS_OF, TRUE_DRAWS = 4, 10


def judged_calibration(known: Nodes, trace: Trace) -> Iterator[Finding]:
    """Errors that a calibration prints, against its curves' errors on all prompts."""
    found = calibrate(nodes_of(trace.replies))
    curves = {"raw": RAW, found.chosen: found.curves}
    true = {name: _true(known, curve) for name, curve in curves.items()}
    for name, truth in true.items():
        told = found.errors[name]
        kind = "raw" if name == "raw" else "calibrated"
        yield finding(f"ECE, {kind}", told.ece, truth.ece.value)
        yield finding(f"Brier, {kind}", told.brier, truth.brier.value)
        yield finding("log loss", told.log_loss, truth.log_loss.value)
        yield finding("tokens by width", told.tokens[WIDTH], truth.tokens[WIDTH].value)
    if len(true) > 1:
        excess = true["raw"].brier.value - true[found.chosen].brier.value
        yield finding("Brier over", found.errors["raw"].excess_brier, excess)


def _true(known: Nodes, curve: Curves) -> HeldOutErrors:
    """Of a curve that none of these nodes taught: as it is, like path probability."""
    return HeldOutChances(known, {"raw": curve(known)}).errors("raw")["raw"]


def true_activation(trace: Trace) -> dict[int, Floats]:
    """U(t) by batch of a population."""
    draws = [measure_activation(trace, seed) for seed in range(TRUE_DRAWS)]
    return {
        batch: np.mean([each[batch].union for each in draws if each], axis=0)
        for batch in (1, GROUPS_OF)
    }


def judged_activation(known: dict[int, Floats], trace: Trace) -> Iterator[Finding]:
    """Experts by tokens, of one request and of four."""
    found = measure_activation(trace)
    assert found, "populations have routes"
    for batch, union in known.items():
        told = found[batch]
        for tokens in (batch * each for each in TOKENS):
            yield finding(f"U(t), batch {batch}", told.at(tokens), union[tokens])
