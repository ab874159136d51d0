"""Trees are cut to the nodes that their width was decided or fixed for; and widths."""

from types import SimpleNamespace

import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang import modes
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.integrations.sglang.modes import Mode, VerifyTimer, capture_sizes_of
from evict_profile.integrations.sglang.tree import Drafted, Scores, best_nodes
from evict_profile.records import replace
from evict_profile.runtime import Calibration, Truncator
from evict_profile.runtime.scoring import ConditionalScorer
from tests.integrations.sglang.drafter import drafting, organized
from tests.integrations.sglang.server import REQUESTS, STEPS, TOPK, WIDTH, Batch
from tests.integrations.sglang.tape import Tape

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


@pytest.fixture
def fixed(full_table, worker):
    """A mode of a fixed width, and the scores whose drafts it sees."""

    def make(width, steps=STEPS):
        scores, worker.speculative_num_steps = Scores(), steps
        scores.allocate(REQUESTS, WIDTH, "cpu")
        return modes.FixedWidth(full_table, width, worker, scores), scores

    return make


@pytest.mark.parametrize("width", [1, 4, WIDTH - 1])
def test_draft_graphs_find_the_nodes_that_an_eager_cut_would_keep(
    fixed, full_table, width
):
    """In all batches that are captured: of one buffer, and beyond the request pool."""
    mode, scores = fixed(width)
    curves = full_table.acceptance.conditional
    scores_of = ConditionalScorer(curves).on_device(torch.device("cpu"), STEPS)
    graphs = []
    for requests in (REQUESTS + 1, REQUESTS, 1):
        lists = drafting(3, requests, TOPK, STEPS).lists()
        with Tape() as graph:
            scores.keep(organized, *lists, WIDTH)
        graphs.append((requests, lists, graph))
    for requests, lists, graph in graphs:
        drafts = drafting(8, requests, TOPK, STEPS)
        for captured, drafted in zip(lists, drafts.lists(), strict=True):
            for to, new in zip(captured, drafted, strict=True):
                to.copy_(new)
        graph.replay()
        eager = drafts.drafted(WIDTH).each(lambda rows: rows[:REQUESTS])
        batch = Batch(len(eager.index))
        with Tape() as tape:
            places = mode.choose(batch, eager)
        assert tape.launches == []
        wanted = best_nodes(eager, width, scores_of(eager.path_prob, eager.parent))
        assert torch.equal(places, wanted)


def test_the_nodes_that_a_fixed_width_keeps_of_a_chain_are_its_first(fixed, full_table):
    """No draft graph finds them: a node's score is never above its parent's."""
    mode, _ = fixed(4, steps=WIDTH - 1)
    curves = full_table.acceptance.conditional
    scorer = ConditionalScorer(curves).on_device(torch.device("cpu"), WIDTH - 1)
    path_prob = torch.rand(2, WIDTH - 1).cumprod(1)
    index = torch.arange(WIDTH - 1).repeat(2, 1)
    chain = Drafted(index - 1, index, index, path_prob, topk=1)
    wanted = best_nodes(chain, 4, scorer(path_prob, index - 1))
    assert torch.equal(mode.choose(Batch(2), chain), wanted)


def test_whole_trees_are_not_ranked(fixed):
    assert fixed(WIDTH)[1].see is None


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
        modes.FixedWidth(table, width, worker, Scores())


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(us=0.0)
    monkeypatch.setattr(VerifyTimer, "_mark", lambda self: clock.us)
    return clock


def test_a_verification_is_timed_once(now):
    def forward(us):
        now.us += us
        return "logits"

    runner = SimpleNamespace(
        device="cpu", forward=forward, decode_cuda_graph_runner=None
    )
    timer = VerifyTimer(runner)
    runner.forward(50.0)
    assert timer.take_us() is None
    with timer.verifying():
        assert runner.forward(70.0) == "logits"
    assert (timer.take_us(), timer.take_us()) == (70.0, None)


def test_of_a_captured_graph_the_replay_alone_is_timed(now):
    """As a sweep times it; not what the host does before, nor after."""

    def replay(us):
        now.us += us
        return "logits"

    def forward(us, replays=True):
        now.us += 200.0
        out = runner.decode_cuda_graph_runner.backend.replay(us) if replays else "eager"
        now.us += 30.0
        return out

    graphs = SimpleNamespace(backend=SimpleNamespace(replay=replay))
    runner = SimpleNamespace(
        device="cpu", forward=forward, decode_cuda_graph_runner=graphs
    )
    timer = VerifyTimer(runner)
    for _ in range(2):
        with timer.verifying():
            assert runner.forward(70.0) == "logits"
    assert timer.take_us() == 70.0
    assert graphs.backend.replay is replay
    with timer.verifying():
        assert runner.forward(0.0, replays=False) == "eager"
    assert timer.take_us() == 230.0


MEASURED = (1, 2, 4, 8, 16)


def with_capture_sizes(table, *capture_sizes):
    return replace(table, axes=replace(table.axes, capture_sizes=capture_sizes))


@pytest.mark.parametrize(
    ("captured", "draft_tokens", "asked", "capture_sizes"),
    [
        (MEASURED, 9, None, (1, 2, 4, 8)),
        (MEASURED, 16, None, MEASURED),
        # Without captured widths the default as far as it is covered, and the server's
        # own width, which needs no graphs.
        ((), 64, None, (1, 2, 3, 4, 6, 8, 12, 16)),
        ((), 11, None, (1, 2, 3, 4, 6, 8, 11)),
        ((), 9, (3, 5), (3, 5)),
    ],
)
def test_capture_sizes_are_what_is_asked_for_or_measured(
    plain_table, captured, draft_tokens, asked, capture_sizes
):
    table = with_capture_sizes(plain_table, *captured)
    assert capture_sizes_of(table, draft_tokens, asked) == capture_sizes


@pytest.mark.parametrize(
    ("captured", "draft_tokens", "asked", "says"),
    [
        ((), 4, (2, 8), "has width 8, and the server drafts 4"),
        ((), 64, (2, 17), "EVICT_PROFILE_CAPTURE_SIZES has width 17"),
        (MEASURED, 16, (2, 3), "width 3, and .*has widths 1, 2, 4, 8, 16"),
        ((16, 32), 9, None, "no width up to the server's 9 draft tokens"),
    ],
)
def test_widths_that_cannot_be_are_refused(
    plain_table, captured, draft_tokens, asked, says
):
    with pytest.raises(ConfigError, match=says):
        capture_sizes_of(
            with_capture_sizes(plain_table, *captured), draft_tokens, asked
        )
