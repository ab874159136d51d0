"""What goes wrong on a rank of tensor parallelism, in the engine's own processes."""

import itertools
import os
import signal
import time
from dataclasses import replace

import torch

PLANTED_LEVEL = 1.2


def plant_faults(ranks):
    """What goes wrong on this rank, once it is known which it is."""
    from evict_profile.integrations.sglang.serving import Serving

    begin = Serving.begin

    def begun(serving, worker):
        begin(serving, worker)
        for fault in ranks[torch.distributed.get_rank()].split():
            FAULTS[fault](serving)

    Serving.begin = begun  # type: ignore[method-assign]


def blurred(serving):
    """Scores, and places of best nodes, that no other rank has."""
    from evict_profile.integrations.sglang.modes import FixedWidth

    last, dice = serving.scores.last, torch.Generator().manual_seed(5)
    keep = FixedWidth._keep_best

    def other(requests):
        scores = last(requests)
        return scores.mul_(torch.rand(scores.shape, generator=dice))

    def kept(mode, drafted):
        keep(mode, replace(drafted, path_prob=1.0 - drafted.path_prob))

    serving.scores.last = other
    FixedWidth._keep_best = kept  # type: ignore[method-assign]


def slow(serving):
    decide = serving.ranks.decided

    def late(*said):
        time.sleep(0.05)
        return decide(*said)

    serving.ranks.decided = late


def clocked(serving):
    """Verifications that take so many times what the table says; a state that is
    saved after each.
    """
    from evict_profile.integrations.sglang import state
    from evict_profile.integrations.sglang.decision import Chooser

    learn, state.SAVE_EVERY_S = Chooser.learn, 0.0

    def planted(chooser, accepted, verify_us=None):
        last = chooser._last
        table_us = last and last.verify_us
        return learn(chooser, accepted, table_us and PLANTED_LEVEL * table_us)

    Chooser.learn = planted  # type: ignore[method-assign]


def elsewhere(serving):
    """A rank that counts a step that the others did not decode."""
    serving.ranks._exchanges += 1


def killed(serving):
    step, steps = serving.step, itertools.count()

    def last(batch):
        if next(steps) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(batch)

    serving.step = last


FAULTS = {
    "blurred": blurred,
    "slow": slow,
    "clocked": clocked,
    "elsewhere": elsewhere,
    "killed": killed,
}
