"""Widths to choose from; graphs are built for them, swapped in, and put back."""

import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.graphs import (
    build_state,
    capture_sizes_of,
    own_state,
    spec_steps,
    swapped,
)
from evict_profile.records import replace
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


CAPTURE_SIZES = (1, 2, 4, 8, 16)


def with_capture_sizes(table, *capture_sizes):
    return replace(table, axes=replace(table.axes, capture_sizes=capture_sizes))


@pytest.mark.parametrize(
    ("captured", "draft_tokens", "asked", "capture_sizes"),
    [
        (CAPTURE_SIZES, 9, None, (1, 2, 4, 8)),
        (CAPTURE_SIZES, 16, None, CAPTURE_SIZES),
        # Without captured widths the default as far as it is covered, and the server's
        # own width, which needs no graphs.
        ((), 64, None, (1, 2, 3, 4, 6, 8, 12, 16)),
        ((), 11, None, (1, 2, 3, 4, 6, 8, 11)),
        ((), 9, (3, 5), (3, 5)),
    ],
)
def test_capture_sizes_are_what_is_asked_for_or_measured(
    plain_table, captured, draft_tokens, asked, capture_sizes
):
    table = with_capture_sizes(plain_table, *captured)
    assert capture_sizes_of(table, draft_tokens, asked) == capture_sizes


@pytest.mark.parametrize(
    ("captured", "draft_tokens", "asked", "says"),
    [
        ((), 4, (2, 8), "has width 8, and the server drafts 4"),
        ((), 64, (2, 17), "EVICT_PROFILE_CAPTURE_SIZES has width 17"),
        (CAPTURE_SIZES, 16, (2, 3), "width 3, and .*has widths 1, 2, 4, 8, 16"),
        ((16, 32), 9, None, "no width up to the server's 9 draft tokens"),
    ],
)
def test_widths_that_cannot_be_are_refused(
    plain_table, captured, draft_tokens, asked, says
):
    with pytest.raises(ConfigError, match=says):
        capture_sizes_of(
            with_capture_sizes(plain_table, *captured), draft_tokens, asked
        )
