"""Slots taken and left, as the replay has it."""

import numpy as np

from evict_profile.replay.simulate import reply_order
from runners.tree_decoding.accept import sampling
from runners.tree_decoding.policy import Always
from runners.tree_decoding.serving import Job, Serving
from tests.runners.tree_decoding.decoding import CPU, PLAIN, Decoder

TOKENS = (5, 9, 7, 6)


def serving(decoder: Decoder, policy: Always, batch: int) -> Serving:
    """Four replies of different lengths, in an order of seed 3."""
    greedy = sampling(0.0, 0, 64, decoder.world.target.shape.vocab, CPU)
    jobs = [Job(decoder.prompt(i), greedy, n) for i, n in enumerate(TOKENS)]
    order = reply_order(len(jobs), 3)
    return Serving(decoder.engine(batch), policy, jobs, order, batch)


def test_a_run_ends_when_all_tokens_are_counted(decoder: Decoder) -> None:
    at_work = serving(decoder, Always(3, 6), 2)
    counted = 0
    while not at_work.ended:
        served = at_work.serve()
        assert counted < sum(TOKENS)
        counted += sum(served.counted)
    assert counted >= sum(TOKENS)


def test_seats_take_replies_in_order_and_never_stand_empty(decoder: Decoder) -> None:
    at_work = serving(decoder, PLAIN, 2)
    # A plain step counts one token a slot, so each reply lasts as many steps.
    order = reply_order(len(TOKENS), 3)
    slots = [next(order), next(order)]
    left = [TOKENS[job] for job in slots]
    while not at_work.ended:
        served = at_work.serve()
        assert served.jobs == tuple(slots)
        assert served.counted == (1, 1)
        left = [n - 1 for n in left]
        for slot in range(2):
            if not left[slot]:
                slots[slot] = next(order)
                left[slot] = TOKENS[slots[slot]]


def test_a_reply_counts_no_further_than_its_end(decoder: Decoder) -> None:
    at_work = serving(decoder, Always(4, 15), 1)
    tokens = np.zeros(len(TOKENS), dtype=int)
    while not at_work.ended:
        served = at_work.serve()
        tokens[served.jobs[0]] += served.counted[0]
    assert (tokens[: len(TOKENS)] <= TOKENS).all()
    assert tokens.sum() == sum(TOKENS)
