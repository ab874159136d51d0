"""Each gate fails on the rows that it is for, and says why."""

import numpy as np
import pandas as pd
import pytest

from evict_profile.config import load_model
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import (
    attention_gate,
    expert_gates,
    monotone_gate,
    slowdown_gate,
)
from evict_profile.sources.parts import Bounded, Parts
from tests.sources.wheel import PAIR, PEAK_GBPS, SHARE, US_PER_EXPERT, moe_rows


def failed(rows, **changed):
    """The gates that rows fail, with their reasons."""
    experts = ExpertRows(PAIR._replace(**changed), pd.DataFrame(rows), PEAK_GBPS)
    return {g.name: g.message for g in expert_gates(experts) if not g.passed}


def with_slope(times):
    """Rows whose experts take so many times as long."""
    extra = (times - 1.0) * US_PER_EXPERT
    return [
        row | {"us": row["us"] + extra * (row["us"] - 20) / US_PER_EXPERT}
        for row in moe_rows()
    ]


def test_rows_that_follow_the_formula_pass():
    assert failed(moe_rows()) == {}


def test_a_kernel_far_below_the_bandwidth_fails():
    found = failed(with_slope(SHARE / 0.15))
    assert list(found) == ["slope"]
    assert (
        "an expert implies 0.15 of peak bandwidth, outside 0.6..1.15"
        in (found["slope"])
    )


def test_a_kernel_beyond_the_bandwidth_ran_fewer_experts():
    assert "fewer experts ran" in failed(with_slope(SHARE / 1.5))["slope"]


def test_four_bit_rows_that_read_bf16_weights_are_found_out():
    # The cold rows' slope is of bf16 weights, and the label says a quarter of them.
    found = failed(with_slope(1.0), dtype="w4a16_mxfp4", gpu="a100_sxm")
    assert (
        "labelled w4a16_mxfp4, but as bf16 weights were read it would be 0.85"
        in (found["bytes of the label"])
    )


def test_shards_that_fit_into_the_cache_identify_nothing():
    found = failed(moe_rows(), tp=16)
    assert list(found) == ["identified union"]
    assert "fits into the L2 cache" in found["identified union"]


def test_rows_that_jump_about_fail_the_held_out_gate():
    rng = np.random.default_rng(0)
    rows = [row | {"us": row["us"] * rng.uniform(0.6, 1.6)} for row in moe_rows()]
    assert "held-out rows" in failed(rows)


def test_time_that_ignores_the_union_fails_on_other_routings():
    by_tokens = {
        row["num_tokens"]: row["us"]
        for row in moe_rows()
        if row["distribution"] == "balanced"
    }
    rows = [row | {"us": by_tokens[row["num_tokens"]]} for row in moe_rows()]
    assert list(failed(rows)) == ["rows of other routings"]


def test_products_that_time_the_host_fail(wheel):
    source, model = open_source(wheel), load_model("qwen3-30b-a3b")
    slow, good = (
        slowdown_gate(Parts(source, PAIR._replace(dtype=dtype), model), dtype)
        for dtype in ("fp8_block", "fp8")
    )
    assert good.passed
    assert not slow.passed
    assert "take 30.00 times bf16's" in slow.message
    assert "the host was timed" in slow.message


@pytest.mark.parametrize(("high", "passed"), [(109.0, True), (111.0, False)])
def test_wide_bounds_of_attention_fail(high, passed):
    gate = attention_gate([Bounded(99.0, 100.0, 101.0), Bounded(95.0, 100.0, high)])
    assert gate.passed is passed


@pytest.mark.parametrize(("dip", "passed"), [(0.04, True), (0.06, False)])
def test_wider_cells_that_cost_less_fail(dip, passed):
    assert monotone_gate(np.array([0.0, dip])).passed is passed
