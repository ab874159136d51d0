"""Clocks of drafting on a simulated GPU, whose host and device take planted times."""

import copy
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evict_profile.integrations.sglang.graphs import GraphState
from runners.sglang_verify import drafting
from runners.sglang_verify.drafting import DraftTimer

LAUNCH_US, LEVEL_US, ROW_US, REST_US, ARGMAX_US = 90.0, 150.0, 40.0, 400.0, 30.0
WAKE_US, DECIDE_US, CUT_US = 60.0, 45.0, 25.0
FULL, STEPS, ROUNDS = 64, 3, 7


def forward_us(width):
    return 3000.0 + ROW_US * width


class Stream:
    """A host that launches kernels, and a device that runs them one after another."""

    def __init__(self):
        self.host_us = self.device_us = 0.0

    def launch(self, us):
        self.host_us += LAUNCH_US
        self.device_us = max(self.device_us, self.host_us) + us

    def synchronize(self, *_):
        self.host_us = max(self.host_us, self.device_us)

    def event(self, enable_timing):
        return Event(self)


class Event:
    def __init__(self, stream):
        self.stream = stream

    def record(self):
        self.us = max(self.stream.device_us, self.stream.host_us)

    def elapsed_time(self, later):
        return (later.us - self.us) / 1e3


class Worker:
    """Drafts, verifies and does the rest of a step; the target beside it as well."""

    def __init__(self, stream):
        self.stream, self.depth, self.width, self.decides = stream, STEPS, FULL, False
        self.draft_worker, self.topk, self.steps = self, 8, STEPS
        self.states = {width: GraphState(width, None, None) for width in (1, 4, 16, 64)}
        self.model_runner = SimpleNamespace(device="cuda")

    def draft(self, held):
        for _ in range(self.depth):
            self.stream.launch(LEVEL_US)

    def forward_batch_generation(self, held):
        self.draft(held)
        if self.decides:
            self.stream.synchronize()
            self.stream.host_us += WAKE_US + DECIDE_US
        if self.width < FULL:
            self.stream.launch(CUT_US)
        self.stream.launch(forward_us(self.width))
        self.stream.launch(REST_US)

    def prepare(self, trees, context, seed):
        run = partial(self.stream.launch, forward_us(trees.width))
        return SimpleNamespace(run=run, tokens=partial(self.stream.launch, ARGMAX_US))

    @contextmanager
    def having(self, **values):
        before = copy.copy(vars(self))
        vars(self).update(values)
        yield
        vars(self).update(before)

    def cutting(self, width):
        return self.having(width=width)

    def deciding(self):
        return self.having(decides=True)


@pytest.fixture
def stream(monkeypatch):
    made = Stream()
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    trees = lambda batch, width, *_: SimpleNamespace(width=width)  # noqa: E731
    monkeypatch.setattr(drafting, "random_trees", trees)
    monkeypatch.setattr(drafting, "swapped", lambda *_: nullcontext())
    monkeypatch.setattr(DraftTimer, "before_step", lambda *_: SimpleNamespace())
    monkeypatch.setattr(DraftTimer, "first_draft_input", lambda *_: None)
    monkeypatch.setattr(
        DraftTimer, "at_depth", lambda self, depth: self.drafter.having(depth=depth)
    )
    return made


def timer(stream, serves=True):
    worker = Worker(stream)
    serving = worker if serves else None
    routes = lambda batch, width: width + 7  # noqa: E731
    return DraftTimer(worker, worker, FULL, 512, None, serving, routes)


def test_parts_are_what_the_device_takes(stream):
    """The host takes 90 us a launch, which a device that is busy hides."""
    clock = timer(stream).measure(1, ROUNDS)
    levels_us = [LEVEL_US * depth for depth in range(STEPS + 1)]
    assert clock["draft_us"] == pytest.approx(levels_us)
    assert clock["fixed_us"] == pytest.approx(REST_US)
    assert clock["plain_fixed_us"] == pytest.approx(ARGMAX_US)
    assert clock["reference_us"] is None


def test_walls_between_synchronisations_hold_the_host_thrice(stream):
    """What a step takes beyond two parts of it then lacks a launch."""
    worker = Worker(stream)

    def wall_us(run):
        stream.synchronize()
        begun_us = stream.host_us
        run()
        stream.synchronize()
        return stream.host_us - begun_us

    step_us = wall_us(lambda: worker.forward_batch_generation(None))
    parts_us = wall_us(lambda: worker.draft(None))
    parts_us += wall_us(lambda: stream.launch(forward_us(FULL)))
    assert step_us - parts_us == pytest.approx(REST_US - LAUNCH_US)


def test_rounds_are_steps_at_each_width(stream):
    rounds = timer(stream).measure(1, ROUNDS)["rounds"]
    assert [(r["width"], r["union"], r["context"]) for r in rounds] == [
        (4, 11, 512),
        (16, 23, 512),
        (64, 71, 512),
    ]
    beside_us = STEPS * LEVEL_US + REST_US + np.array([CUT_US, CUT_US, 0.0])
    expected_us = beside_us + [forward_us(width) for width in (4, 16, 64)]
    assert [r["us"] for r in rounds] == pytest.approx(expected_us)


def test_deciding_costs_the_wait_of_the_device_for_the_host(stream):
    """From the end of drafting to the launch of the forward nothing runs."""
    mechanism_us = timer(stream).measure(1, ROUNDS)["mechanism_us"]
    assert mechanism_us == pytest.approx(WAKE_US + DECIDE_US + LAUNCH_US)


def test_without_the_plug_in_the_whole_tree_is_the_only_round(stream):
    clock = timer(stream, serves=False).measure(1, ROUNDS)
    assert [r["width"] for r in clock["rounds"]] == [FULL]
    assert clock["mechanism_us"] is None
