"""Graphs are built for their width, swapped in, and everything is put back."""

import pytest
import torch

from evict_profile.integrations.sglang.graphs import (
    GraphState,
    build_state,
    own_state,
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
    state = build_state(runner, 4, STEPS)
    assert (state.width, state.attn_backend.width) == (4, 4)
    assert state.attn_backend is not runner.attn_backend


def test_no_graph_is_captured_in_eager_mode(runner: ModelRunner) -> None:
    state = build_state(runner, 4, STEPS)
    assert (state.graph_runner, state.memory_bytes) == (None, 0)


def test_graphs_are_captured_as_the_servers_own(captured: ModelRunner) -> None:
    state = build_state(captured, 3, STEPS)
    graphs = state.graph_runner
    assert isinstance(graphs, Graphs)
    assert graphs.backend is state.attn_backend
    assert (graphs.width, graphs.steps) == (3, 2)


@pytest.mark.parametrize(("width", "steps"), [(1, 0), (2, 1), (4, 3), (9, 3)])
def test_a_narrow_tree_has_fewer_levels(width: int, steps: int) -> None:
    assert spec_steps(width, 3) == steps


def test_building_leaves_the_server_as_it_was(
    captured: ModelRunner, sglang: Context
) -> None:
    own, options = own_state(captured, WIDTH), dict(sglang.options)
    build_state(captured, 4, STEPS)
    assert own_state(captured, WIDTH) == own
    assert (sglang.options, captured.init_new_workspace) == (options, False)


def test_a_failure_leaves_the_server_as_it_was(
    captured: ModelRunner, sglang: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, options = own_state(captured, WIDTH), dict(sglang.options)

    def out_of_memory(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Graphs, "__init__", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        build_state(captured, 4, STEPS)
    assert own_state(captured, WIDTH) == own
    assert (sglang.options, captured.init_new_workspace) == (options, False)


def test_graphs_are_swapped_in_while_the_block_lasts(captured: ModelRunner) -> None:
    own, state = own_state(captured, WIDTH), build_state(captured, 4, STEPS)
    with swapped(captured, state):
        assert captured.attn_backend is state.attn_backend
        assert captured.decode_cuda_graph_runner is state.graph_runner
    assert own_state(captured, WIDTH) == own


def test_graphs_are_swapped_out_when_the_block_raises(captured: ModelRunner) -> None:
    own = own_state(captured, WIDTH)
    with (
        pytest.raises(KeyboardInterrupt),
        swapped(captured, GraphState(4, "other", None)),
    ):
        raise KeyboardInterrupt
    assert own_state(captured, WIDTH) == own
