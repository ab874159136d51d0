"""What a step, a reply and a trace answer, on trees small enough to count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import TraceError
from evict_profile.records import replace
from evict_profile.traces import About, Reply, Trace
from evict_profile.traces.trace import (
    Forest,
    check_one_temperature,
    check_trees,
    make_step,
)
from tests.traces.synthetic import Plan, make_trace

TRACE = make_trace(Plan(prompts=2, tokens=6))


@pytest.fixture
def step():
    """Two branches: 0 - 2 - 3 accepted, 1 - 4 not; one layer, one expert a token."""
    routes = np.array([0, 1, 2, 1, 5, 0], np.int16).reshape(6, 1, 1)
    return make_step(
        position=0,
        parent=[-1, -1, 0, 2, 1],
        path_prob=[0.5, 0.4, 0.4, 0.3, 0.35],
        accepted=[True, False, True, True, False],
        routes=routes,
    )


def test_best_nodes_are_the_most_probable(step):
    """The width counts the root; ties keep the recorded order."""
    assert step.best(1).tolist() == []
    assert step.best(3).tolist() == [0, 1]
    assert step.best(99).tolist() == [0, 1, 2, 4, 3]


def test_best_nodes_to_a_depth(step):
    assert step.depth.tolist() == [1, 1, 2, 3, 2]
    assert step.best(4, depth=1).tolist() == [0, 1]
    assert step.best(4, depth=2).tolist() == [0, 1, 2]


def test_a_step_commits_what_it_kept_and_one_more(step):
    assert [step.committed(step.best(n)) for n in (1, 2, 4, 99)] == [1, 2, 3, 4]


def test_union_counts_the_root_and_each_expert_once(step):
    """Node 2 wakes the expert of node 0."""
    assert step.union(step.best(1)) == 1.0
    assert step.union(np.array([0])) == 2.0
    assert step.union(np.array([0, 2])) == 2.0
    assert step.union(step.best(99)) == 4.0


@given(st.integers(0, len(TRACE.steps) - 1), st.integers(1, 30))
def test_union_is_the_mean_over_layers(index, width):
    step = TRACE.steps[index]
    assert step.routes is not None
    rows = step.routes[[0, *(step.best(width) + 1)]]
    sets = [set(rows[:, layer].ravel()) for layer in range(rows.shape[1])]
    assert step.union(step.best(width)) == pytest.approx(np.mean([*map(len, sets)]))


@given(st.integers(0, len(TRACE.steps) - 1), st.integers(1, 99), st.integers(1, 4))
def test_best_nodes_are_closed_under_ancestors(index, width, depth):
    step = TRACE.steps[index]
    kept = set(step.best(width, depth).tolist())
    assert {int(step.parent[node]) for node in kept} <= kept | {-1}


def test_a_trace_without_routes_has_no_unions():
    with pytest.raises(TraceError, match=r"holds no routes.*activation curve"):
        make_step(0, [-1], [0.5], [True]).union(np.array([0]))


def reply_of(*positions):
    """Steps of one accepted node each."""
    steps = tuple(make_step(at, [-1], [0.5], [True]) for at in positions)
    return Reply("code", 0, 0, 0.0, steps)


@pytest.mark.parametrize(
    ("positions", "dense", "tokens"),
    [
        ((0, 1, 2), True, 3),
        ((0, 2, 4), False, 6),
        ((1, 2, 3), False, 5),
        ((4,), False, 6),
    ],
)
def test_a_reply_with_a_tree_everywhere_is_dense(positions, dense, tokens):
    """It has one step a token; else the last step tells what it committed."""
    reply = reply_of(*positions)
    assert (reply.dense, reply.tokens) == (dense, tokens)
    assert Trace(About(), (reply_of(0, 1), reply)).dense == dense


def test_only_one_workload():
    trace = make_trace(Plan(prompts=3, tokens=2, temperatures=(0.0, 1.0)))
    assert trace.workloads == ("code", "prose")
    assert trace.temperatures == (0.0, 1.0)
    assert trace.only(workload="code").workloads == ("code",)
    assert len(trace.only("prose", temperature=1.0).replies) == 3
    assert len(trace.only(temperature=0.0).replies) == 6


def test_only_what_is_not_there_is_refused():
    with pytest.raises(TraceError, match=r"workload chat; it holds code at 0, prose"):
        TRACE.only("chat")
    with pytest.raises(TraceError, match=r"temperature 0\.7; it holds code at 0"):
        TRACE.only(temperature=0.7)


def test_parts_share_no_prompt_and_leave_none_out():
    trace = make_trace(Plan(prompts=5, tokens=2))
    parts = [trace.part(index, 2) for index in range(2)]
    prompts = [{(r.workload, r.prompt) for r in part.replies} for part in parts]
    assert not prompts[0] & prompts[1]
    assert prompts[0] | prompts[1] == {(r.workload, r.prompt) for r in trace.replies}
    assert parts[0].workloads == parts[1].workloads == ("code", "prose")


def test_an_empty_part_is_refused():
    with pytest.raises(TraceError, match=r"part 9/9 .* no prompt; it has"):
        TRACE.part(8, 9)


def test_temperatures_are_not_learnt_from_together():
    pooled = make_trace(Plan(prompts=1, tokens=2, temperatures=(0.0, 1.0)))
    with pytest.raises(TraceError, match=r"temperatures 0, 1, .*--temperature"):
        check_one_temperature(pooled)
    check_one_temperature(pooled.only(temperature=1.0))


def test_plain_steps_alone_are_no_trees():
    trace = make_trace(Plan(prompts=1, tokens=2))
    check_trees(trace)
    root = make_step(0, [], [], np.zeros(0, bool))
    bare = tuple(replace(reply, steps=(root,)) for reply in trace.replies)
    with pytest.raises(TraceError, match="holds no draft node"):
        check_trees(replace(trace, replies=bare))


Tree = list[tuple[int, float]]


@st.composite
def trees(draw):
    """Parents, each before its children, and probabilities, with ties."""
    size = draw(st.integers(0, 12))
    chance = st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 1.0])
    return [(draw(st.integers(-1, i - 1)), draw(chance)) for i in range(size)]


def flat(forest):
    tree, parent, path_prob = [], [], []
    for number, nodes in enumerate(forest):
        first = len(parent)
        for above, prob in nodes:
            tree.append(number)
            parent.append(above + first if above >= 0 else -1)
            path_prob.append(prob)
    return Forest(np.array(tree, int), np.array(parent, int), np.array(path_prob))


def plain_depth(tree, node):
    above = tree[node][0]
    return 1 if above < 0 else 1 + plain_depth(tree, above)


def plain_rank(tree, node):
    """Siblings that are better, or as good and before it."""
    parent, prob = tree[node]
    own = [(-p, i) for i, (above, p) in enumerate(tree) if above == parent]
    return sorted(own).index((-prob, node))


def plain_falling(tree, node):
    """The least of the path's probabilities."""
    above, prob = tree[node]
    return prob if above < 0 else min(prob, plain_falling(tree, above))


@given(st.lists(trees(), max_size=5))
def test_depth_rank_and_least_on_the_path(forest):
    whole = flat(forest)
    nodes = [(tree, i) for tree in forest for i in range(len(tree))]
    assert whole.depth.tolist() == [plain_depth(*node) for node in nodes]
    assert whole.rank.tolist() == [plain_rank(*node) for node in nodes]
    assert whole.falling.tolist() == [plain_falling(*node) for node in nodes]


@given(st.lists(trees(), max_size=5))
def test_siblings_and_nobody_else_share_a_family(forest):
    family = flat(forest).family.tolist()
    parents = [(k, above) for k, tree in enumerate(forest) for above, _ in tree]
    for i, one in enumerate(parents):
        assert [f == family[i] for f in family] == [one == p for p in parents]
