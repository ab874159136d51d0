"""Activation by tokens kept, against a slow recomputation."""

import numpy as np
import pytest
from scipy import stats

from evict_profile.calibrate import activation
from evict_profile.calibrate.activation import (
    learnt_curve,
    measure_activation,
    tree_width,
)
from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.io import write_json
from evict_profile.records import replace, to_mapping
from evict_profile.runtime.learning import ForwardParts, Learner
from evict_profile.table import CostTable
from tests.traces.steps import replies_of, steps_of
from tests.traces.synthetic import Plan, make_trace


@pytest.fixture(scope="module")
def trace():
    return make_trace(Plan(prompts=8, tokens=10))


@pytest.fixture(scope="module")
def activations(trace):
    return measure_activation(trace)


def test_batch_one_is_the_mean_over_steps(trace, activations):
    """U at width n is the union of the n - 1 best nodes and the root."""
    assert tree_width(trace) == 25
    for n in range(1, 26):
        mean = np.mean([step.union(step.best(n)) for step in steps_of(trace)])
        assert activations[1].union[n] == pytest.approx(mean)


def test_batches_start_with_their_roots(trace):
    trace = replace(trace, about=replace(trace.about, nodes=3))
    rows = np.array([0, 90, 37])
    every = list(steps_of(trace))
    steps = [every[row] for row in rows]
    order = activation.kept_order(trace, rows)
    assert len(order) == 3 * 4
    assert np.array_equal(order[:3], [step.routes[0] for step in steps])
    pool = [
        (-step.path_prob[i], which, tuple(np.ravel(step.routes[1 + i])))
        for which, step in enumerate(steps)
        for i in step.best(4)
    ]
    told = [tuple(np.ravel(row)) for row in order[3:]]
    assert told == [routes for *_, routes in sorted(pool)]


def test_activation_never_falls_and_stays_in_reach(trace, activations):
    for batch, each in activations.items():
        assert each.union[0] == 0.0
        assert each.union[1] == trace.about.top_k
        assert np.all(np.diff(each.union) >= 0.0)
        assert each.union[-1] <= trace.about.experts
        assert len(each.union) == batch * tree_width(trace) + 1
    # The same tokens from other replies share less.
    assert activations[4].union[24] > activations[1].union[24]


def test_intervals_are_those_of_means_over_prompts(trace, activations):
    """Prompts of as many steps: of the mean of their means, by Student's t."""
    means = [
        np.mean([step.union(step.best(8)) for step in steps])
        for steps in replies_of(trace)
    ]
    told = activations[1].at(8)
    expected = stats.t.interval(0.95, len(means) - 1, np.mean(means), stats.sem(means))
    assert (told.low, told.high) == pytest.approx(expected)
    assert activations[4].at(24).known


def test_a_batch_of_all_prompts_tells_nothing_of_others(trace, activations):
    """Batches beyond the replies are left out; without routes there is none."""
    assert len(activations) == 3
    assert not activations[16].at(24).known
    few = make_trace(Plan(prompts=3, tokens=5, workloads=("code",)))
    assert set(measure_activation(few)) == {1}
    assert measure_activation(replace(trace, routes=None)) is None
    # With the engine's limit unknown, the largest tree says it.
    unknown = replace(trace, about=replace(trace.about, nodes=0))
    assert tree_width(unknown) == trace.size.max() + 1


def test_table_goes_on_beyond_one_tree(activations):
    """As the largest batch does, then as uniform routing; never down."""
    tiny = load_model("tiny")
    model = replace(tiny, moe=replace(tiny.moe, num_experts=16, top_k=2))
    kept = {batch: each.union for batch, each in activations.items()}
    curve = activation.as_activation_curve(kept, "made up", model, tokens=600)
    assert not curve.is_guess
    assert [each.batch for each in curve.by_batch] == [1, 4, 16]
    assert len(curve.union) == 601
    for batch, t in ((1, 10), (1, 25), (16, 80), (16, 400)):
        assert curve.union[t] == pytest.approx(activations[batch].union[t], abs=1e-3)
    assert np.all(np.diff(curve.union) >= 0.0)
    assert curve.union[-1] <= 16.0


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_server_s_state_gives_its_text_s_unions(composed_path, tmp_path, share):
    """The table guesses uniform routing; the server's growth was a share of it."""
    table = CostTable.load(composed_path)
    learner = Learner()
    parts = ForwardParts.of(table, 1, min(table.axes.context))
    for tokens in [2, 4, 8, 16, 32] * 40:
        equal, growth, uniform = parts.at(tokens)
        learner.observe((equal, growth, uniform), equal + share * uniform)
    state = tmp_path / "state.json"
    write_json(to_mapping(learner.learnt(table.sha256)), state)
    curve = learnt_curve(state, table)
    top_k, model = table.model.moe.top_k, table.model
    for tokens in (1, 4, 16):
        expected = top_k + share * (model.uniform_union(tokens) - top_k)
        assert curve.union[tokens] == pytest.approx(expected, rel=0.05)
    assert curve.workload == "learnt from 200 verifications of a server"
    assert not curve.is_guess


def test_a_state_of_another_table_is_refused(composed_path, tmp_path):
    state = tmp_path / "state.json"
    write_json(to_mapping(Learner().learnt("0" * 64)), state)
    with pytest.raises(ConfigError, match="learnt with another table"):
        learnt_curve(state, CostTable.load(composed_path))


def test_a_state_of_another_machine_is_refused(composed_path, tmp_path):
    table = CostTable.load(composed_path)
    learner = Learner()
    parts = ForwardParts.of(table, 1, min(table.axes.context))
    for _ in range(40):
        learner.observe(parts.at(8), 3.0 * sum(parts.at(8)[:2]))
    state = tmp_path / "state.json"
    write_json(to_mapping(learner.learnt(table.sha256)), state)
    with pytest.raises(ConfigError, match="of another machine"):
        learnt_curve(state, table)
