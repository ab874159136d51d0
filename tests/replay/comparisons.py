"""Comparisons with given numbers."""

import numpy as np

from evict_profile.replay.compare import one_percent_rule
from evict_profile.replay.comparison import (
    Comparison,
    FixedPoint,
    PolicyResult,
    Scenario,
)
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    GUIDED,
    HINDSIGHT,
    ORACLE,
    RATE,
    THRESHOLD,
)
from evict_profile.stats import Estimate

SPEEDS = {
    AR: 100.0,
    FULL_TREE: 80.0,
    BEST_WIDTH: 120.0,
    BEST_PAIR: 120.5,
    THRESHOLD: 121.0,
    RATE: 130.0,
    ORACLE: 200.0,
}
SETTINGS = {
    BEST_WIDTH: "8 tokens at depth 5",
    BEST_PAIR: "6 tokens at depth 3",
    THRESHOLD: "0.2",
}


def make_comparison(
    speeds=None, doubt=0.005, scenario=None, prompts=20, assumptions=()
):
    """A comparison of given tokens/s; intervals reach `doubt` to either side."""
    known = SPEEDS | dict(speeds or {})
    strongest, adaptive = (
        own[one_percent_rule(np.array([known[name] for name in own]))]
        for own in ([n for n in kind if n in known] for kind in (HINDSIGHT, GUIDED))
    )
    results = tuple(_result(name, known, doubt) for name in known)
    width, pair = (
        FixedPoint(5, 8, known[BEST_WIDTH]),
        FixedPoint(3, 6, known[BEST_PAIR]),
    )
    return Comparison(
        scenario or Scenario("code", 0.0, 1), prompts, 1000, results,
        (pair, width), _result(strongest, known, doubt),
        _result(adaptive, known, doubt), assumptions, bool(assumptions), (),
    )  # fmt: skip


def _result(name, speeds, doubt):
    def about(value, wide):
        return Estimate(value, value * (1.0 - wide), value * (1.0 + wide))

    over = {
        other: about(speeds[name] / speed, doubt if other != name else 0.0)
        for other, speed in speeds.items()
    }
    some = about(4.0, 0.01)
    return PolicyResult(
        name,
        SETTINGS.get(name, ""),
        "--speculative-num-steps 3" if name in SETTINGS else "",
        about(speeds[name], doubt),
        over,
        *[some] * 8,
    )
