"""Served verifications correct a table's level and the text's unions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.learning import (
    BOUNDS,
    FORCED,
    OPEN_GROWTH,
    OPEN_LEVELS,
    OUTSIDE_STEPS,
    SHARES,
    ForwardParts,
    Learner,
)
from tests.shipped import tracked

BATCH, CONTEXT = 2, 1024.0
[TABLE] = tracked("cost_tables/composed/nvidia-h200/qwen3-30b-a3b/*bfloat16-tp1*.json")
WIDTHS = np.random.default_rng(1).integers(BATCH, 64, 400).tolist()


@pytest.fixture(scope="module")
def table():
    return CostTable.load(Path(TABLE))


@pytest.fixture(scope="module")
def parts(table):
    return ForwardParts.of(table, BATCH, CONTEXT)


def truncator(table):
    return Truncator(table, drafts="topk", acceptance="target-only")


def taught(parts, level, share, noise=0.03, widths=WIDTHS, learner=None):
    """A learner after verifications of a machine and a text."""
    learner = learner or Learner()
    rng = np.random.default_rng(0)
    for tokens in widths:
        equal, growth, uniform = parts.at(tokens)
        us = (1.0 + level) * equal + growth + share * uniform
        learner.observe((equal, growth, uniform), us * rng.normal(1.0, noise))
    return learner


def test_parts_add_up_to_the_forward_of_the_table(table, parts):
    whole = parts.equal + parts.growth
    stairs = table.costs(BATCH, CONTEXT).step_cost_us
    np.testing.assert_allclose(whole[BATCH:], stairs[BATCH:], rtol=1e-9)


@given(st.floats(-0.2, 0.3), st.floats(-0.8, 0.2))
def test_level_and_unions_are_told_apart(parts, level, share):
    """Nothing was probed: the widths are those that were served."""
    learner = taught(parts, level, share)
    assert learner.level == pytest.approx(level, abs=0.05)
    assert learner.growth == pytest.approx(share, abs=0.1)


def test_a_text_that_changes_is_followed_within_64_steps(parts):
    learner = taught(parts, 0.0, -0.7)
    taught(parts, 0.0, 0.0, widths=WIDTHS[:64], learner=learner)
    true_us = (parts.equal + parts.growth)[BATCH:65]
    np.testing.assert_allclose(learner.corrected(parts)[BATCH:65], true_us, rtol=0.06)


@given(st.lists(st.tuples(st.integers(BATCH, 64), st.floats(0.001, 1e9))))
def test_no_times_lead_out_of_bounds(parts, steps):
    learner = Learner()
    for tokens, us in steps:
        learner.observe(parts.at(tokens), us)
    low, high = OPEN_LEVELS if learner.is_other else BOUNDS
    most = OPEN_GROWTH if learner.is_other else SHARES[1]
    assert low - 1.0 - 1e-12 <= learner.level <= high - 1.0
    us = learner.corrected(parts)
    least = (1.0 + learner.level) * parts.equal
    assert (us >= least - 1e-9).all()
    assert (us <= least + most * parts.uniform + 1e-6).all()


@pytest.mark.parametrize(("level", "share"), [(1.5, 0.0), (-0.6, -0.5), (0.5, 2.0)])
def test_another_machine_is_learnt_where_its_numbers_leave_their_bounds(
    parts, level, share
):
    learner = taught(parts, level, share)
    assert learner.is_other and not learner.is_lost
    true_us = (1.0 + level) * parts.equal + parts.growth + share * parts.uniform
    np.testing.assert_allclose(
        learner.corrected(parts)[BATCH:64], true_us[BATCH:64], rtol=0.1
    )


@given(st.floats(-0.2, 0.2), st.floats(-1.0, 0.0), st.integers(0, 9))
def test_no_text_is_taken_for_another_machine(parts, level, share, seed):
    widths = np.random.default_rng(seed).integers(BATCH, 64, 100).tolist()
    assert not taught(parts, level, share, noise=0.06, widths=widths).is_other


def served(one, parts, us, steps):
    """Tokens of each step of a server that takes `us` by tokens."""
    prob = torch.linspace(0.9, 0.1, 60).reshape(1, 60)
    tokens = []
    for _ in range(steps):
        plan = one.plan(prob, CONTEXT)
        one.observe(plan, 1, verify_us=us.item(plan.tokens))
        tokens.append(plan.tokens)
    return tokens


def test_another_machine_s_widths_are_forced_for_a_few_steps_once(table):
    own = ForwardParts.of(table, 1, CONTEXT)
    one = truncator(table)
    tokens = served(one, own, 3.0 * (own.equal + own.growth), 100)
    begin = OUTSIDE_STEPS + 1
    forced = [1 + round(60 * share) for share in FORCED]
    assert tokens[begin : begin + len(FORCED)] == forced
    assert one.learner.forced is None
    assert len(set(tokens[-20:])) == 1


def test_costs_that_do_not_settle_leave_trees_whole(table):
    own = ForwardParts.of(table, 1, CONTEXT)
    one, rng = truncator(table), np.random.default_rng(0)
    for _ in range(100):
        plan = one.plan(torch.full((1, 8), 0.5), CONTEXT)
        us = (own.equal + own.growth).item(plan.tokens) * 2.0 * 4.0 ** rng.normal()
        one.observe(plan, 1, verify_us=us)
    assert one.learner.is_lost
    assert one.plan(torch.full((1, 8), 0.01), CONTEXT).tokens == 9


def test_what_was_learnt_of_another_machine_outlives_its_server(parts):
    learner, other = taught(parts, 1.5, 0.0), Learner()
    other.restore(learner.learnt("a" * 64))
    assert other.learnt("") == learner.learnt("")
    assert other.is_other and other.forced is None
    np.testing.assert_array_equal(other.corrected(parts), learner.corrected(parts))


def test_without_times_of_verification_plans_stay_the_table_s(table):
    prob = torch.linspace(0.9, 0.1, 2 * 30).reshape(2, 30)
    first, other = truncator(table), truncator(table)
    for _ in range(5):
        plan = first.plan(prob, CONTEXT)
        assert plan.host_keep.tolist() == other.plan(prob, CONTEXT).host_keep.tolist()
        first.observe(plan, 2)
        other.observe(plan, 2)


def test_a_text_of_fewer_experts_makes_wider_trees_pay(table):
    """The table guesses uniform routing; the server's unions grow by a fifth of it."""
    prob = torch.linspace(0.8, 0.2, 60).cumprod(0).reshape(1, 60) ** 0.2
    one = truncator(table)
    before = one.plan(prob, CONTEXT).tokens
    own = ForwardParts.of(table, 1, CONTEXT)
    for _ in range(60):
        plan = one.plan(prob, CONTEXT)
        equal, _, uniform = own.at(plan.tokens)
        one.observe(plan, 2, verify_us=equal + 0.2 * uniform)
    assert one.plan(prob, CONTEXT).tokens > before


def test_the_table_s_forward_is_not_what_was_learnt(table):
    one = truncator(table)
    plan = one.plan(torch.full((1, 8), 0.5), CONTEXT)
    before = one.forward_us(plan)
    for _ in range(20):
        one.observe(plan, 1, verify_us=0.5 * before)
    assert one.forward_us(plan) == before
    assert one.plan(torch.full((1, 8), 0.5), CONTEXT).step_cost_us < plan.step_cost_us


@pytest.mark.parametrize("us", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(table, us):
    one = truncator(table)
    plan = one.plan(torch.full((1, 8), 0.5), CONTEXT)
    with pytest.raises(ConfigError, match="verify_us"):
        one.observe(plan, 1, verify_us=us)
