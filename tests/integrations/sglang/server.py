"""What the plug-in reads and writes of SGLang, and no more of it.

The worker drafts random trees, verifies as many tokens as it is told, and commits those
along the first even tokens. Each stage asserts what the next one relies on.
"""

import sys
import threading
from dataclasses import dataclass, field
from functools import partialmethod
from itertools import accumulate
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from evict_profile.integrations.sglang.drafts import CAPTURE_TARGET, DRAFT_TARGET
from evict_profile.integrations.sglang.plugin import hooks
from evict_profile.integrations.sglang.router import ROUTER_TARGET
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.tree import SCORES_TARGET, Drafted
from evict_profile.integrations.sglang.worker import BUILD, CREATE
from tests.integrations.sglang.drafter import drafting, organized

TOPK, STEPS, WIDTH, REQUESTS = 2, 3, 9, 4
EXPERTS, TOP_K, LAYERS, HIDDEN = 16, 2, 3, 8
REST = ("topk", "num_steps", "num_draft_tokens")


class Context:
    """SGLang's resolved options, as 0.5.20 keeps them."""

    def __init__(self):
        self.options: dict[str, Any] = {
            "tp_size": 1,
            "ep_size": 1,
            "enable_metrics": False,
            "served_model_name": "tiny",
            "speculative_algorithm": "EAGLE3",
            "speculative_num_steps": STEPS,
            "speculative_num_draft_tokens": WIDTH,
        }

    def config_leaf(self, name):
        if name not in self.options:
            raise AttributeError(name)
        return self.options[name]

    def override(self, source, **values):
        assert source == "evict_profile"
        self.options |= values


class FusedMoE(torch.nn.Module):
    def __init__(self, layer_id, experts=EXPERTS):
        super().__init__()
        self.layer_id, self.num_experts, self.top_k = layer_id, experts, TOP_K
        self.quant_method = SimpleNamespace()


class Rank(threading.local):
    """The process of a rank, here a thread; one rank alone where no group is set."""

    group: Any = SimpleNamespace(world_size=1, rank_in_group=0)


RANK = Rank()


@dataclass(eq=False)
class IntelAMXAttnBackend:
    """An attention backend, told apart by the width that it was made for."""

    width: int = WIDTH
    itself: Any = None


@dataclass(eq=False)
class Graphs:
    runner: Any
    attn_backend: Any
    speculative_num_steps: int
    speculative_num_draft_tokens: int


class ModelRunner:
    def __init__(self, layers=LAYERS):
        self.model = torch.nn.ModuleList(FusedMoE(i) for i in range(layers))
        self.device, self.dtype = "cpu", torch.bfloat16
        self.server_args = SimpleNamespace()
        self.attn_backend: Any = IntelAMXAttnBackend()
        self.decode_cuda_graph_runner: Any = None
        self.init_new_workspace, self.built = False, list[int]()
        self.req_to_token_pool = SimpleNamespace(size=REQUESTS)
        self.model_config = SimpleNamespace(
            model_path="/models/tiny",
            hidden_size=512,
            num_hidden_layers=4,
            vocab_size=2048,
            quantization=None,
        )

    def _get_attention_backend(self, init_new_workspace):
        self.init_new_workspace = init_new_workspace
        context = sys.modules["sglang.srt.runtime_context"].get_context()
        self.built.append(context.options["speculative_num_draft_tokens"])
        return IntelAMXAttnBackend(self.built[-1])

    def tick(self, stage):
        """A stage of a step has ended."""

    def forward(self, batch, tokens, route):
        self.tick("forward")
        for layer in self.model:
            ids = routes(layer.layer_id, tokens)
            routed = SimpleNamespace(topk_ids=ids, topk_weights=torch.ones(ids.shape))
            route(lambda *args, to=routed, **kw: to, 0, 0, 0, layer_id=layer.layer_id)


def routes(layer, tokens):
    """Experts of the tokens of a forward, int32 [tokens, k]."""
    places = torch.arange(tokens * TOP_K).view(tokens, TOP_K)
    return ((places * (2 * layer + 1)) % EXPERTS).to(torch.int32)


class Mode(str):
    """A batch's forward mode: idle, extend (a prefill) or decode."""

    is_idle = partialmethod(str.__eq__, "idle")
    is_extend = partialmethod(str.__eq__, "extend")
    is_decode = partialmethod(str.__eq__, "decode")


@dataclass
class Request:
    rid: str
    origin_input_ids: list[int]
    sampling_params: Any = field(
        default_factory=lambda: SimpleNamespace(top_k=1, temperature=1.0)
    )


class Batch:
    """A batch of requests whose prompts differ in length."""

    def __init__(self, size, mode="decode", first=0):
        self.forward_mode, self.is_extend_in_batch = Mode(mode), mode == "extend"
        self.reqs = [
            Request(f"r{i}", [7] * (80 + 10 * i)) for i in range(first, first + size)
        ]
        self.seq_lens = torch.tensor([len(each.origin_input_ids) for each in self.reqs])
        self.seq_lens_cpu: torch.Tensor | None = self.seq_lens
        self.req_pool_indices = torch.arange(size)
        self.req_to_token_pool = SimpleNamespace(
            req_to_token=torch.arange(REQUESTS * 400).view(REQUESTS, 400)
        )
        self.device, self.out_cache_loc = "cpu", torch.empty(0)

    def after(self, result):
        self.seq_lens = self.seq_lens + result.accept_lens
        self.seq_lens_cpu = self.seq_lens
        return self


class Worker:
    """SGLang's EAGLE worker, and a name for each of its forwards in `log`.

    With `plans` it is that of 0.5.22 on a GPU with a chain, whose draft plans the cache
    slots of all its tokens, after the hook around the tree's building.
    """

    def __init__(self, runner=None):
        self.target_worker = SimpleNamespace(model_runner=runner or ModelRunner())
        self.topk, self.speculative_num_steps = TOPK, STEPS
        self.speculative_num_draft_tokens = WIDTH
        self.log: list[Any] = []
        self.drafted: list[Drafted] = []
        self.keep: Any = lambda original, *args: original(*args)
        self.build: Any = lambda original, *args, **kwargs: original(*args, **kwargs)
        self.route = self.build
        self.fails_in, self.plan_stream = "", None
        self.hidden, self.plans = True, False
        self.drafter = EagleDraftWorker(self.target_worker)
        self.draft_hook = self.capture_hook = self.build

    @property
    def runner(self):
        return self.target_worker.model_runner

    @property
    def verified(self):
        """Width of each verification, and of the backend that ran it."""
        return [(each[1], each[3]) for each in self.log if each[0] == "verify"]

    def alloc_memory_pool(self):
        self.log.append("pool")

    def init_cuda_graphs(self):
        self.log.append("graphs")
        self.capture_hook(EagleDraftWorker._capture_cuda_graphs, self.drafter)

    def forward_batch_generation(self, batch):
        if batch.forward_mode.is_extend():
            return "prefilled"
        drafts = self.speculative_num_steps > 0
        build = self._draft_hooked if drafts else self._build_trivial_verify_input
        batch.spec_info = build(batch)
        result = self.verify(batch)
        if not batch.forward_mode.is_idle():
            rows = len(batch.reqs) * self.speculative_num_draft_tokens
            assert len(result.next_token_ids) == rows
            assert len(batch.out_cache_loc) == rows
            assert result.speculative_num_draft_tokens * len(batch.reqs) == rows
            prepared = result.prepared_draft_extend_inputs
            assert prepared is None or len(prepared) == rows
        return result

    def verify(self, batch):
        verify_input = batch.spec_info
        width, backend = self.speculative_num_draft_tokens, self.runner.attn_backend
        self.log.append(("verify", width, self.speculative_num_steps, backend.width))
        if self.fails_in == "verify":
            raise RuntimeError("the kernel failed")
        self.runner.forward(batch, len(batch.reqs) * width, self.route)
        if batch.forward_mode.is_idle():
            return "idle"
        assert verify_input.width == width
        assert verify_input.spec_steps == self.speculative_num_steps
        assert verify_input.backend is backend
        size = len(batch.reqs)
        for planned in (verify_input.kv_loc_plan, verify_input.prepared_out_cache_loc):
            assert planned is None or len(planned) == size * width
        said = torch.zeros(size, width, dtype=torch.int64)
        walked = [verify_input.walk(place) for place in range(size)]
        for place, tokens in enumerate(walked):
            said[place, : len(tokens)] = torch.tensor(tokens)
        rows = torch.arange(size * width, dtype=torch.float32)
        hidden = rows[:, None].expand(-1, HIDDEN).clone() if self.hidden else None
        batch.out_cache_loc = torch.zeros(size * width, dtype=torch.int64)
        self.runner.tick("rest")
        return SimpleNamespace(
            next_token_ids=said.flatten(),
            accept_lens=torch.tensor([len(each) for each in walked]),
            logits_output=SimpleNamespace(hidden_states=hidden),
            speculative_num_draft_tokens=width,
            prepared_draft_extend_inputs=said.flatten() if self.plans else None,
        )

    def _draft_hooked(self, batch):
        return self.draft_hook(self._draft, self.drafter, batch)

    def _draft(self, drafter, batch):
        size, steps = len(batch.reqs), drafter.speculative_num_steps
        assert steps == drafter.draft_attn_backend.steps == drafter.graphs_steps
        assert drafter.draft_runner.draft_attn_backend is drafter.draft_attn_backend
        self.log.append("draft")
        self.runner.tick("draft")
        made = drafting(len(self.log), max(1, size), TOPK, steps)
        self.drafted.append(made.drafted(WIDTH))
        parents, index, tokens = self.keep(organized, *made.lists(), WIDTH)
        sizes = TOPK, steps, self.speculative_num_draft_tokens
        kwargs = dict(zip(REST, sizes, strict=True))
        tree = parents, index, tokens
        built = self.build(self._built, batch, None, *tree, None, **kwargs)
        if self.plans:
            window = torch.zeros(size * self.speculative_num_draft_tokens)
            built.kv_loc_plan = built.prepared_out_cache_loc = window
        return built

    def _built(self, batch, _, parents, index, tokens, *rest, **kwargs):
        self.log.append(("build", *(kwargs[name] for name in REST)))
        assert kwargs["num_draft_tokens"] == index.shape[1] + 1
        backend, steps = self.runner.attn_backend, kwargs["num_steps"]
        return VerifyInput(backend, tokens, index, parents, steps)

    def _build_trivial_verify_input(self, batch):
        self.log.append("trivial")
        nothing = torch.empty(len(batch.reqs), 0, dtype=torch.int64)
        return VerifyInput(self.runner.attn_backend, nothing, nothing, nothing)


@dataclass
class VerifyInput:
    """The tree as the target verifies it, and the backend that holds its mask."""

    backend: Any
    tokens: torch.Tensor
    index: torch.Tensor
    parents: torch.Tensor
    spec_steps: int = 0
    kv_loc_plan: torch.Tensor | None = None
    prepared_out_cache_loc: torch.Tensor | None = None

    def __post_init__(self):
        self.draft_token = torch.zeros(0, dtype=torch.int32)

    @property
    def width(self):
        return self.tokens.shape[1] + 1

    def walk(self, place):
        """What a request commits: the first even tokens along the tree, and 99."""
        index, tokens = self.index[place].tolist(), self.tokens[place].tolist()
        above = [
            int(self.parents[place, flat // TOPK]) if self.parents.shape[1] else -1
            for flat in index
        ]
        said, at = list[int](), -1
        while True:
            nodes = [i for i, parent in enumerate(above) if parent == at]
            even = [i for i in nodes if tokens[i] % 2 == 0]
            if not even:
                return [*said, 99]
            said.append(tokens[even[0]])
            at = index[even[0]]


class HookType:
    AROUND = "around"


class HookRegistry:
    """SGLang's registry of hooks."""

    _patched: set[str] = set()  # noqa: RUF012
    registered: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def register(cls, target, hook, kind):
        assert kind == HookType.AROUND
        cls.registered[target] = hook


class EAGLEWorkerV2(Worker):
    """The class that SGLang picks for EAGLE-3, EAGLE and NEXTN."""


class EagleDraftWorker:
    """The drafter: backends and graphs by the levels that they were made for."""

    def __init__(self, target_worker):
        self.target_worker = target_worker
        self.speculative_num_steps = STEPS
        self.draft_runner = SimpleNamespace(server_args=SimpleNamespace())
        self.cuda_graph_runner_for_draft_extend = None
        self.init_attention_backend()
        self.cuda_graph_runner = SimpleNamespace(steps=STEPS)

    @property
    def graphs_steps(self):
        return self.cuda_graph_runner.steps

    def init_attention_backend(self):
        context = sys.modules["sglang.srt.runtime_context"].get_context()
        assert self.speculative_num_steps == context.options["speculative_num_steps"]
        made = SimpleNamespace(steps=self.speculative_num_steps)
        self.draft_attn_backend = self.draft_runner.draft_attn_backend = made
        extends = SimpleNamespace(steps=self.speculative_num_steps)
        self.draft_extend_attn_backend = self.draft_runner.attn_backend = extends

    def _capture_cuda_graphs(self):
        self.cuda_graph_runner = SimpleNamespace(steps=self.speculative_num_steps)
        extends = self.draft_extend_attn_backend
        self.cuda_graph_runner_for_draft_extend = extends and SimpleNamespace(
            steps=extends.steps
        )

    def draft(self, batch, *, with_topology=False): ...

    def draft_forward(self, forward_batch):
        """What the hooks' targets take, as in 0.5.23."""

    def _draft_extend_for_decode(self, batch, batch_result, *, kv_loc_plan=None): ...


class SpeculativeAlgorithm:
    def create_worker(self, server_args): ...


class Scheduler:
    def set_internal_state(self, recv_req): ...


def organize_draft_results(score_list, token_list, parents_list, num_draft_token): ...


def build_eagle_verify_input(
    batch,
    draft_input,
    parent_list,
    top_scores_index,
    draft_tokens,
    draft_probs,
    *,
    topk,
    num_steps,
    num_draft_tokens,
): ...


def select_experts(hidden_states, router_logits, topk_config, *, layer_id=None): ...


def cache_slots(*, req_pool_indices, req_to_token, start_offset, end_offset, **sizes):
    widths, batch = end_offset - start_offset, len(req_pool_indices)
    assert bool((widths == sizes["draft_token_num"]).all())
    assert (sizes["batch_size"], sizes["device"]) == (batch, "cpu")
    rows = zip(req_pool_indices, start_offset, end_offset, strict=True)
    return torch.cat([req_to_token[i, low:high] for i, low, high in rows])


def modules(monkeypatch, context):
    contents: dict[str, dict[str, Any]] = {
        "sglang.srt.runtime_context": {"get_context": lambda: context},
        "sglang.srt.layers.moe.fused_moe_triton.layer": {"FusedMoE": FusedMoE},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": HookRegistry,
            "HookType": HookType,
        },
        "sglang.srt.speculative.eagle_worker_v2": {
            each.__name__: each
            for each in (
                EAGLEWorkerV2,
                EagleDraftWorker,
                organize_draft_results,
                build_eagle_verify_input,
            )
        },
        "sglang.srt.speculative.spec_info": {
            "SpeculativeAlgorithm": SpeculativeAlgorithm
        },
        "sglang.srt.managers.scheduler": {"Scheduler": Scheduler},
        "sglang.srt.layers.moe.topk": {"select_experts": select_experts},
        "sglang.srt.distributed.parallel_state": {"get_tp_group": lambda: RANK.group},
        "sglang.kernels.ops.speculative.cache_locs": {
            "assign_extend_cache_locs_func": cache_slots
        },
    }
    for name, content in contents.items():
        for path in accumulate(name.split("."), "{}.{}".format):
            if not isinstance(sys.modules.get(path), Fake):
                monkeypatch.setitem(sys.modules, path, Fake(path))
            above, _, last = path.rpartition(".")
            if above:
                setattr(sys.modules[above], last, sys.modules[path])
        vars(sys.modules[name]).update(content)


class Fake(ModuleType):
    """A module that stands in for one of SGLang's."""


def start(settings, runner=None):
    """A worker with the plug-in's state, ready to decode; hooks lead where SGLang's
    registry would lead them."""
    around = hooks(Serving(settings))
    HookRegistry._patched = set(around)
    create = around[CREATE]
    worker = create(lambda *args: EAGLEWorkerV2, algorithm(), "args")(runner)
    worker.keep, worker.build = around[SCORES_TARGET], around[BUILD]
    worker.route = around.get(ROUTER_TARGET, worker.route)
    worker.draft_hook = around.get(DRAFT_TARGET, worker.draft_hook)
    worker.capture_hook = around.get(CAPTURE_TARGET, worker.capture_hook)
    worker.alloc_memory_pool()
    worker.init_cuda_graphs()
    worker.log.clear()
    return worker


def decode(worker, batch, steps=1):
    """Some steps of a batch: lengths before each, and tokens that each committed."""
    before, committed = [], []
    for _ in range(steps):
        before.append(batch.seq_lens.tolist())
        result = worker.forward_batch_generation(batch)
        committed.append(result.accept_lens.tolist())
        batch.after(result)
    return before, committed


def algorithm():
    return SimpleNamespace(name="NAME")
