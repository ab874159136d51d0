"""A width's graphs are captured beside the server's, which stay as they were."""

import pytest
import torch

from evict_profile.integrations.sglang.graphs import (
    build_state,
    own_state,
    spec_steps,
    swapped,
)
from tests.integrations.sglang.server import STEPS, WIDTH, Graphs, ModelRunner


@pytest.fixture
def runner(sglang):
    made = ModelRunner()
    made.decode_cuda_graph_runner = Graphs(made, made.attn_backend, STEPS, WIDTH)
    return made


@pytest.fixture
def unchanged(runner, sglang):
    own, options = own_state(runner, WIDTH), dict(sglang.options)
    yield
    assert own_state(runner, WIDTH) == own
    assert (sglang.options, runner.init_new_workspace) == (options, False)


@pytest.mark.usefixtures("unchanged")
def test_graphs_are_captured_for_the_width_on_a_backend_of_their_own(runner):
    state = build_state(runner, 3, STEPS)
    graphs = state.graph_runner
    assert (state.width, state.attn_backend.width) == (3, 3)
    assert state.attn_backend is not runner.attn_backend
    assert isinstance(graphs, Graphs) and graphs.attn_backend is state.attn_backend
    assert graphs.speculative_num_draft_tokens == 3
    assert graphs.speculative_num_steps == 2


def test_no_graph_is_captured_in_eager_mode(runner):
    runner.decode_cuda_graph_runner = None
    state = build_state(runner, 4, STEPS)
    assert (state.graph_runner, state.memory_bytes) == (None, 0)


@pytest.mark.parametrize(("width", "steps"), [(1, 0), (2, 1), (4, 3), (9, 3)])
def test_a_narrow_tree_has_fewer_levels(width, steps):
    assert spec_steps(width, 3) == steps


@pytest.mark.usefixtures("unchanged")
def test_a_failed_capture_leaves_the_server_as_it_was(runner, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Graphs, "__init__", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        build_state(runner, 4, STEPS)


@pytest.mark.usefixtures("unchanged")
def test_graphs_are_swapped_in_until_the_block_ends_or_raises(runner):
    state = build_state(runner, 4, STEPS)
    with pytest.raises(KeyboardInterrupt), swapped(runner, state):
        assert runner.attn_backend is state.attn_backend
        assert runner.decode_cuda_graph_runner is state.graph_runner
        raise KeyboardInterrupt
