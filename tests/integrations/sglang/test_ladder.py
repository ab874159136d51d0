"""Pairs are built for their width, swapped in, and everything is put back."""

import pytest
import torch

from evict_profile.integrations.sglang.ladder import (
    Pair,
    build_pair,
    own_pair,
    spec_steps,
    swapped,
)
from tests.integrations.sglang.server import STEPS, WIDTH, Context, Graphs, ModelRunner


@pytest.fixture
def runner(sglang: Context) -> ModelRunner:
    """A model runner in eager mode."""
    return ModelRunner()


@pytest.fixture
def captured(runner: ModelRunner) -> ModelRunner:
    """A model runner with graphs of its own."""
    backend = runner.attn_backend
    runner.decode_cuda_graph_runner = Graphs(runner, backend, STEPS, WIDTH)
    return runner


def test_the_backend_is_built_for_the_width(runner: ModelRunner) -> None:
    """As if the server had been started with so many draft tokens."""
    pair = build_pair(runner, 4, STEPS)
    assert (pair.width, pair.attn_backend.width) == (4, 4)
    assert pair.attn_backend is not runner.attn_backend


def test_no_graph_is_captured_in_eager_mode(runner: ModelRunner) -> None:
    """Nor any memory said to be taken on a CPU."""
    pair = build_pair(runner, 4, STEPS)
    assert (pair.graph_runner, pair.memory_bytes) == (None, 0)


def test_graphs_are_captured_as_the_servers_own(captured: ModelRunner) -> None:
    """By the same class, on the new backend, for the width."""
    pair = build_pair(captured, 3, STEPS)
    graphs = pair.graph_runner
    assert isinstance(graphs, Graphs)
    assert graphs.backend is pair.attn_backend
    assert (graphs.width, graphs.steps) == (3, 2)


@pytest.mark.parametrize(("width", "steps"), [(1, 0), (2, 1), (4, 3), (9, 3)])
def test_a_narrow_tree_has_fewer_levels(width: int, steps: int) -> None:
    """A token a level at least."""
    assert spec_steps(width, 3) == steps


def test_building_leaves_the_server_as_it_was(
    captured: ModelRunner, sglang: Context
) -> None:
    """Its options, its pair, and its workspace flag."""
    own, options = own_pair(captured, WIDTH), dict(sglang.options)
    build_pair(captured, 4, STEPS)
    assert own_pair(captured, WIDTH) == own
    assert (sglang.options, captured.init_new_workspace) == (options, False)


def test_a_failure_leaves_the_server_as_it_was(
    captured: ModelRunner, sglang: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a capture runs out of memory half-way."""
    own, options = own_pair(captured, WIDTH), dict(sglang.options)

    def out_of_memory(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Graphs, "__init__", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        build_pair(captured, 4, STEPS)
    assert own_pair(captured, WIDTH) == own
    assert (sglang.options, captured.init_new_workspace) == (options, False)


def test_a_pair_is_swapped_in_while_the_block_lasts(captured: ModelRunner) -> None:
    """Both halves at once."""
    own, pair = own_pair(captured, WIDTH), build_pair(captured, 4, STEPS)
    with swapped(captured, pair):
        assert captured.attn_backend is pair.attn_backend
        assert captured.decode_cuda_graph_runner is pair.graph_runner
    assert own_pair(captured, WIDTH) == own


def test_a_pair_is_swapped_out_when_the_block_raises(captured: ModelRunner) -> None:
    """Whatever it raises."""
    own = own_pair(captured, WIDTH)
    with pytest.raises(KeyboardInterrupt), swapped(captured, Pair(4, "other", None)):
        raise KeyboardInterrupt
    assert own_pair(captured, WIDTH) == own
