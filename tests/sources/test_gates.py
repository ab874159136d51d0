"""Each gate fails on the rows that it is for, and says why."""

import numpy as np
import pandas as pd
import pytest

from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates, misfit
from tests.sources.wheel import PAIR, PEAK_GBPS, SHARE, US_PER_EXPERT, moe_rows


def with_slope(times):
    extra = (times - 1.0) * US_PER_EXPERT
    return [
        row | {"us": row["us"] + extra * (row["us"] - 20) / US_PER_EXPERT}
        for row in moe_rows()
    ]


def jumping():
    rng = np.random.default_rng(0)
    return [row | {"us": row["us"] * rng.uniform(0.3, 2.0)} for row in moe_rows()]


def scattered(by):
    """Rows that are off by a share, to both sides in turn."""
    return [
        row | {"us": row["us"] * (1 + by * (-1) ** i)}
        for i, row in enumerate(moe_rows())
    ]


MISLABELLED = {"dtype": "w4a16_mxfp4", "gpu": "a100_sxm"}


@pytest.mark.parametrize(
    ("rows", "changed", "gate", "says"),
    [
        (with_slope(SHARE / 0.15), {}, "slope", "0.15 of peak bandwidth, outside 0.4."),
        (with_slope(SHARE / 0.3996), {}, "slope", "0.3996 of peak bandwidth, outside"),
        (with_slope(SHARE / 1.5), {}, "slope", "fewer experts ran"),
        (with_slope(1.0), MISLABELLED, "slope", "0.23 of peak"),
        (moe_rows(), {"tp": 16}, "identified union", "fits into the L2 cache"),
        (jumping(), {}, "held-out rows", "allowed are"),
    ],
    ids=["slow", "slightly", "fast", "label", "cached", "noise"],
)
def test_rows_fail_the_gate_that_they_break(rows, changed, gate, says):
    experts = ExpertRows(PAIR._replace(**changed), pd.DataFrame(rows), PEAK_GBPS)
    failed = {g.name: g.message for g in expert_gates(experts) if not g.passed}
    assert says in failed[gate]
    alone = gate == "identified union" or says[0] == "0"
    assert len(failed) == 1 or not alone
    # Rows that follow the formula pass.
    gates = [*expert_gates(ExpertRows(PAIR, pd.DataFrame(moe_rows()), PEAK_GBPS))]
    assert [gate.passed for gate in gates] == [True] * 3


def test_rows_that_scatter_pass_and_state_by_how_much():
    tidy, loose = (
        ExpertRows(PAIR, pd.DataFrame(scattered(by)), PEAK_GBPS) for by in (0.01, 0.15)
    )
    assert misfit(tidy) == 0.0
    assert 0.1 < misfit(loose) < 0.3
    assert all(gate.passed for gate in expert_gates(loose))
