"""The calibration that a table gets."""

import numpy as np
import pytest

from evict_profile.calibrate.acceptance import Calibrated, as_acceptance, calibrate
from evict_profile.calibrate.calibrators import MOST_KNOTS, USABLE
from evict_profile.calibrate.continuation import continuation
from evict_profile.calibrate.nodes import nodes_of
from evict_profile.runtime import LinkCurves
from evict_profile.traces import Step, Trace
from evict_profile.traces.trace import make_step
from tests.traces.synthetic import Plan, make_trace

TRUST = 0.8


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Of an overconfident drafter."""
    return make_trace(Plan(prompts=10, tokens=40, trust=TRUST))


@pytest.fixture(scope="module")
def found(trace: Trace) -> Calibrated:
    """That drafter, calibrated."""
    return calibrate(nodes_of(trace.replies))


def test_depth_pays_where_the_drafter_fades_with_it(found: Calibrated) -> None:
    """trust ** depth is what one curve cannot follow."""
    assert found.chosen == "isotonic by depth"
    errors = found.errors
    assert errors[found.chosen].ece.value < errors["raw"].ece.value / 3
    assert errors["raw"].excess_brier.low > 0.0


def test_the_best_usable_candidate_is_chosen(found: Calibrated) -> None:
    """By held-out Brier score, among those that a runtime can use."""
    scores = {name: found.held_out.brier(name) for name in USABLE}
    assert found.chosen == min(scores, key=lambda name: scores[name])


def test_a_calibrated_drafter_is_hardly_changed() -> None:
    """Nothing is mended where nothing is broken."""
    plan = Plan(prompts=10, tokens=30, trust=1.0)
    nodes = nodes_of(make_trace(plan).replies)
    chance = calibrate(nodes).curves(nodes)
    assert np.abs(chance - nodes.path_prob).mean() < 0.02


def test_table_holds_both_errors_and_the_rows(found: Calibrated) -> None:
    """As the schema wants it: a row a depth, errors before and after."""
    acceptance = as_acceptance(found, "made up", 7, np.array([1 / 3, 1 / 3, 1 / 3]))
    assert (acceptance.workload, acceptance.steps) == ("made up", 7)
    assert len(acceptance.acceptances) == 4
    assert set(acceptance.held_out) == {"raw", "calibrated"}
    assert acceptance.held_out["calibrated"].ece < acceptance.held_out["raw"].ece
    assert sum(acceptance.continuation) <= 1.0


def test_a_runtime_scores_by_the_links_of_a_table_as_they_were_fitted(
    trace: Trace, found: Calibrated
) -> None:
    """From path probabilities and parents alone, whatever the file rounds."""
    nodes = nodes_of(trace.replies)
    table = as_acceptance(found, "made up", 7, np.array([0.5])).links
    assert len(table.scores) <= MOST_KNOTS
    links = LinkCurves(table.scores, table.acceptances)
    chance, start = found.links(nodes), 0
    for step in trace.steps:
        own = links.on_cpu(step.path_prob[None], step.parent[None])[0]
        np.testing.assert_allclose(own, chance[start : start + len(own)], atol=1e-9)
        start += len(own)
    assert start == len(nodes)


def _tree(accepted: list[int]) -> Step:
    """Root with nodes 0, 1, 2; node 0 with 3, 4; node 1 with 5."""
    path_prob = [0.5, 0.3, 0.1, 0.4, 0.05, 0.2]
    hits = [node in accepted for node in range(6)]
    return make_step(0, [-1, -1, -1, 0, 0, 1], path_prob, hits)


def test_continuation_counts_accepted_and_expanded_parents() -> None:
    """Node 3 is accepted and was never expanded; node 1 was, and is not accepted."""
    steps = [_tree([0, 3]), _tree([1]), _tree([])]
    # Accepted parents with children: three roots, node 0 once, node 1 once.
    assert continuation(steps, fan=4) == pytest.approx([2 / 5, 1 / 5, 0.0, 0.0])


def test_continuation_of_a_known_drafter() -> None:
    """Each level goes on with the trust that the drafter deserves, or a little less."""
    trace = make_trace(Plan(prompts=8, tokens=60, trust=0.5, workloads=("code",)))
    shares = continuation(trace.steps, trace.about.fan)
    # Four children and "none" share a Dirichlet draw evenly, and half is trusted.
    assert shares.sum() == pytest.approx(0.5 * 0.8, abs=0.06)
    assert np.all(np.diff(shares) <= 0.0)
    assert shares.sum() <= 1.0


def test_continuation_without_an_accepted_parent_is_zero() -> None:
    """A trace of trees without nodes promises nothing."""
    assert continuation([make_step(0, [], [], [])], fan=3).tolist() == [0.0, 0.0, 0.0]
