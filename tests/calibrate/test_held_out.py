"""Errors on prompts held out."""

import numpy as np
import pytest

from evict_profile.calibrate.acceptance import CANDIDATES
from evict_profile.calibrate.held_out import HeldOutChances, calibration_error, hold_out
from evict_profile.errors import DataError
from tests.calibrate.test_acceptance import made_nodes
from tests.traces.synthetic import Plan, make_trace


def chances_of(nodes, **chances):
    return HeldOutChances(nodes.accepted, np.arange(len(nodes)) % 20, chances)


def test_no_candidate_is_fitted_on_a_prompt_it_is_tested_on(monkeypatch):
    plan = Plan(prompts=6, tokens=12, seeds=2, temperatures=(0.0, 1.0))
    trace, tested = make_trace(plan), []
    prompt = trace.prompt[trace.reply]

    def spy(train):
        def predict(unseen):
            assert not set(prompt[train.step]) & set(prompt[unseen.step])
            assert len(train) + len(unseen) == len(trace.nodes)
            tested.extend(unseen.step)
            return unseen.path_prob

        return predict

    monkeypatch.setitem(CANDIDATES, "spy", spy)
    found = hold_out(trace)
    assert sorted(tested) == trace.nodes.step.tolist()
    assert np.array_equal(found.chances["spy"], trace.nodes.path_prob)
    assert np.array_equal(found.prompt, prompt[trace.nodes.step])


def test_errors_equal_their_definitions():
    seen = made_nodes(1500, trust=0.8)
    gaps = [
        abs(seen.path_prob[part].sum() - seen.accepted[part].sum())
        for part in np.split(np.argsort(seen.path_prob), 15)
    ]
    found = calibration_error(seen.path_prob, seen.accepted)
    assert found == pytest.approx(sum(gaps) / 1500)
    held_out = chances_of(seen, raw=seen.path_prob, half=np.full(1500, 0.5))
    errors = held_out.errors("half")
    assert errors["raw"].ece == found
    brier = np.mean((seen.path_prob - seen.accepted) ** 2)
    assert errors["raw"].brier.value == pytest.approx(brier)
    assert errors["raw"].excess_brier.value == pytest.approx(brier - 0.25)
    assert errors["half"].excess_brier.value == 0.0


@pytest.mark.parametrize(("trust", "chosen"), [(1.0, "raw"), (0.5, "right")])
def test_a_curve_is_chosen_where_it_is_better_by_more_than_luck(trust, chosen):
    """One that is better on eleven prompts of twenty is so by luck."""
    seen = made_nodes(2000, trust)
    better = np.where(np.arange(2000) % 20 < 11, 1e-3, -1e-3)
    moved = seen.path_prob + better * np.where(seen.accepted, 1.0, -1.0)
    raw = seen.path_prob
    held_out = chances_of(seen, raw=raw, lucky=moved, right=trust * raw)
    assert held_out.squares("lucky").mean() < held_out.squares("raw").mean()
    assert held_out.one_standard_error_rule(list(held_out.chances)) == chosen


def test_intervals_cover_the_error_of_other_prompts():
    """Correlated nodes of few prompts: most intervals hold the true score."""
    held, prompt = 0, np.repeat(np.arange(30), 50)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        chance = np.repeat(rng.random(30), 50)
        accepted = rng.random(len(chance)) < chance
        found = HeldOutChances(accepted, prompt, {"raw": chance}).errors("raw")["raw"]
        # The mean of c (1 - c) over chances drawn from [0, 1].
        held += found.brier.low <= 1.0 / 6.0 <= found.brier.high
    assert held >= 30


def test_too_few_prompts_are_refused_in_a_sentence():
    trace = make_trace(Plan(prompts=4, tokens=2, workloads=("code",)))
    with pytest.raises(DataError, match=r"4 prompts.*at least 5.*trace more"):
        hold_out(trace)
