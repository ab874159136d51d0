"""Calibrations from prompts drawn from a population, judged on all of it."""

from collections.abc import Iterator

import numpy as np

from benchmarks.known_acceptance.findings import Finding, finding
from evict_profile.calibrate.acceptance import RAW
from evict_profile.calibrate.activation import measure_activation
from evict_profile.calibrate.study import calibrate
from evict_profile.stats import Floats
from evict_profile.traces import Nodes, Trace

TOKENS = (4, 12)
GROUPS_OF, TRUE_DRAWS = 4, 10


def judged_calibration(known: Nodes, trace: Trace) -> Iterator[Finding]:
    """Brier scores that a calibration prints, against its curves' on all prompts."""
    found = calibrate(trace)
    true = {
        name: float(np.mean((curve(known) - known.accepted) ** 2))
        for name, curve in (("raw", RAW), (found.chosen, found.curves))
    }
    for name, truth in true.items():
        kind = "raw" if name == "raw" else "calibrated"
        yield finding(f"Brier, {kind}", found.errors[name].brier, truth)
    if len(true) > 1:
        excess = true["raw"] - true[found.chosen]
        yield finding("Brier over", found.errors["raw"].excess_brier, excess)


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
