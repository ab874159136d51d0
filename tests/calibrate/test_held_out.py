"""Errors on prompts held out."""

import numpy as np
import pytest

from evict_profile.calibrate.acceptance import CANDIDATES, nodes_of, prompt_names
from evict_profile.calibrate.held_out import BEST, HeldOutChances, hold_out
from evict_profile.errors import TraceError
from evict_profile.records import replace, to_mapping
from evict_profile.stats import MIN_PROMPTS, Bootstrap
from tests.calibrate.test_acceptance import lone_nodes, made_nodes
from tests.traces.synthetic import Plan, make_trace

PLAN = Plan(prompts=6, tokens=12, seeds=2, temperatures=(0.0, 1.0))


@pytest.fixture(scope="module")
def nodes():
    """Nodes of a synthetic trace: two workloads, twelve prompts, three replies each."""
    return nodes_of(make_trace(PLAN).replies)


def test_no_candidate_is_fitted_on_a_prompt_it_is_tested_on(nodes, monkeypatch):
    tested = []

    def spy(train):
        def predict(unseen):
            assert not set(train.prompt) & set(unseen.prompt)
            tested.append(len(unseen))
            return np.zeros(len(unseen))

        return predict

    monkeypatch.setitem(CANDIDATES, "spy", spy)
    hold_out(nodes)
    assert sum(tested) == len(nodes)


def test_replies_to_one_prompt_share_its_number():
    trace = make_trace(PLAN)
    assert len(trace.replies) == 36
    assert len(prompt_names(trace.replies)) == 12
    assert len(np.unique(nodes_of(trace.replies).prompt)) == 12


def test_place_counts_the_better_nodes_of_a_tree(nodes):
    first = make_trace(PLAN).replies[0].steps[0]
    places = nodes.place[: len(first.parent)]
    assert places[first.best(4)].tolist() == [0, 1, 2]
    assert sorted(places) == list(range(len(places)))


def test_calibration_error_equals_its_definition():
    seen = made_nodes(1500, trust=0.8)
    errors = HeldOutChances(seen, {"raw": seen.path_prob}).errors("raw")["raw"]
    order = np.argsort(seen.path_prob)
    gaps = [
        abs(seen.path_prob[part].sum() - seen.accepted[part].sum())
        for part in np.split(order, 15)
    ]
    assert errors.ece.value == pytest.approx(sum(gaps) / 1500)


def test_scores_equal_their_definitions():
    seen = made_nodes(500, trust=0.8)
    half = np.full(500, 0.5)
    held_out = HeldOutChances(seen, {"raw": seen.path_prob, "half": half})
    errors = held_out.errors("half")
    brier = np.mean((seen.path_prob - seen.accepted) ** 2)
    assert errors["raw"].brier.value == pytest.approx(brier)
    assert held_out.brier("raw") == pytest.approx(brier)
    assert errors["half"].log_loss.value == pytest.approx(np.log(2.0))
    assert errors["raw"].excess_brier.value == pytest.approx(brier - 0.25)
    assert errors["half"].excess_brier.value == 0.0


@pytest.mark.parametrize(("trust", "chosen"), [(1.0, "raw"), (0.5, "right")])
def test_a_curve_is_chosen_where_it_is_better_by_more_than_luck(trust, chosen):
    """One that is better on eleven prompts of twenty is so by luck."""
    seen = made_nodes(2000, trust)
    better = np.where(seen.prompt < 11, 1e-3, -1e-3)
    moved = seen.path_prob + better * np.where(seen.accepted, 1.0, -1.0)
    right = trust**seen.depth * seen.path_prob
    chances = {"raw": seen.path_prob, "lucky": moved, "right": right}
    held_out = HeldOutChances(seen, chances)
    assert held_out.brier("lucky") < held_out.brier("raw")
    assert held_out.simplest(list(chances)) == chosen


def test_best_nodes_are_judged_apart():
    """Chances that are wrong only far down a tree do not show among its best."""
    seen = made_nodes(3000, trust=1.0)
    place = np.arange(3000) % 60
    tree = replace(seen, place=place)
    chance = np.where(place < BEST, tree.path_prob, 1.0)
    errors = HeldOutChances(tree, {"raw": chance}).errors("raw")["raw"]
    assert errors.best_ece.value < 0.05 < errors.ece.value


def test_intervals_cover_the_error_of_other_prompts():
    """Correlated nodes of few prompts: most intervals hold the true score."""
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        prompt = np.repeat(np.arange(30), 50)
        chance = np.repeat(rng.random(30), 50)
        size = len(prompt)
        same = np.ones(size, dtype=np.int64)
        accepted = rng.random(size) < chance
        nodes = lone_nodes(np.full(size, 0.5), same, 0 * same, accepted)
        seen = replace(nodes, prompt=prompt)
        brier = HeldOutChances(seen, {"raw": chance}).errors("raw")["raw"].brier
        # The mean of c (1 - c) over chances drawn from [0, 1].
        held += brier.low <= 1.0 / 6.0 <= brier.high
    assert held >= 30


def test_intervals_are_those_of_replays(nodes):
    """From the same sums by prompt, calibration and replay tell the same interval."""
    found = HeldOutChances(nodes, {"raw": nodes.path_prob}).errors("raw")["raw"].brier
    squares = (nodes.path_prob - nodes.accepted) ** 2
    by_prompt = [
        np.bincount(nodes.prompt, values) for values in (squares, np.ones(len(nodes)))
    ]
    bootstrap = Bootstrap(prompts=12)
    errors, counts = bootstrap.sums(np.stack(by_prompt, axis=1))
    expected = bootstrap.estimate(errors / counts)
    assert to_mapping(found) == pytest.approx(to_mapping(expected))


def test_errors_of_some_prompts_are_their_own(nodes):
    held_out = HeldOutChances(nodes, {"raw": nodes.path_prob})
    own = held_out.of_prompts(np.arange(12) == 7)
    expected = np.mean((nodes.path_prob - nodes.accepted)[nodes.prompt == 7] ** 2)
    assert own.brier("raw") == pytest.approx(expected)
    assert set(own.nodes.prompt) == {0}


def test_too_few_prompts_are_refused_in_a_sentence():
    nodes = made_nodes(100, trust=1.0)
    few = nodes.take(nodes.prompt < MIN_PROMPTS - 1)
    with pytest.raises(TraceError, match=r"4 prompts.*at least 5.*trace more"):
        hold_out(few)


def test_tokens_are_what_the_best_nodes_commit():
    trace = make_trace(PLAN)
    seen = nodes_of(trace.replies)
    errors = HeldOutChances(seen, {"raw": seen.path_prob}).errors("raw")["raw"]
    for width, estimate in errors.tokens.items():
        own = [step.committed(step.best(width)) for step in trace.steps]
        assert estimate.value == pytest.approx(np.mean(own))
