"""Two ranks of tensor parallelism verify the same nodes, whatever differs between."""

import pytest

from tests.sglang.serving import cut_replies
from tests.sglang.test_engine import TREES, batches, decoded_plainly

TREE, CHAIN = TREES


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return decoded_plainly(tmp_path_factory.mktemp("plain"), tp=2)


@pytest.mark.parametrize(
    ("tree", "variables"),
    [
        (TREE, {}),
        pytest.param(CHAIN, {}, marks=pytest.mark.slow),
        pytest.param(TREE, {"CAPTURE_SIZES": "", "WIDTH": "4"}, marks=pytest.mark.slow),
        pytest.param(TREE, {"EXPERT_BUDGET": "16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ranks_say_what_plain_decoding_says(plain, fitted, tmp_path, tree, variables):
    """Rank 0 is slow, rank 1 has scores of its own, and budgets hold all experts."""
    asked, *_ = batches(plain)
    run = cut_replies(
        tmp_path,
        fitted,
        tree,
        [asked],
        plain.known,
        ranks=("slow", "blurred"),
        **variables,
    )
    assert run.said == [[plain.reply(request) for request in asked]]
    first, second = ((tmp_path / f"steps.{rank}").read_text() for rank in (0, 1))
    assert first == second
    fewest = 1 if "WIDTH" in variables else tree.num_draft_tokens - 1
    assert len({step.width for step in run.steps}) >= fewest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("elsewhere", "ranks do not decode the same batch, and the server must end"),
        ("killed", "kill_process_tree called"),
    ],
)
def test_a_rank_that_cannot_follow_ends_the_server(
    plain, fitted, tmp_path, fault, says
):
    asked, *_ = batches(plain)
    with pytest.raises(pytest.fail.Exception, match="the engine did not answer"):
        cut_replies(tmp_path, fitted, TREE, [asked], plain.known, ranks=("", fault))
    log = (tmp_path / "engine.log").read_text()
    assert says in log
    assert "ended after" not in log  # by the test, which had waited long enough
