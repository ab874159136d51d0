"""Whatever is drafted and cut, the text stays that of plain decoding."""

import numpy as np
import pytest
import torch

from examples.small_world.engine.accept import greedy
from examples.small_world.engine.session import trace_reply
from tests.examples.small_world.engine.decoding import PLAIN, Erratic, best_of, fixed


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", [fixed(4, 15), fixed(1, 2), Erratic(0)])
def test_the_text_is_that_of_plain_decoding(decoder, batch, temperature, policy):
    plain = decoder.replies(PLAIN, batch, temperature)
    assert decoder.replies(policy, batch, temperature) == plain


def test_plain_decoding_takes_the_target_s_best_token(decoder, target):
    ids = torch.tensor(decoder.prompt(0))
    for _ in range(8):
        best = target(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, best[None]])
    (reply,) = decoder.replies(PLAIN, 1, tokens=8)
    assert reply == ids[-8:].tolist()


def test_speculation_commits_more_than_a_token_a_step(decoder):
    engine = decoder.start(2)
    steps = [engine.step(fixed(4, 15)) for _ in range(6)]
    assert max(sum(step.committed) for step in steps) > 2
    assert [len(s.trees[0].token[0]) for s in steps] == [14] * 6


def test_committed_counts_what_replies_grew(decoder):
    engine = decoder.start(3)
    before = [len(r.reply) for r in engine.requests]
    committed = np.sum([engine.step(Erratic(5)).committed for _ in range(5)], axis=0)
    after = [len(r.reply) for r in engine.requests]
    assert (np.array(after) - before).tolist() == committed.tolist()


def test_a_slot_can_be_taken_again(decoder):
    engine = decoder.start(2)
    for _ in range(3):
        engine.step(fixed(3, 8))
    engine.admit(decoder.prompt(2), greedy, 1)
    for _ in range(12):
        engine.step(fixed(3, 8))
    expected = decoder.replies(PLAIN, 3, tokens=12)[2]
    assert engine.requests[1].reply[:12] == expected


def test_depths_may_differ_from_step_to_step(decoder):
    """After a plain step as well, if others follow."""
    engine = decoder.start(1)
    for levels in (2, 0, 3, 1):
        step = engine.step(fixed(levels, 1 + 3 * levels), drafts_later=True)
        assert step.levels == levels


def test_a_context_is_the_mean_over_requests(decoder):
    assert decoder.start(2).context == (5 + 8) / 2


def test_decoding_meets_the_traced_trees(decoder):
    traced = list(trace_reply(decoder.start(1, 0.8), 24))
    engine = decoder.start(1, 0.8)
    position = 0
    while position < 20:
        step = engine.step(fixed(3, 6))
        met, tree = traced[position].trees[0], step.trees[0]
        reached = met.take(np.flatnonzero(met.depth[0] <= 3)[None])
        best = best_of(reached, 5)
        assert best.token.tolist() == tree.token.tolist()
        assert best.parent.tolist() == tree.parent.tolist()
        np.testing.assert_allclose(best.path_prob, tree.path_prob, rtol=1e-3)
        position += step.committed[0]


def test_traced_paths_are_the_reply(decoder):
    engine = decoder.start(1)
    traced = list(trace_reply(engine, 20))
    reply = engine.requests[0].reply
    for position, step in enumerate(traced[:15]):
        path = step.trees[0].token[0][step.paths[0]].tolist()
        assert path == reply[position + 1 : position + 1 + len(path)]
        assert step.contexts == [len(decoder.prompt(0)) + position]
        assert step.verified.routes.shape == (3, step.trees[0].token.shape[1] + 1, 2)
