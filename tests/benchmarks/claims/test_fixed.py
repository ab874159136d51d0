"""Baselines are chosen on other prompts than they are judged on."""

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.claims import fixed
from benchmarks.claims.fixed import BareChain
from evict_profile.replay.policies import Fixed


def kept(*levels, batch=1):
    """What a chain keeps of levels of (prob [B, P, K], parent [B, P])."""
    step = BareChain("", len(levels)).begin(batch, 100.0, 60)
    for prob, parent in levels:
        above = None if parent is None else np.array(parent)
        step.extend(np.array(prob), above)
    return step.keep().astype(int).tolist()


FIRST = [[[0.6, 0.3]]], None
"""Nodes 0 and 1 under the root."""


def test_a_chain_is_the_best_child_of_each_best_child():
    """Families come in any order; the second is the best child's."""
    second = [[[0.9, 0.1], [0.5, 0.4]]], [[1, 0]]
    third = [[[0.9, 0.0], [0.3, 0.2]]], [[0, 2]]
    assert kept(FIRST, second, third) == [[1, 0, 0, 0, 1, 0, 0, 0, 1, 0]]


def test_a_chain_without_a_child_ends():
    """A family of no probability is padding, whatever parent it names."""
    nothing = [[[0.0, 0.0]]], [[0]]
    grown = [[[0.5, 0.4]]], [[0]]
    assert kept(FIRST, nothing, grown) == [[1, 0, 0, 0, 0, 0]]


def test_requests_of_a_batch_have_chains_of_their_own():
    first = [[[0.6, 0.3]], [[0.5, 0.4]]], None
    second = [[[0.9, 0.1]], [[0.9, 0.1]]], [[0], [1]]
    assert kept(first, second, batch=2) == [[1, 0, 1, 0], [1, 0, 0, 0]]


def test_a_chain_verifies_a_token_a_level(trees):
    sums = trees.replay().sums(lambda: BareChain("", 3))
    verified = (sums["verified"] / sums["requests"])[0]
    assert verified == pytest.approx(4.0, abs=0.3)


def test_baselines_are_the_fastest_on_the_prompts_that_calibrate(trees):
    before = trees.replay(half=0)
    policies = [Fixed("", 2, width) for width in (2, 4, 8)]
    speeds = {p.width: before.run(p, 0).tokens_per_s for p in policies}
    best = fixed.fastest(before, policies)
    assert best.width == max(speeds, key=speeds.get)
    assert not {*before.arrays.prompts} & {*trees.replay().arrays.prompts}


def test_every_kind_is_judged_at_every_batch(trees, monkeypatch):
    monkeypatch.setattr(fixed, "BATCHES", (1,))
    monkeypatch.setattr(fixed, "WIDTHS", (4,))
    rows = [asdict(row) for row in fixed.rows(trees)]
    kinds = [row["baseline"].partition(":")[0] for row in rows]
    assert kinds == [*fixed.kinds(trees)]
    assert len({row["over_plain"] for row in rows}) > 2


def test_a_baseline_with_calibration_ranks_by_it(trees):
    kinds = fixed.kinds(trees)
    known = trees.table.acceptance.conditional
    assert {p.conditional for p in kinds["depth and width, drafter's ranks"]} == {None}
    assert all(p.conditional is known for p in kinds["depth and width, calibrated"])
