"""Capture, watched on a CUDA that computes nothing and notes what is asked of it."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from runners.protocol import Refusal
from runners.torch_moe import program as module
from runners.torch_moe.program import CellRequest, Program
from runners.torch_moe.session import Session
from runners.torch_moe.stack import Stack

REQUEST = CellRequest("layers", 2, 4, 8, 1, "balanced", tier=2, layers=1)


class NoCuda:
    """Streams and graphs in name; `done` is what was asked for, in order."""

    def __init__(self):
        self.done: list[str] = []
        self.streams = 0
        self.fails: RuntimeError | None = None

    def stream(self):
        self.streams += 1
        return SimpleNamespace(wait_stream=lambda other: None)

    def graph_of(self):
        return SimpleNamespace(replay=self.replay, pool=lambda: "pool")

    def replay(self):
        self.done.append("replay")

    def synchronize(self):
        self.done.append("wait")

    @contextmanager
    def capturing(self, graph, pool, stream):
        self.done.append("capture")
        yield
        if self.fails:
            raise self.fails


@pytest.fixture
def cuda(monkeypatch):
    fake = NoCuda()
    for name, value in {
        "Stream": fake.stream,
        "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
        "stream": nullcontext,
        "CUDAGraph": fake.graph_of,
        "graph": fake.capturing,
        "synchronize": fake.synchronize,
        "get_device_name": lambda: "a GPU of paper",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return fake


@pytest.fixture
def program(small, noise):
    shape = small()
    made = Program(Stack(shape, (1, 16), noise), REQUEST, torch.device("cpu"))
    made.load(REQUEST, seed=0)
    return made


def test_a_captured_graph_is_replayed_once_before_it_is_timed(program, cuda):
    """The first replay uploads it; the device is waited for."""
    assert program.capture(torch.cuda.Stream(), None) == "pool"
    assert cuda.done == ["capture", "replay", "wait"]
    program.run()
    assert cuda.done[-1] == "replay"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("an illegal memory access"), True),
    ],
)
def test_memory_that_runs_out_and_a_lost_device_are_told_as_such(
    program, cuda, monkeypatch, error, lost
):
    cuda.fails = error
    monkeypatch.setattr(module, "device_lost", lambda _: lost)
    with pytest.raises(type(error), match=str(error)):
        program.capture(torch.cuda.Stream(), None)


def test_a_forward_that_asks_the_host_cannot_be_captured(program, cuda):
    cuda.fails = RuntimeError("operation not permitted\nadvice")
    with pytest.raises(Refusal, match="a GPU of paper: operation not permitted; set"):
        program.capture(torch.cuda.Stream(), None)


def test_all_captures_of_a_session_share_one_stream(small, noise, cuda):
    """cuBLAS keeps a workspace for every stream that it ever ran on."""
    shape = small()
    session = object.__new__(Session)
    session.graphs, session.device = True, torch.device("cpu")
    session.stack, session.programs, session.pool = Stack(shape, (1, 16), noise), {}, 0
    for tier in (2, 4, 8):
        session.program(replace(REQUEST, tier=tier))
    assert cuda.streams == 1
