"""The synthetic traces have the truth that they claim."""

import numpy as np

from tests.traces.synthetic import Plan, make_trace


def test_acceptance_is_trust_to_the_depth_times_the_path() -> None:
    """At each depth, over all nodes, within four standard errors."""
    steps = make_trace(Plan(prompts=12, tokens=60, trust=0.7, seed=3)).steps
    depth, path_prob, accepted = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("depth", "path_prob", "accepted")
    )
    for level in (1, 2, 3):
        here = depth == level
        truth = 0.7**level * path_prob[here]
        error = np.sqrt((truth * (1.0 - truth)).sum())
        assert abs(accepted[here].sum() - truth.sum()) < 4.0 * error


def test_unions_overlap() -> None:
    """Fewer experts than uniform routing would wake."""
    trace = make_trace(Plan(prompts=2, tokens=20))
    unions = [step.union(step.best(8)) for step in trace.steps]
    uniform = 16 * (1.0 - (1.0 - 2 / 16) ** 8)
    assert 2.0 < np.mean(unions) < 0.9 * uniform


def test_the_same_plan_is_the_same_trace() -> None:
    """And another seed another one."""
    one, two, other = (make_trace(Plan(tokens=3, seed=seed)) for seed in (5, 5, 6))
    probs = [[s.path_prob.tolist() for s in t.steps] for t in (one, two, other)]
    assert probs[0] == probs[1] != probs[2]
