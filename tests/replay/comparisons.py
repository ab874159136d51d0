"""Comparisons with given numbers."""

import numpy as np

from evict_profile.replay import comparison, policies
from evict_profile.replay.compare import one_percent_rule
from evict_profile.replay.comparison import FixedPoint
from evict_profile.replay.policies import BEST_PAIR, BEST_WIDTH
from evict_profile.stats import Estimate

SPEEDS = {policies.AR: 100.0, policies.FULL_TREE: 80.0, BEST_WIDTH: 120.0}
SPEEDS |= {BEST_PAIR: 120.5, policies.RATE: 130.0}
SPEEDS[policies.ORACLE] = 200.0
SETTINGS = {BEST_WIDTH: "8 tokens at depth 5", BEST_PAIR: "6 tokens at depth 3"}


def make_comparison(
    speeds=(), doubt=0.005, workload="code", assumptions=(), estimate=()
):
    """A comparison of given tokens/s; intervals reach `doubt` to either side."""
    known = SPEEDS | dict(speeds)
    kinds = policies.HINDSIGHT, policies.GUIDED
    strongest, adaptive = (
        own[one_percent_rule(np.array([known[name] for name in own]))]
        for own in ([n for n in kind if n in known] for kind in kinds)
    )
    results = {name: _result(name, known, doubt) for name in known}
    fixed = FixedPoint(3, 6, known[BEST_PAIR]), FixedPoint(5, 8, known[BEST_WIDTH])
    return comparison.Comparison(
        comparison.Scenario(workload, 0.0, 1), 20, 1000, (*results.values(),), fixed,
        results[strongest], results[adaptive], assumptions, bool(assumptions),
        estimate, (),
    )  # fmt: skip


def _result(name, speeds, doubt):
    def about(value, wide):
        return Estimate(value, value * (1.0 - wide), value * (1.0 + wide))

    over = {
        other: about(speeds[name] / speed, doubt if other != name else 0.0)
        for other, speed in speeds.items()
    }
    served = "--speculative-num-steps 3" if name in SETTINGS else ""
    known = SETTINGS.get(name, ""), served, about(speeds[name], doubt), over
    return comparison.PolicyResult(name, *known, *[about(4.0, 0.01)] * 8)
