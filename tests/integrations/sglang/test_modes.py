"""Trees are cut to the nodes that their width was decided or fixed for."""

import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang import modes
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.integrations.sglang.modes import Mode
from evict_profile.integrations.sglang.tree import best_nodes
from evict_profile.records import replace
from evict_profile.runtime import Calibration, Truncator
from evict_profile.runtime.scoring import ConditionalScorer
from tests.integrations.sglang.drafter import drafting
from tests.integrations.sglang.server import STEPS, WIDTH, Batch

CAPTURE_SIZES = tuple(range(1, WIDTH + 1))


@pytest.fixture
def cuts(monkeypatch):
    made = []
    for mode in Mode.__subclasses__():
        monkeypatch.setattr(mode, "choose", watched(mode.choose, made))
    return made


def watched(choose, made):
    def chosen(self, batch, drafted):
        # The next draft overwrites these scores.
        now = replace(drafted, path_prob=drafted.path_prob.clone())
        places = choose(self, batch, drafted)
        if places is not None:
            made.append((now, now.at(places)))
        return places

    return chosen


def keeps(drafted, kept, plan):
    return all(
        kept.index[row].tolist() == drafted.index[row][plan.keep[row]].tolist()
        for row in range(len(drafted.index))
    )


@pytest.mark.parametrize("conditional", [True, False])
def test_decided_cuts_keep_what_the_plan_keeps(
    serves, full_table, cuts, monkeypatch, conditional
):
    """By conditional acceptance where the table has it, by probability otherwise; and
    as a device would rank them."""
    table = full_table if conditional else replace(full_table, acceptance=None)
    plans, choose = [], Chooser.choose

    def chosen(self, *given):
        choice = choose(self, *given)
        plans.append(choice.plan)
        return choice

    monkeypatch.setattr(Chooser, "choose", chosen)
    curves = full_table.acceptance.conditional
    scores_of = ConditionalScorer(curves).on_device(torch.device("cpu"), STEPS)
    server = serves(table, capture_sizes=CAPTURE_SIZES)
    for _ in range(12):
        server.forward_batch_generation(Batch(2))
    cut_plans = [plan for plan in plans if int(plan.widths[0]) < WIDTH]
    assert len(cut_plans) == len(cuts) > 0
    for plan, (drafted, kept) in zip(cut_plans, cuts, strict=True):
        assert keeps(drafted, kept, plan)
        scores = scores_of(drafted.path_prob, drafted.parent) if conditional else None
        expected = drafted.at(best_nodes(drafted, kept.width, scores))
        assert torch.equal(kept.index, expected.index)


@pytest.mark.parametrize("width", [1, 2, 4, WIDTH])
def test_fixed_cuts_keep_what_the_runtime_keeps(
    serves, full_table, cuts, monkeypatch, width
):
    server = serves(full_table, width=width)
    monkeypatch.setattr(modes, "fetch", None)
    for requests in (1, 2, 3):
        server.forward_batch_generation(Batch(requests))
    assert server.runner.built == ([width] if width < WIDTH else [])
    assert server.verified == 3 * [(width, width)]
    assert len(cuts) == (3 if width < WIDTH else 0)
    truncator = Truncator(
        drafts="topk",
        acceptance="target-only",
        objective="fixed",
        width=width,
        depth=STEPS,
        calibration=Calibration.by(full_table.acceptance.conditional),
    )
    for drafted, kept in cuts:
        plan = truncator.plan(drafted.path_prob, 0, parent=drafted.parent)
        assert keeps(drafted, kept, plan)


def test_scores_come_before_probability():
    drafted = drafting(0, 1, 2, 2).drafted(5)
    scores = torch.tensor([[0.5, 0.9, 0.5, 0.5]], dtype=torch.float64)
    kept = drafted.at(best_nodes(drafted, 3, scores)).index[0].tolist()
    best = drafted.path_prob[0].argsort(descending=True, stable=True).tolist()
    second = next(node for node in best if node != 1)
    assert kept == sorted(drafted.index[0][[1, second]].tolist())


@pytest.mark.parametrize(
    ("width", "lacks", "says"),
    [
        (17, False, "the server drafts 9 tokens"),
        (4, True, "has none; measure it with evict-profile calibrate"),
    ],
)
def test_what_cannot_be_fixed_is_refused(full_table, worker, width, lacks, says):
    table = full_table
    if lacks:
        table = replace(table, acceptance=replace(table.acceptance, conditional=None))
    with pytest.raises(ConfigError, match=says):
        modes.FixedWidth(table, width, worker)
