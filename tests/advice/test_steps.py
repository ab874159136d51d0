"""Ratios of steps by where they are known from."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.steps import (
    OfEstimate,
    OfServed,
    OfTable,
    Unserved,
)
from evict_profile.errors import DataError
from evict_profile.served.growth import ESTIMATE_ERROR, EXPONENT, log_half_width
from evict_profile.served.step import ServedStep
from evict_profile.table import CostTable
from tests.advice.served import served_table
from tests.exported import shipped_table

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"


def test_a_sweeps_ratio_is_its_served_steps(saved_table):
    table = CostTable.load(saved_table)
    served = ServedStep.of(table)
    steps = OfTable(table, 64, served)
    found = steps.ratio(2, 3, 2)
    assert (found.value, found.basis) == (served.ratio(2, 3, 2, 64), "table")
    assert steps.reference_us(2) == served.us(2, 1, 0, 64).value
    assert steps.reference_drafts(2) == 0
    with pytest.raises(DataError, match="no cost of 64 tokens"):
        steps.ratio(1, 64, 63)


def test_a_servers_ratio_is_its_tables():
    table = served_table((1, 0, 8.0, 512), (1, 3, 16.0, 512))
    steps = OfServed(table)
    assert steps.ratio(1, 4, 3) == table.ratio(1, 4, 3)
    assert steps.reference_us(1) == pytest.approx(8e3)


def test_an_estimates_ratio_is_between_its_forwards_growth_and_other_servers():
    """The geometric mean of both, with the error of other servers."""
    table = shipped_table(H200)
    steps, cost_us = OfEstimate(table, 512), table.step_cost_us(8, 512)
    found = steps.ratio(8, 4, 3)
    forward = cost_us[32] / cost_us[8]
    assert found.value.value == pytest.approx(math.sqrt(forward * 4.0**EXPONENT))
    assert log_half_width(found.value) == pytest.approx(ESTIMATE_ERROR)
    assert found.basis == "estimate"
    assert steps.ratio(8, 1, 0).value.known is False
    with pytest.raises(DataError, match="has no cost of 1000 tokens"):
        steps.ratio(64, 1000, 999)


@given(st.integers(2, 16), st.sampled_from([1, 8, 64]))
def test_a_wider_step_takes_at_least_a_plain_one(width, batch):
    steps = OfEstimate(shipped_table(H200), 512)
    found = steps.ratio(batch, width, width - 1).value
    assert 1.0 <= found.low <= found.value <= found.high


def test_costs_that_fall_make_no_step_shorter():
    falls = SimpleNamespace(step_cost_us=lambda *_: np.linspace(100.0, 1.0, 64))
    found = OfEstimate(falls, 512).ratio(1, 63, 62).value
    assert (found.low, found.value) == (1.0, 1.0) and found.high > 1.0


@given(st.integers(1, 64))
def test_without_a_run_a_step_grows_as_other_servers_do(width):
    steps = Unserved(asked=(4, 8))
    found = steps.ratio(4, width, width - 1)
    assert found.value.value == pytest.approx(width**EXPONENT)
    assert found.basis == "other servers"
    assert steps.batches() == (4, 8)
