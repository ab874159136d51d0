"""Synthetic traces: what is claimed of a node is what happens to it."""

import numpy as np
import pytest

from evict_profile.errors import ConfigError
from evict_profile.traces.synthetic import (
    EASY,
    MIXES,
    NODES,
    Mix,
    concentrations,
    draw_levels,
    mix_of,
    synthetic_trace,
)

RNG_SEED = 5
TOKENS = 1500


def within_binomial_error(probability, happened):
    error = np.sqrt((probability * (1.0 - probability)).sum())
    return bool(abs(happened.sum() - probability.sum()) < 4.0 * error)


@pytest.mark.parametrize("name", ["easy", "hard", "overconfident", "underconfident"])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_a_node_is_accepted_as_often_as_it_claims(name, depth):
    """Times trust for each level; at most one node of a depth is accepted."""
    rng, mix = np.random.default_rng(RNG_SEED), MIXES[name]
    levels = draw_levels(rng, concentrations(rng, mix, TOKENS), mix.trust)
    level = levels[depth - 1]
    probability = level.path_prob.sum(axis=1) * mix.trust**depth
    assert within_binomial_error(probability, level.accepted.any(axis=1))
    assert level.accepted.sum(axis=1).max() <= 1


def test_positions_are_easy_in_the_share_of_their_kind():
    """Kinds take turns in stretches of tokens."""
    mix = Mix("", (1.0, 0.0), stretch=3)
    rows = concentrations(np.random.default_rng(0), mix, 9)
    easy = rows[:, 0] == EASY[0]
    assert easy.tolist() == [True] * 3 + [False] * 3 + [True] * 3
    half = concentrations(np.random.default_rng(0), Mix("", (0.25,)), 4000)
    assert within_binomial_error(np.full(4000, 0.25), half[:, 0] == EASY[0])


def test_easy_text_commits_more_than_hard_text():
    def claimed(name):
        steps = synthetic_trace(MIXES[name], prompts=2, tokens=100).steps
        return float(np.mean([s.path_prob[s.best(NODES + 1)].sum() for s in steps]))

    assert claimed("easy") > 3.0
    assert claimed("hard") < 1.7


def test_a_trace_holds_what_any_width_and_depth_would_verify():
    """The best nodes of any depth, closed under ancestors; the same for a seed."""
    trace = synthetic_trace(MIXES["bimodal"], prompts=2, tokens=20)
    assert trace.dense
    assert len(trace.replies) == 2
    for step in trace.steps:
        assert len(step.best(NODES + 1, depth=2)) == NODES
        best = set(step.best(NODES + 1, depth=4).tolist())
        assert {int(step.parent[node]) for node in best} <= best | {-1}
        assert np.all(step.parent < np.arange(len(step.parent)))
    again = synthetic_trace(MIXES["bimodal"], prompts=2, tokens=20)
    assert again.steps[7].path_prob.tolist() == trace.steps[7].path_prob.tolist()


def test_an_unknown_mix_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'poems'; there are easy, hard"):
        mix_of("poems")
