"""What nodes and a trace answer, on trees small enough to count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import DataError
from evict_profile.traces import Reply
from evict_profile.traces.trace import check_one_temperature, check_trees, falling
from tests.traces.steps import make_nodes, make_steps, steps_of
from tests.traces.synthetic import Plan, make_trace

CODE = Reply("code", 0)
ONE_NODE = ([-1], [0.5], [True])


@st.composite
def trees(draw):
    size = draw(st.integers(0, 12))
    chance = st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 1.0])
    parent = [draw(st.integers(-1, i - 1)) for i in range(size)]
    return parent, [draw(chance) for _ in parent], [False] * size


def plain_depth(parent, node):
    return 1 if parent[node] < 0 else 1 + plain_depth(parent, parent[node])


def plain_rank(parent, prob, node, among):
    """Those that are better, or as good and before it."""
    own = [(-prob[i], i) for i in range(len(parent)) if among(i)]
    return sorted(own).index((-prob[node], node))


def plain_least(parent, prob, node):
    above = parent[node]
    return (
        prob[node] if above < 0 else min(prob[node], plain_least(parent, prob, above))
    )


@given(st.lists(trees(), min_size=1, max_size=5))
def test_depth_rank_place_and_least_on_the_path(forest):
    nodes, expected = make_nodes(*forest), []
    for parent, prob, _ in forest:
        for i, above in enumerate(parent):
            siblings = [j for j, other in enumerate(parent) if other == above]
            among = siblings.__contains__, lambda _: True
            ranks = (plain_rank(parent, prob, i, which) for which in among)
            least = plain_least(parent, prob, i)
            expected.append((plain_depth(parent, i), *ranks, least))
    lowered = falling(nodes.parent, nodes.path_prob)
    found = (nodes.depth, nodes.rank, nodes.place, lowered)
    assert [*zip(*(each.tolist() for each in found), strict=True)] == expected


@given(st.lists(trees(), min_size=1, max_size=5))
def test_siblings_and_nobody_else_share_a_family(forest):
    family = make_nodes(*forest).family.tolist()
    parents = [(k, above) for k, (parent, *_) in enumerate(forest) for above in parent]
    for i, one in enumerate(parents):
        assert [f == family[i] for f in family] == [one == p for p in parents]


def test_what_a_node_has_of_its_parent():
    nodes = make_nodes(
        ([-1, 0], [0.5, 0.2], [True, False]),
        ([-1, -1, 1], [0.4, 0.0, 0.0], [False] * 3),
    )
    assert nodes.own_prob.tolist() == [0.5, 0.4, 0.4, 0.0, 0.0]
    assert nodes.parent_accepted.tolist() == [True, True, True, True, False]


def test_steps_are_taken_with_their_trees_and_routes():
    trace = make_trace(Plan(prompts=2, tokens=6))
    rows = np.array([17, 3, 3, 9])
    steps, taken = list(steps_of(trace)), trace.take(rows)
    for row, own in zip(rows, steps_of(taken), strict=True):
        for name in vars(own):
            assert np.array_equal(getattr(own, name), getattr(steps[row], name))
    assert taken.verify_us.tolist() == trace.verify_us[rows].tolist()
    named = [trace.replies[trace.reply[row]] for row in rows]
    assert [taken.replies[each] for each in taken.reply] == named
    assert len(taken.replies) == len(set(named))


def test_a_reply_with_a_tree_everywhere_is_dense():
    """It has one step a token; else the last step adds what it committed."""
    whole, *others = ((0, 1, 2), 3), ((0, 2, 4), 6), ((1, 2, 3), 5), ((4,), 6)
    for positions, tokens in (whole, *others):
        trace = make_steps([CODE], [ONE_NODE] * len(positions), positions)
        dense = positions == whole[0]
        assert (trace.dense, trace.tokens.tolist()) == (dense, [tokens])


def test_replies_to_one_prompt_share_its_number():
    plan = Plan(prompts=6, tokens=1, seeds=2, temperatures=(0.0, 1.0))
    trace = make_trace(plan)
    assert len(trace.replies) == 36
    assert len(trace.prompts) == len(set(trace.prompt.tolist())) == 12
    for reply, prompt in zip(trace.replies, trace.prompt, strict=True):
        assert trace.prompts[prompt] == (reply.workload, reply.prompt)


def test_only_some_workloads_or_temperatures():
    trace = make_trace(Plan(prompts=3, tokens=2, temperatures=(0.0, 1.0)))
    assert (trace.workloads, trace.temperatures) == (("code", "prose"), (0.0, 1.0))
    assert trace.only(["code"]).workloads == ("code",)
    assert len(trace.only(["prose"], [1.0]).replies) == 3
    assert len(trace.only(temperatures=[0.0]).replies) == 6
    assert trace.only(["prose", "code"], [1.0, 0.0]).replies == trace.replies
    with pytest.raises(DataError, match="chat at temperature any; it holds code at 0"):
        trace.only(["code", "chat"])
    with pytest.raises(DataError, match=r"of workload code at temperature 0\.7; it"):
        trace.only(["code"], [0.7])


def test_parts_share_no_prompt_and_leave_none_out():
    trace = make_trace(Plan(prompts=5, tokens=2))
    parts = [trace.part(index, 2) for index in range(2)]
    assert sorted(parts[0].prompts + parts[1].prompts) == list(trace.prompts)
    assert parts[0].workloads == parts[1].workloads == ("code", "prose")
    with pytest.raises(DataError, match=r"part 9/9 .* no prompt; it has 10 in all"):
        trace.part(8, 9)


def test_temperatures_are_not_learnt_from_together():
    """Nor is anything learnt from plain steps alone."""
    pooled = make_trace(Plan(prompts=1, tokens=2, temperatures=(0.0, 1.0)))
    with pytest.raises(DataError, match=r"temperatures 0, 1, .*--temperature"):
        check_one_temperature(pooled)
    check_one_temperature(pooled.only(temperatures=[1.0]))
    check_trees(make_steps([CODE], [ONE_NODE]))
    with pytest.raises(DataError, match="holds no draft node"):
        check_trees(make_steps([CODE], [([], [], [])]))
