"""Rival policies do what their sources say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.claims.rivals import (
    AdaptiveSteps,
    BatchGate,
    DynamicDepth,
    ServedSearch,
    Utility,
    best,
    chains,
)


def level(*rows):
    """One family under the root of each request."""
    return np.array(rows, dtype=float)[:, None, :], None


def under_the_first(*rows):
    """One family under the first node of each request's level before."""
    prob = np.array(rows, dtype=float)[:, None, :]
    return prob, np.zeros((len(rows), 1), dtype=np.int64)


def steps_after(policy, accepted, count=60):
    for _ in range(count):
        policy.observe(1 + min(accepted, policy.steps), 1.0)
    return policy.steps


def test_a_moving_average_adds_steps_after_accepted_drafts():
    assert steps_after(AdaptiveSteps(7, 1), 7) == 7


def test_a_moving_average_takes_steps_away_after_rejected_drafts():
    assert steps_after(AdaptiveSteps(7, 1), 0) == 1


def test_a_moving_average_between_its_thresholds_holds_the_steps():
    """From 5 steps: up beyond 4.5 accepted, down to 2.25."""
    policy = AdaptiveSteps(7, 1)
    assert {steps_after(policy, accepted, 1) for accepted in [2, 3, 4] * 20} == {5}


def test_a_batch_of_64_drafts_nothing():
    assert steps_after(AdaptiveSteps(7, 64), 0) == 0


def test_a_batch_that_stopped_drafting_tries_one_step_again():
    policy = AdaptiveSteps(7, 32)
    seen = {steps_after(policy, 0, 1) for _ in range(60)}
    assert seen == {0, 1}


def decode(policy, tokens, us, count, batch=1):
    """Widths of steps, where a step of width n commits `tokens[n]` in `us[n]`."""
    widths = []
    for _ in range(count):
        step = policy.begin(batch, 100.0, 7)
        while step.deeper():
            step.extend(*(under_the_first([0.9]) if widths_of(step) else level([0.9])))
        width = 1 + int(step.keep().sum())
        widths.append(width)
        policy.observe(tokens[width - 1], us[width - 1])
    return widths


def widths_of(step):
    return step._step._trees.levels


PEAK_AT_3 = [1, 1.8, 2.5, 2.6], [1.0, 1.2, 1.4, 1.8]
NEVER = [1, 1.1, 1.2, 1.3], [1.0, 1.5, 2.0, 2.5]


def test_utility_sets_the_fastest_length():
    widths = decode(Utility(chains(3)), *PEAK_AT_3, 32)
    assert widths[-16:] == [3] * 16


def test_utility_tests_upwards_until_throughput_falls():
    widths = decode(Utility(chains(5)), [1, 2, 1, 9, 9, 9], [1.0] * 6, 16)
    assert sorted(set(widths)) == [1, 2, 3]


def test_utility_stops_drafting_for_longer_each_time_it_does_not_pay():
    drafting = np.flatnonzero(np.array(decode(Utility(chains(3)), *NEVER, 300)) > 1)
    pauses = np.diff(drafting)
    pauses = pauses[pauses > 1]
    assert (np.diff(pauses) > 0).all() and len(pauses) >= 2


def test_a_search_forces_each_width_and_keeps_the_fastest():
    search = ServedSearch(chains(3))
    widths = decode(search, *PEAK_AT_3, 60)
    assert widths[:12] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert set(widths[48:]) == {3} and search.choice(1).width == 3


def test_a_search_is_open_while_it_forces_widths():
    search = ServedSearch(chains(3))
    decode(search, *PEAK_AT_3, 5)
    assert search.choice(1) is None


@given(st.lists(st.floats(1.0, 8.0), min_size=8, max_size=8))
def test_a_search_never_chooses_wider_at_a_larger_batch(tokens):
    search = ServedSearch(chains(3))
    for batch, gained in ((1, tokens[:4]), (4, tokens[4:])):
        decode_batch(search, gained, batch)
    assert search.choice(4).width <= search.choice(1).width


def decode_batch(search, tokens, batch):
    search.begin(batch, 100.0, 7)
    while search.choice(batch) is None:
        search.begin(batch, 100.0, 7)
        search.observe(tokens[search._now.arm.depth], 1.0)


def test_dynamic_depth_stops_where_confidence_falls():
    step = DynamicDepth("", 5, 9, 0.5).begin(1, 100.0, 60)
    assert step.deeper()
    step.extend(*level([0.5, 0.3]))
    assert step.deeper()
    step.extend(*under_the_first([0.4, 0.4]))
    assert not step.deeper()


def test_a_gate_stops_a_request_and_gives_its_budget_to_another():
    step = BatchGate("", 5, 3, 0.2).begin(2, 100.0, 60)
    assert step.deeper()
    step.extend(*level([0.9, 0.05], [0.1, 0.08]))
    assert step.deeper()
    step.extend(*under_the_first([0.8, 0.1], [0.9, 0.1]))
    kept = step.keep()
    assert kept[0].sum() == 3 and kept[1].sum() == 1
    assert not kept[1, 2:].any()


def test_a_gate_ends_drafting_where_every_request_is_stopped():
    step = BatchGate("", 5, 3, 0.2).begin(2, 100.0, 60)
    step.extend(*level([0.1], [0.15]))
    assert not step.deeper()


@pytest.mark.parametrize("nodes", [0, 1, 2, 5])
def test_the_best_nodes_are_no_padding(nodes):
    scores = np.array([[0.5, 0.0, 0.7]])
    assert best(scores, nodes).sum() == min(nodes, 2)
