"""A step is charged for what deciding takes, beyond what its clocks hold already."""

import json
from pathlib import Path

import numpy as np
import pytest

from evict_profile.errors import ConfigError
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.decisions import SCHEMA, DecisionTime, DecisionTimes
from evict_profile.replay.policies import (
    BEST_PAIR,
    GUIDED,
    PAIR_CONDITIONAL,
    RATE,
    THRESHOLD,
    Fixed,
    Threshold,
    guided,
    plain_decoding,
)
from evict_profile.replay.simulate import StepPrices, simulate
from evict_profile.runtime import CostTable


def took(policy: str, batch: int, us: float) -> DecisionTime:
    return DecisionTime(policy, batch, us, us, us)


TIMES = DecisionTimes(
    (
        took(BEST_PAIR, 1, 30.0),
        took(PAIR_CONDITIONAL, 1, 40.0),
        took(THRESHOLD, 1, 20.0),
        took(RATE, 1, 70.0),
        took(BEST_PAIR, 16, 100.0),
        took(RATE, 16, 300.0),
    )
)


def test_a_policy_is_charged_beyond_a_fixed_width(table: CostTable) -> None:
    """At the batch nearest in ratio; a quicker one is given nothing."""
    rate = guided(table, 4)[RATE]()
    curves = table.acceptance.conditional
    expected = {
        (rate, 1): 40.0,
        (rate, 3): 40.0,
        (rate, 5): 200.0,
        (Fixed("", 2, 4), 1): 0.0,
        (Fixed("", 2, 4, curves), 1): 10.0,
        (Threshold(THRESHOLD, 2, 0.1), 1): 0.0,
        (plain_decoding(), 1): 0.0,
    }
    for (policy, batch), us in expected.items():
        assert TIMES.beyond_fixed_us(policy, batch) == us


def test_without_times_deciding_is_free_and_a_caveat(
    table: CostTable, arrays: TraceArrays
) -> None:
    """Which a bench takes away."""
    free, charged = (
        StepPrices(table, arrays, 1, decisions=each)
        for each in (DecisionTimes(), TIMES)
    )
    assert free.decisions.beyond_fixed_us(guided(table, 4)[RATE](), 1) == 0.0
    (caveat,) = set(free.caveats) - set(charged.caveats)
    assert caveat == "deciding is free: give the times of evict-profile bench"


def test_each_step_is_charged(table: CostTable, arrays: TraceArrays) -> None:
    """For a policy that learns nothing the steps are the same."""
    runs = [
        simulate(
            arrays,
            Fixed("", 3, 6, table.acceptance.conditional),
            StepPrices(table, arrays, 1, decisions=each),
            1,
            seed=0,
        )
        for each in (DecisionTimes(), TIMES)
    ]
    np.testing.assert_array_equal(runs[0].rows, runs[1].rows)
    np.testing.assert_allclose(runs[1].step_us - runs[0].step_us, 10.0)
    np.testing.assert_allclose(runs[1].price[:, 2] - runs[0].price[:, 2], 10.0)


def test_a_bench_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    rows = [{"policy": RATE, "batch": 1, "us": 9.0, "low_us": 8.0, "high_us": 10.0}]
    path.write_text(json.dumps({"schema": SCHEMA, "decision_us": rows}))
    assert DecisionTimes.load(path).times == (DecisionTime(RATE, 1, 9.0, 8.0, 10.0),)


@pytest.mark.parametrize(
    "text",
    ["no json", "{}", "[]", json.dumps({"schema": "evict-bench/2", "decision_us": []})],
)
def test_what_holds_no_times_is_refused(tmp_path: Path, text: str) -> None:
    """With the command that writes them."""
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="evict-profile bench --only decision"):
        DecisionTimes.load(path)


def test_every_policy_that_reads_a_table_is_timed(table: CostTable) -> None:
    """By the bench, under the names of a replay."""
    from evict_profile.bench import _policies

    assert {*GUIDED, BEST_PAIR, PAIR_CONDITIONAL, THRESHOLD} == set(_policies(table))
