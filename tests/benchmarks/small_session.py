"""A session over a world of random weights, which needs no files."""

import pytest

from benchmarks import turns
from runners.small_world.weights import SmallWorld
from runners.tree_decoding import session as module
from runners.tree_decoding.session import TraceSession
from tests.runners.tree_decoding.test_session import OPTIONS, Prompts


def read_random(monkeypatch: pytest.MonkeyPatch, world: SmallWorld) -> None:
    """Whatever folder is opened, it holds this world, and short prompts."""
    monkeypatch.setattr(module, "open_world", lambda folder: world)
    monkeypatch.setattr(module, "HeldOut", Prompts)
    monkeypatch.setattr(turns, "PROMPT_TOKENS", OPTIONS["prompt_tokens"])


def open_random() -> TraceSession:
    """A session, after `read_random`."""
    return TraceSession("nowhere", OPTIONS)
