"""What every policy promises an engine, on trees as drafters make them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.acceptance import ConditionalAcceptance
from evict_profile.records import replace
from evict_profile.replay.policies import GUIDED, RATE, RATE_DEPTH, RATIO, Fixed
from evict_profile.runtime import Truncator
from tests.replay.conftest import policies


def shown(policy, *levels):
    """A step that was shown these levels, of a batch of any size."""
    step = policy.begin(len(levels[0][0]), 100.0, 64)
    for level in levels:
        step.extend(*level)
    return step


def under_the_root(*prob):
    return np.array([[prob]]), None


@pytest.mark.parametrize("name", ["full tree", "pair", *GUIDED])
def test_what_is_kept_is_closed_and_no_padding(trace, arrays, table, name):
    policy = policies(table)[name]()
    for depth in (1, policy.depth):
        held = np.concatenate([x.node for x in arrays.levels[:depth]], axis=1)
        for row in range(0, len(trace) - 2, 7):
            rows = np.arange(row, row + 3)
            step = shown(policy, *(x.of(rows) for x in arrays.levels[:depth]))
            kept = step.keep()
            assert not kept[held[rows] < 0].any()
            nodes = set(held[rows][kept].tolist())
            assert {int(trace.nodes.parent[node]) for node in nodes} <= nodes | {-1}
            policy.observe(3, 5000.0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.integers(1, 14))
def test_a_fixed_width_keeps_so_many_of_the_best(scores, width):
    scores = sorted(scores, reverse=True)
    kept = shown(Fixed("", 1, width), under_the_root(*scores)).keep()[0]
    path_prob = np.array(scores)
    assert kept.sum() == min(width - 1, (path_prob > 0.0).sum())
    if kept.any() and not kept.all():
        assert path_prob[kept].min() >= path_prob[~kept].max()


@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize(("depth", "width"), [(1, 3), (3, 6), (4, 12)])
def test_a_replay_knows_what_a_fixed_policy_keeps(arrays, table, ranked, depth, width):
    """From the ranks of all trees at once, what its steps decide one by one."""
    conditional = table.acceptance.conditional if ranked else None
    policy = Fixed("", depth, width, conditional)
    kept = arrays.ranks(depth, conditional) < width - 1
    for row in range(0, len(kept), 5):
        rows = np.array([row, row // 2])
        step = policy.begin(2, 100.0, arrays.nodes)
        for level in arrays.levels:
            if not step.deeper():
                break
            step.extend(*level.of(rows))
        assert step.keep().tolist() == kept[rows].tolist()


def test_a_fixed_width_can_rank_by_conditional_acceptance():
    """A second child counts less by its rank than a deeper best one."""
    conditional = ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0), (0.0, 0.1)))
    levels = under_the_root(0.5, 0.45), (np.array([[[0.6]]]), np.array([[0]]))
    plain, ranked = (Fixed("", 2, 3, each) for each in (None, conditional))
    assert shown(plain, *levels).keep().tolist() == [[True, True, False]]
    assert shown(ranked, *levels).keep().tolist() == [[True, False, True]]


def test_a_fixed_policy_says_how_it_is_served(table):
    own = replace(table, path=Path("a b;c/t.json"))
    plain, ranked = (
        Fixed("", 3, 12, each).served_by(own, 4, 24)
        for each in (None, table.acceptance.conditional)
    )
    tree = "--speculative-num-steps 3 --speculative-eagle-topk 4 "
    assert plain == tree + "--speculative-num-draft-tokens 12"
    named = "EVICT_PROFILE_TABLE='a b;c/t.json' EVICT_PROFILE_WIDTH=12 "
    assert ranked == named + tree + "--speculative-num-draft-tokens 25"


def test_flags_are_those_of_the_tables_engine(table):
    """vLLM drafts chains; TensorRT-LLM's settings are in no flag."""
    vllm, trtllm = (
        replace(table, key=replace(table.key, engine=engine))
        for engine in ("vllm", "trtllm")
    )
    chain, tree = Fixed("", 3, 4), Fixed("", 3, 12)
    flag = """--speculative-config '{"num_speculative_tokens": 3}'"""
    assert chain.served_by(vllm, 1, 3) == flag
    assert not tree.served_by(vllm, 4, 24)
    assert not chain.served_by(trtllm, 1, 3)


def test_a_policy_may_decode_plainly_and_come_back(table):
    """Steps that promise nothing end drafting for a while, not for ever."""
    policy = policies(table)[RATE_DEPTH]()
    asked = []
    for _ in range(40):
        step = policy.begin(1, 100.0, 64)
        asked.append(step.deeper())
        if asked[-1]:
            step.extend(*under_the_root(1e-3, 1e-3, 1e-3))
        step.keep()
        policy.observe(1, 6000.0)
    assert asked[0] and not all(asked)
    assert any(asked[len(asked) // 2 :])


@pytest.mark.parametrize(("name", "objective"), [(RATIO, "ratio"), (RATE, "rate")])
def test_a_guided_policy_does_what_its_truncator_plans(arrays, table, name, objective):
    how = {"drafts": "topk", "acceptance": "target-only", "outside": "clamp"}
    own = Truncator(table, objective=objective, **how)
    policy = policies(table)[name]()
    for row in range(30):
        rows = np.array([row])
        levels = [level.of(rows) for level in arrays.levels]
        step = own.begin(1, 100.0, 64)
        for level in levels:
            step.extend(*level)
        kept = shown(policy, *levels).keep()
        assert kept.tolist() == (step.plan().keep.numpy() & (step.scores > 0)).tolist()
        committed = 1 + int((kept & arrays.drafted(4).accepted[rows]).sum())
        policy.observe(committed, 6000.0)
        step.observe(committed, 6000.0)


def test_only_what_a_table_can_tell_is_offered(bare_table, table):
    """Only the policy that chooses a depth stops early."""
    assert tuple(policies(bare_table))[3:] == (RATIO, RATE)
    own, hopeless = policies(table), under_the_root(0.01, 0.01, 0.01, 0.01)
    assert tuple(own)[3:] == GUIDED
    assert shown(own[RATE](), hopeless).deeper()
    assert not shown(own[RATE_DEPTH](), hopeless).deeper()
