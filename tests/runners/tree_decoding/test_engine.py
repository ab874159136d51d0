"""Whatever is drafted and cut, the text stays that of plain decoding."""

import numpy as np
import pytest
import torch

from runners.tree_decoding.accept import sampling
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.policy import Always
from tests.runners.tree_decoding.decoding import CPU, PLAIN, Decoder, Erratic


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "policy", [Always(4, 15), Always(2, 4), Always(1, 2), Erratic(0), Erratic(1)]
)
def test_the_text_is_that_of_plain_decoding(
    decoder: Decoder, batch: int, temperature: float, policy: object
) -> None:
    plain = decoder.replies(PLAIN, batch, temperature)
    assert decoder.replies(policy, batch, temperature) == plain


def test_plain_decoding_takes_the_target_s_best_token(
    decoder: Decoder, world: Checkpoint
) -> None:
    ids = torch.tensor(decoder.prompt(0))
    for _ in range(8):
        best = world.target(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, best[None]])
    (reply,) = decoder.replies(PLAIN, 1, tokens=8)
    assert reply == ids[-8:].tolist()


def test_speculation_commits_more_than_a_token_a_step(decoder: Decoder) -> None:
    engine = decoder.start(2)
    steps = [engine.step(Always(4, 15)) for _ in range(6)]
    committed = [sum(step.committed) for step in steps]
    assert max(committed) > 2
    assert [len(s.trees[0].token[0]) for s in steps] == [14] * 6


def test_committed_counts_what_replies_grew(decoder: Decoder) -> None:
    engine = decoder.start(3)
    before = [len(r.reply) for r in engine.requests]
    committed = np.sum([engine.step(Erratic(5)).committed for _ in range(5)], axis=0)
    after = [len(r.reply) for r in engine.requests]
    assert (np.array(after) - before).tolist() == committed.tolist()


def test_a_seat_can_be_taken_again(decoder: Decoder, world: Checkpoint) -> None:
    engine = decoder.start(2)
    for _ in range(3):
        engine.step(Always(3, 8))
    greedy = sampling(0.0, 0, 64, world.target.shape.vocab, CPU)
    engine.admit(decoder.prompt(2), greedy, 1)
    for _ in range(12):
        engine.step(Always(3, 8))
    expected = decoder.replies(PLAIN, 3, tokens=12)[2]
    assert engine.requests[1].reply[:12] == expected


def test_parts_of_a_step_add_up(decoder: Decoder) -> None:
    times = decoder.start(1).step(Always(3, 8)).times
    drafted = sum(level.cpu_us for level in times.levels)
    whole = drafted + times.verify.cpu_us + times.fixed.cpu_us
    assert len(times.levels) == 3
    assert whole == pytest.approx(times.step.cpu_us)


def test_a_context_is_the_mean_over_requests(decoder: Decoder) -> None:
    engine = decoder.start(2)
    assert engine.context == (5 + 8) / 2
