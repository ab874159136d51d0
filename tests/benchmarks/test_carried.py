"""Carrying unions and drafting over from the traced model."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.carried import Carried, share_in
from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.table import CostTable, load_table
from evict_profile.traces import Trace
from tests.factories import DRAFTING
from tests.traces.synthetic import ABOUT

CARRIED = Carried(ABOUT, load_model("qwen3-30b-a3b"))


def uniform(tokens: float) -> float:
    """What uniform routing would wake in the traced model."""
    return ABOUT.experts * (1.0 - (1.0 - ABOUT.top_k / ABOUT.experts) ** tokens)


@given(st.integers(1, 500), st.floats(0.2, 1.0))
def test_share_of_uniform_is_kept(tokens: int, share: float) -> None:
    """What stays behind uniform routing here stays as far behind there."""
    union = np.array([share * uniform(tokens)])
    carried = CARRIED.union(np.array([float(tokens)]), union)[0]
    assert carried == pytest.approx(share * CARRIED.model.uniform_union(tokens))


def test_one_token_wakes_top_k() -> None:
    """Whatever the two models' top-k are."""
    carried = CARRIED.union(np.array([1.0]), np.array([float(ABOUT.top_k)]))
    assert carried[0] == pytest.approx(CARRIED.model.moe.top_k)


def test_no_tokens_wake_nothing() -> None:
    """And do not divide by nothing."""
    assert CARRIED.union(np.zeros(1), np.zeros(1))[0] == 0.0


def test_never_more_than_all_experts() -> None:
    """Few tokens that happen to be spread out do not wake what is not there."""
    carried = CARRIED.union(np.array([60.0]), np.array([2.0 * ABOUT.experts]))
    assert carried[0] == CARRIED.model.moe.num_experts


def test_table_is_informed(table: CostTable, informed_table: CostTable) -> None:
    """It holds the trace's acceptance, a growth of its own model, and drafting."""
    growth = np.array(informed_table.union_growth.union)
    assert informed_table.acceptance is not None
    assert growth[1] == pytest.approx(table.model.moe.top_k, abs=1e-3)
    assert np.all(np.diff(growth) >= 0.0)
    assert growth[-1] <= table.model.moe.num_experts
    assert {each.batch for each in informed_table.union_growth.by_batch} == {1, 4}


def test_drafting_is_a_share_of_a_plain_step(
    informed_table: CostTable, trace: Trace
) -> None:
    """So many levels, each a share of what the table prices plain decoding at."""
    assert informed_table.drafting is not None
    clock = informed_table.drafting.batches[0]
    stairs = next(s for s in informed_table.staircases if s.batch == clock.batch)
    plain_us = stairs.step_cost_us[clock.batch]
    assert len(clock.draft_us) == trace.about.depth + 1
    assert clock.draft_us[2] / plain_us == pytest.approx(0.2, rel=0.05)
    assert clock.fixed_us == clock.plain_fixed_us == 0.0


def test_share_of_a_world(workload_table: object) -> None:
    """Its mean level over its plain step, host included."""
    known = load_table(workload_table)  # type: ignore[arg-type]
    clock = DRAFTING.batches[0]
    stairs = next(s for s in known.staircases if s.batch == 1)
    plain_us = stairs.step_cost_us[1] + clock.plain_fixed_us
    share = share_in(known, stairs.context)
    assert math.isclose(share, clock.draft_us[-1] / 3 / plain_us, rel_tol=0.05)


def test_a_world_without_clocks_is_refused(table: CostTable) -> None:
    """Naming what to give instead."""
    with pytest.raises(ConfigError, match="--draft-share"):
        share_in(table, 64)
