"""A width's graphs are captured beside the server's, which stay as they were."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from evict_profile.integrations.sglang import graphs
from evict_profile.integrations.sglang.graphs import (
    build_state,
    fitting,
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


@dataclass
class TritonAttnBackend:
    """With the sizes of Qwen3-30B-A3B, whose context is 262,144 tokens."""

    max_context_len: int = 262_144
    num_head: int = 32
    max_kv_splits: int = 8
    v_head_dim: int = 128


@pytest.fixture
def served(runner):
    """A server that captured batches of 1 to 48 requests."""
    runner.attn_backend = TritonAttnBackend()
    runner.decode_cuda_graph_runner.capture_bs = [1, 2, 4, 8, 16, 24, 32, 48]
    return runner


WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48)


def test_wide_graphs_are_left_out_where_the_memory_ends(served, monkeypatch, log):
    monkeypatch.setattr(graphs, "free_bytes", lambda device: 10 << 30)
    assert fitting(served, WIDTHS, most=16) == [1, 2, 4, 8, 16, 24, 32]
    (said,) = log.messages
    assert "capturing widths 1, 2, 4, 8, 16, 24, 32 for batches to 16, 35" in said
    assert "1: 38 MiB, 2: 76 MiB" in said and "half of the 10.0 GiB" in said
    assert fitting(served, WIDTHS, most=None) == [1, 2, 4, 8, 16]


def test_all_widths_fit_in_eager_mode(served, monkeypatch):
    monkeypatch.setattr(graphs, "free_bytes", lambda device: 0)
    assert fitting(served, WIDTHS, most=16) == []
    served.decode_cuda_graph_runner = None
    assert fitting(served, WIDTHS, most=16) == list(WIDTHS)


@pytest.mark.parametrize(("most", "last"), [(16, 16), (17, 24), (1, 1), (99, 48)])
def test_the_batch_above_the_largest_is_captured(served, sglang, most, last):
    """Smaller ones are padded to it."""
    decode = SimpleNamespace(bs=None)
    sglang.options["cuda_graph_config"] = SimpleNamespace(decode=decode)
    with graphs.capturing(served, most):
        assert decode.bs[-1] == last
    assert decode.bs is None
