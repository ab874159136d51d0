"""EVICT's baseline, its calibration error, and what a page shows of a ratio."""

import numpy as np
import pytest

from benchmarks.claims import evict
from benchmarks.claims.world import raw
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


def test_ratios_are_shown_as_changes():
    assert evict.percent(Estimate(1.1, 0.95, 1.25)) == "+10.0 % (-5.0..+25.0)"


def test_raw_scores_need_no_calibration(trees):
    replay = trees.replay(depth=4, nodes=31)
    assert tokens_per_s(replay.sums(evict.rule(raw(replay.table), RATIO)))[0] > 0.0
