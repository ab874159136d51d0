"""Two ranks of tensor parallelism verify the same nodes, whatever differs between."""

import json

import pyarrow.parquet as pq
import pytest

from tests.sglang.serving import Request, cut_replies
from tests.sglang.test_engine import DECIDED, LONGEST, TREES, batches, decoded_plainly

TREE, CHAIN = TREES
SLOW_LEADER = ("slow", "blurred")
"""Rank 0 is slow, and rank 1 has scores of its own."""

SLOW_FOLLOWER = ("", "blurred slow")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return decoded_plainly(tmp_path_factory.mktemp("plain"), tp=2)


@pytest.fixture(scope="module")
def asked(plain):
    forced, *_ = batches(plain)
    return [forced, [Request(DECIDED, LONGEST)]]


def by_rank(folder, *given, **options):
    """A run of some ranks, and what each wrote of it, in order."""
    ranks = options.setdefault("ranks", SLOW_LEADER)
    run = cut_replies(folder, *given, **options)
    files = [folder / f"steps.{rank}" for rank in range(len(ranks))]
    logs = [file.read_text().splitlines() for file in files]
    return run, *(list(map(json.loads, log)) for log in logs)


@pytest.fixture(
    scope="module",
    params=[
        (TREE, SLOW_LEADER),
        pytest.param((TREE, SLOW_FOLLOWER), marks=pytest.mark.slow),
        pytest.param((CHAIN, SLOW_LEADER), marks=pytest.mark.slow),
    ],
    ids=str,
)
def cut(request, plain, asked, fitted, tmp_path_factory):
    """The engine once: a step is one wider than the last, or the table decides."""
    (tree, ranks), folder = request.param, tmp_path_factory.mktemp("cut")
    given = fitted, tree, asked, plain.known, DECIDED[:1]
    return tree, *by_rank(folder, *given, ranks=ranks)


def test_ranks_say_what_plain_decoding_says(cut, plain, asked):
    _, run, *_ = cut
    assert run.said == [[plain.reply(one) for one in each] for each in asked]


def test_ranks_verify_the_same_nodes(cut):
    _, run, first, second = cut
    assert len(first) == len(run.steps)
    assert first == second


def test_ranks_verify_every_width(cut):
    tree, run, *_ = cut
    widths = {step.width for step in run.steps if not step.decided}
    assert widths == set(range(1, tree.num_draft_tokens + 1))


def test_the_table_decides_for_all_ranks(cut):
    _, run, *_ = cut
    assert len({step.width for step in run.steps if step.decided}) > 1


@pytest.mark.slow
def test_ranks_verify_the_same_nodes_of_a_fixed_width(plain, asked, fitted, tmp_path):
    fixed = {"CAPTURE_SIZES": "", "WIDTH": "4"}
    run, first, second = by_rank(
        tmp_path, fitted, TREE, asked[:1], plain.known, **fixed
    )
    assert run.said == [[plain.reply(one) for one in asked[0]]]
    assert first == second
    assert {step.width for step in run.steps} == {4}


@pytest.mark.slow
def test_ranks_route_to_the_same_experts_within_a_budget(
    plain, asked, fitted, tmp_path
):
    within = {"EXPERT_BUDGET": "6"}
    run, first, second = by_rank(
        tmp_path, fitted, TREE, asked[:1], plain.known, **within
    )
    assert len(run.routed) + 2 * len(run.steps) == len(first) + len(second)
    assert run.routed
    assert all(most == 6 and ran <= 6 for most, ran, _ in run.routed)
    assert first == second


@pytest.mark.slow
def test_rank_0_alone_records_what_all_ranks_verify(plain, asked, fitted, tmp_path):
    """Rank 1 has the same chains, whose scores would be others."""
    traces = tmp_path / "traces"
    seen = {"CAPTURE_SIZES": "", "MODE": "observe", "TRACES": str(traces)}
    run, first, second = by_rank(
        tmp_path, fitted, CHAIN, asked[1:], plain.known, **seen
    )
    assert run.said == [[plain.reply(one) for one in asked[1]]]
    recorded = pq.read_table(traces)
    assert [nodes for _, *nodes in first] == recorded["token"].to_pylist()
    assert first == second
    scores = [kept for kept, _ in run.chains]
    assert scores == recorded["path_prob"].to_pylist()


ENDS = "kill_process_tree called"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (("", "killed"), ENDS),
        (("killed", ""), ENDS),
        (
            ("", "elsewhere"),
            "ranks do not decode the same batch, and the server must end",
        ),
    ],
)
def test_a_rank_that_cannot_follow_ends_the_server(
    plain, asked, fitted, tmp_path, ranks, says
):
    with pytest.raises(pytest.fail.Exception, match="the engine did not answer"):
        cut_replies(tmp_path, fitted, TREE, asked, plain.known, ranks=ranks)
    log = (tmp_path / "engine.log").read_text()
    assert says in log
    assert "ended after" not in log  # by the test, which had waited long enough
