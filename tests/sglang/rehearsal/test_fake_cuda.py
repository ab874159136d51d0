"""What the plug-in and the runners ask of a GPU, on fake CUDA tensors.

Captured functions must not wait for the host, take a shape from data, or copy over the
bus. Launches between drafting and verification are on the critical path of each step.
"""

from types import SimpleNamespace

import pytest
import torch

from evict_profile.acceptance import ConditionalAcceptance
from evict_profile.config import load_model
from evict_profile.integrations.sglang.modes import FixedWidth
from evict_profile.integrations.sglang.router import BudgetHook, RouteBuffers
from evict_profile.integrations.sglang.tree import Drafted, Scores, best_nodes
from evict_profile.integrations.sglang.worker import _padded
from evict_profile.records import to_mapping
from runners.sglang_verify.verification import ServedTrees
from runners.torch_moe.program import CellRequest, Program
from runners.torch_moe.shape import RandomWeights, read_shape
from runners.torch_moe.stack import Stack
from tests.sglang.rehearsal.stand_ins import (
    RouterConfig,
    TopKOutput,
    chain_batch,
    chain_drafter,
    drafted_lists,
    organize,
    select_by_config,
)
from tests.sglang.rehearsal.watch import watched

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None,
    reason="fake CUDA tensors need a CUDA build of torch, as SGLang 0.5.22 and newer "
    "have here; they need no GPU",
)

BATCH, TOPK, STEPS, TOKENS = 4, 8, 5, 32
ROWS, EXPERTS = 64, 128
GPU = "cuda"


def kept_tree():
    scores, lists = Scores(), drafted_lists(BATCH, TOPK, STEPS, GPU)
    scores.allocate(48, TOKENS, GPU)
    return lambda: scores.keep(organize, *lists, TOKENS)


def fixed_mode(scores):
    curves = ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0), (0.0, 0.8)))
    table = SimpleNamespace(acceptance=SimpleNamespace(conditional=curves))
    pool = SimpleNamespace(size=48)
    runner = SimpleNamespace(device=torch.device(GPU), req_to_token_pool=pool)
    server = SimpleNamespace(
        target_worker=SimpleNamespace(model_runner=runner),
        speculative_num_draft_tokens=TOKENS,
        speculative_num_steps=STEPS,
    )
    return FixedWidth(table, 8, server, scores)


def kept_width():
    scores, lists = Scores(), drafted_lists(BATCH, TOPK, STEPS, GPU)
    scores.allocate(48, TOKENS, GPU)
    fixed_mode(scores)
    return lambda: scores.keep(organize, *lists, TOKENS)


def kept_chain():
    scores = Scores()
    scores.allocate(48, STEPS + 1, GPU)

    def forward(batch):
        logits = torch.rand(BATCH, 32_000, device=GPU, dtype=torch.bfloat16)
        return SimpleNamespace(next_token_logits=logits)

    def draft_forward(drafter, batch):
        for _ in range(STEPS - 1):
            drafter.draft_runner.forward(batch)

    drafter, batch = (
        chain_drafter(forward, STEPS),
        chain_batch(torch.rand(BATCH, 1, device=GPU)),
    )
    return lambda: scores.keep_chain(draft_forward, drafter, batch)


def forced_routes():
    buffers = RouteBuffers()
    buffers.allocate([0, 1], 1024, 8, GPU)
    buffers.forcing = buffers.recording = True
    ids = torch.zeros(ROWS, 8, dtype=torch.int32, device=GPU)
    out = TopKOutput(torch.rand(ROWS, 8, device=GPU), ids)
    return lambda: buffers.select(lambda layer_id: out, layer_id=1)


def budget(**changes):
    hook, config = BudgetHook(32), RouterConfig(top_k=8, **changes)
    hook.node_weights = torch.rand(ROWS, device=GPU)
    logits = torch.rand(ROWS, EXPERTS, device=GPU, dtype=torch.bfloat16)
    return lambda: hook.budgeted(select_by_config, logits, logits, config, layer_id=3)


def grouped_budget():
    bias = torch.zeros(EXPERTS, device=GPU)
    groups = {"use_grouped_topk": True, "num_expert_group": 8, "topk_group": 4}
    return budget(scoring_func="sigmoid", correction_bias=bias, **groups)


CAPTURED = {
    "scores of a tree": kept_tree,
    "scores of a tree and the nodes of a fixed width": kept_width,
    "scores of a chain": kept_chain,
    "routes forced and recorded": forced_routes,
    "budget, softmax": budget,
    "budget, sigmoid with bias and groups": grouped_budget,
}


@pytest.mark.parametrize("prepare", CAPTURED.values(), ids=CAPTURED)
def test_a_captured_function_stays_on_the_gpu(prepare):
    assert watched(prepare).notes == []


FORBIDDEN = {
    "host read": lambda rows: rows.sum().item(),
    "shape from data": lambda rows: rows[rows > 0],
    "copy over the bus": lambda rows: rows.cpu(),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_the_watch_sees_what_a_capture_forbids(kind):
    def prepare():
        rows = torch.rand(8, device=GPU)
        return lambda: FORBIDDEN[kind](rows)

    [note] = watched(prepare).notes
    assert note.startswith(f"{kind}: aten.")


@pytest.mark.parametrize("split", ["balanced", "natural"])
@pytest.mark.parametrize(
    "name", ["qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "mixtral-8x7b"]
)
def test_a_captured_forward_of_torch_moe_stays_on_the_gpu(name, split):
    model = {**to_mapping(load_model(name)), "dtype": "bfloat16"}

    class Empty(RandomWeights):
        def __init__(self):
            self.block = torch.empty(0, device=GPU, dtype=torch.bfloat16)

        def weight(self, *sizes):
            return self.block.new_empty(sizes)

    def forward():
        stack = Stack(read_shape(model, 2), (4, 640), Empty())
        request = CellRequest("layers", 8, 32, 512, BATCH, split, 8, 2)
        return Program(stack, request, torch.device(GPU)).run_eager

    watch = watched(forward)
    assert watch.notes == []
    assert watch.launches > 0


def drafted():
    parent_list, index, tokens = organize(
        *drafted_lists(BATCH, TOPK, STEPS, GPU), TOKENS
    )
    path_prob = torch.rand(BATCH, TOKENS - 1, device=GPU)
    return Drafted(parent_list, index, tokens, path_prob, TOPK)


def token_weights():
    hook, path_prob = BudgetHook(32), torch.rand(BATCH, TOKENS - 1, device=GPU)
    hook.allocate(1024, GPU)
    return lambda: hook.set_token_weights(path_prob)


def fixed_width():
    mode, tree = fixed_mode(Scores()), drafted()
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: True))
    return lambda: tree.at(mode.choose(batch, tree))


def forced_width():
    tree = drafted()
    return lambda: tree.at(best_nodes(tree, 8))


def decided_width():
    tree, places = drafted(), torch.zeros(BATCH, 7, dtype=torch.int64)
    return lambda: tree.at(places)


def widened():
    tokens = torch.zeros(BATCH * 8, dtype=torch.int32, device=GPU)
    hidden = torch.rand(BATCH * 8, 6144, device=GPU)
    return lambda: [_padded(rows, 8, TOKENS) for rows in (tokens, hidden)]


def served_trees():
    trees = ServedTrees(torch.zeros(BATCH, TOKENS - 1, dtype=torch.int64, device=GPU))
    return lambda: (trees.index, trees.parent_list)


@pytest.mark.parametrize(
    ("prepare", "most_launches", "most_copies"),
    [
        pytest.param(forced_routes, 0, 0, id="forced routes of a layer"),
        pytest.param(token_weights, 3, 0, id="weights of a budget"),
        pytest.param(fixed_width, 3, 0, id="EVICT_PROFILE_WIDTH"),
        pytest.param(forced_width, 5, 0, id="width of a runner's round"),
        pytest.param(decided_width, 4, 1, id="width of a decision"),
        pytest.param(widened, 4, 0, id="results of full width"),
        pytest.param(served_trees, 8, 0, id="trees of the runner"),
    ],
)
def test_a_step_launches_and_copies_at_most(prepare, most_launches, most_copies):
    """What the host launches between drafting and the next drafting, and what forcing
    adds to a layer of the measured graph. The one copy is a decision's, made on the
    host. Nothing waits.
    """
    watch = watched(prepare)
    assert watch.launches <= most_launches, watch.launched
    assert len(watch.notes) <= most_copies, watch.notes
    assert all(note.startswith("copy over the bus") for note in watch.notes)
