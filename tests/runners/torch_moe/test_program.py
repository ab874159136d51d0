"""Capture, watched on a CUDA that computes nothing and notes what is asked of it."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from runners.protocol import Refusal
from runners.torch_moe import program as module
from runners.torch_moe.program import CellRequest, Program
from runners.torch_moe.session import Session
from runners.torch_moe.stack import Stack

OOM = torch.OutOfMemoryError
REQUEST = CellRequest("layers", 2, 4, 8, 1, "balanced", tier=2, layers=1)


@pytest.fixture
def cuda(monkeypatch):
    """Streams and graphs in name; `done` is what was asked for, in order."""
    done: list[str] = []
    fake = MagicMock(done=done, fails=None)
    graph = SimpleNamespace(replay=lambda: done.append("replay"), pool=lambda: "pool")

    @contextmanager
    def capturing(graph, pool, stream):
        done.append("capture")
        yield
        if fake.fails:
            raise fake.fails

    for name, value in {
        "Stream": fake.Stream,
        "current_stream": fake.current_stream,
        "stream": nullcontext,
        "CUDAGraph": lambda: graph,
        "graph": capturing,
        "synchronize": lambda: done.append("wait"),
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
    ("error", "lost", "raised", "says"),
    [
        (OOM("CUDA out of memory"), False, OOM, "out of memory"),
        (RuntimeError("an illegal access"), True, RuntimeError, "an illegal access"),
        (
            RuntimeError("operation not permitted\nadvice"),
            False,
            Refusal,
            "a GPU of paper: operation not permitted; set",
        ),
    ],
)
def test_a_forward_that_cannot_be_captured_is_refused(
    program, cuda, monkeypatch, error, lost, raised, says
):
    """Memory that ran out and a lost device are errors of their own."""
    cuda.fails = error
    monkeypatch.setattr(module, "device_lost", lambda _: lost)
    with pytest.raises(raised, match=says):
        program.capture(torch.cuda.Stream(), None)


def test_all_captures_of_a_session_share_one_stream(small, noise, cuda):
    """cuBLAS keeps a workspace for every stream that it ever ran on."""
    shape = small()
    session = object.__new__(Session)
    session.graphs, session.device = True, torch.device("cpu")
    session.stack, session.programs, session.pool = Stack(shape, (1, 16), noise), {}, 0
    for tier in (2, 4, 8):
        session.program(replace(REQUEST, tier=tier))
    assert cuda.Stream.call_count == 1
