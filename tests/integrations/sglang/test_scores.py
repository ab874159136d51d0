"""The drafter's scores outlive the choice of the tree."""

import pytest
import torch

from evict_profile.integrations.sglang.scores import Scores
from tests.integrations.sglang.drafter import drafting, organized

WIDTH = 9


def kept(seats: int, batch: int, width: int = WIDTH, seed: int = 3) -> Scores:
    """Scores after one draft."""
    scores = Scores()
    scores.allocate(seats, WIDTH, "cpu")
    scores.keep(organized, *drafting(seed, batch, 3, 3).lists(), width)
    return scores


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_the_buffer_holds_the_scores_of_what_was_chosen(batch: int) -> None:
    """In the order in which the nodes were chosen."""
    expected = drafting(3, batch, 3, 3).drafted(WIDTH).path_prob
    assert torch.equal(kept(4, batch).last(batch), expected)


def test_what_was_chosen_passes_through() -> None:
    """The tree is SGLang's own."""
    lists = drafting(3, 2, 3, 3).lists()
    scores, before = Scores(), organized(*lists, WIDTH)
    scores.allocate(4, WIDTH, "cpu")
    after = scores.keep(organized, *lists, WIDTH)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_each_draft_fills_the_same_buffer() -> None:
    """A captured graph writes where it wrote when it was captured."""
    scores = kept(4, 2)
    place = scores.last(2).data_ptr()
    scores.keep(organized, *drafting(8, 2, 3, 3).lists(), WIDTH)
    assert scores.last(2).data_ptr() == place
    expected = drafting(8, 2, 3, 3).drafted(WIDTH).path_prob
    assert torch.equal(scores.last(2), expected)


@pytest.mark.parametrize(("batch", "width"), [(5, WIDTH), (2, WIDTH - 1)])
def test_what_does_not_fit_is_let_through(batch: int, width: int) -> None:
    """Too large a batch, or a tree of another width: nothing is kept."""
    assert not kept(4, batch, width).last(4).any()


def test_nothing_is_kept_before_there_is_room() -> None:
    """A draft that warms up before the buffers are made does not fail."""
    chosen = Scores().keep(organized, *drafting(3, 2, 3, 3).lists(), WIDTH)
    assert chosen[1].shape == (2, WIDTH - 1)
