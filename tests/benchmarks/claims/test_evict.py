"""The ablations and the planted drafter are what the page says."""

import numpy as np
import pytest

from benchmarks.claims import curves, evict
from benchmarks.claims.worlds import raw
from evict_profile.replay.policies import RATIO
from evict_profile.replay.sums import tokens_per_s
from evict_profile.stats import Estimate


def test_a_baseline_is_no_faster_than_itself(trees):
    found = evict.judged(trees)
    assert found.over(evict.whole_tree).value == 1.0


def test_the_baseline_verifies_32_tokens_of_4_levels(trees):
    whole = evict.judged(trees).whole
    assert (whole["verified"] / whole["requests"])[0] <= 32
    assert (whole["depth"] / whole["requests"])[0] == 4


def test_the_halves_share_no_prompt(trees):
    assert not {*trees.of(half=0).prompts} & {*trees.of(half=1).prompts}


def test_a_constant_cost_keeps_the_whole_tree(trees):
    table = raw(evict.constant_cost(trees.table))
    found = evict.judged(trees)
    kept = found.replay.sums(evict.rule(table))
    assert kept["verified"][0] == pytest.approx(found.whole["verified"][0])


def test_a_constant_acceptance_gives_all_nodes_one_score(trees):
    known = evict.constant_acceptance(trees).acceptance
    assert len({*known.acceptances[0][1:]}) == 1 and known.conditional is None


def test_a_block_drafter_does_not_know_the_prefix(trees):
    nodes = evict.independent(trees.whole).nodes
    at = (nodes.step == nodes.step[0]) & (nodes.depth == 2) & (nodes.rank == 0)
    assert np.ptp(nodes.own_prob[at]) == pytest.approx(0.0, abs=1e-9)


def test_a_block_drafter_takes_one_level_for_all(trees):
    clock = evict.block_clock(trees.base).drafting.at(1)
    assert clock.overhead_us(1) == clock.overhead_us(5) < clock.overhead_us(0) + 1e4


def test_a_calibration_error_is_that_of_known_chances(trees):
    trace = evict.evict_nodes(trees.whole)
    accepted = trace.nodes.accepted.astype(float)
    right = evict.calibration_error(trace, accepted)
    wrong = evict.calibration_error(trace, np.minimum(accepted + 0.25, 1.25) - 0.5)
    assert right.value == 0.0 and wrong.value == pytest.approx(0.25)


def test_a_calibration_error_uses_the_nodes_of_evicts_trees(trees):
    trace = evict.evict_nodes(trees.whole)
    nodes = trace.nodes
    assert trace.size.max() <= 31 and nodes.depth.max() == 4
    inner = nodes.parent >= 0
    assert (nodes.path_prob[inner] <= nodes.path_prob[nodes.parent[inner]]).all()
    assert (nodes.step[inner] == nodes.step[nodes.parent[inner]]).all()


def test_a_curve_begins_at_the_cost_of_plain_decoding(trees):
    cost = curves.cost_curve(trees, trees.whole)
    context = float(np.clip(trees.whole.context.mean(), 128, 224))
    one, experts = np.array([1.0]), np.array([4.0])
    plain = trees.base.cost.latency_us(one, experts, context, 1.0)[0]
    assert cost[0, 0] >= plain - 1e-6 and (np.diff(cost[:, 0]) >= 0).all()


def test_ratios_are_shown_as_changes():
    assert evict.percent(Estimate(1.1, 0.95, 1.25)) == "+10.0 % (-5.0..+25.0)"


def test_raw_scores_need_no_calibration(trees):
    replay = trees.replay(depth=4, nodes=31)
    assert tokens_per_s(replay.sums(evict.rule(raw(replay.table), RATIO)))[0] > 0.0
