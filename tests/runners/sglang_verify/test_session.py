"""What the runner answers, over an engine of which only the router is real."""

import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from evict_profile.config import load_model
from evict_profile.integrations.sglang.graphs import GraphState
from evict_profile.integrations.sglang.router import RouteBuffers
from evict_profile.records import to_mapping
from runners.protocol import Refusal
from runners.session import Timing
from runners.sglang_verify import opening, session
from runners.sglang_verify.opening import check_loaded
from runners.sglang_verify.server import LoadPlan
from runners.sglang_verify.session import Session
from runners.sglang_verify.verification import chains

MODEL = to_mapping(load_model("tiny-qwen3"))
LAYERS, TOP_K, EXPERTS = 8, MODEL["moe"]["top_k"], MODEL["moe"]["num_experts"]


class Verifier:
    """Hands out forwards whose layers do nothing but route, and counts them."""

    def __init__(self, router):
        self.router, self.graph_ran, self.breaks, self.asked = router, False, None, 0
        self.bypassing: set[int] = set()
        self.states = {width: GraphState(width, None, None) for width in (1, 4, 8)}

    def prepare(self, trees, context, seed):
        self.asked += 1
        about = SimpleNamespace(batch_size=len(trees.parents))
        made = SimpleNamespace(width=trees.width, forward_batch=about)
        made.run, made.graph_ran = partial(self.route, trees), self.graph_ran
        return made

    def route(self, trees):
        """Route every layer as the model would: here, all to the first experts."""
        if self.breaks:
            raise self.breaks
        tokens = len(trees.parents) * trees.width
        for layer in set(range(LAYERS)) - self.bypassing:
            natural = torch.arange(TOP_K, dtype=torch.int32).repeat(tokens, 1)
            weights = torch.ones(tokens, TOP_K)
            out = TopK(weights, natural)
            self.router.select(lambda chosen=out, **_: chosen, layer_id=layer)


class TopK(NamedTuple):
    """What SGLang's router gives."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor


def timed(run):
    run()
    return Timing(5.0, 7.0)


@pytest.fixture
def opened(monkeypatch):
    """A session as it is once a model was loaded, without one."""
    monkeypatch.setattr(session, "swapped", lambda *_: nullcontext())
    made = object.__new__(Session)
    made.device, made.graphs, made.model = torch.device("cpu"), False, MODEL
    made.router, made.layers, made.warm_sizes = RouteBuffers(), LAYERS, set()
    made.fingerprint, made.version = {"engine": "sglang"}, "0.5.16"
    made.router.allocate(list(range(LAYERS)), 16, TOP_K, "cpu")
    made.router.recording = True
    made.verifier = Verifier(made.router)
    made.clock = SimpleNamespace(time=timed, name="a script")
    made.model_runner = made.drafter = None
    return made


def ask(width, union, split="balanced", **changes):
    cell = {"part": "layers", "width": width, "union": union, "context": 32}
    cell |= {"batch": 2, "split": split, **changes}
    return {"do": "measure", "cell": cell, "seeds": [11], "layers": None}


def test_what_is_measured_is_what_ran(opened):
    """tests/sglang/test_runner_verify.py forces more unions in a real engine."""
    sample = opened.measure(ask(8, 5))["samples"][0]
    assert (sample["union_low"], sample["union_high"]) == (5, 5)
    assert (sample["observed_width"], sample["clock_us"]) == (8, 5.0)
    natural = opened.measure(ask(8, 0, "natural"))["samples"][0]
    assert natural["observed_union"] == TOP_K


def test_a_graph_is_given_the_routes_that_the_router_chose(opened):
    """It forces either way, so natural routes are learnt before."""
    opened.graphs = True
    with pytest.raises(
        Refusal, match="no captured graph ran at batch 2, width 8"
    ) as no:
        opened.measure(ask(8, 8))
    assert no.value.kind == "graph"
    opened.verifier.graph_ran = True
    opened.measure(ask(8, 8))
    sample = opened.measure(ask(8, 0, "natural"))["samples"][0]
    assert sample["observed_union"] == TOP_K
    assert sample["observed_width"] == 8
    assert opened.router.ids[0][:16].unique().tolist() == list(range(TOP_K))


@pytest.mark.parametrize("cell", [ask(8, 8), ask(8, 0, "natural")])
def test_layers_that_ask_no_router_are_refused(opened, cell):
    """Their kernels route by themselves, so what they ran is unknown."""
    opened.verifier.bypassing = {2, 5}
    with pytest.raises(Refusal, match=r"layers \[2, 5\] did not call") as refusal:
        opened.measure(cell)
    assert refusal.value.kind == "failed"


def test_routes_of_a_graph_are_those_that_its_capture_read(opened):
    """Its replay calls no hook; an eager forward that learns routes proves nothing."""
    opened.graphs = opened.verifier.graph_ran = True
    capture, opened.verifier.route = opened.verifier.route, lambda trees: None
    with pytest.raises(Refusal, match="did not call select_experts"):
        opened.measure(ask(8, 8))
    opened.router.forcing = False
    capture(chains(2, 8, 0, torch.device("cpu")))
    with pytest.raises(Refusal, match="did not call select_experts"):
        opened.measure(ask(8, 8))
    opened.router.forcing = True
    capture(chains(2, 8, 0, torch.device("cpu")))
    assert opened.measure(ask(8, 5))["samples"][0]["union_high"] == 5


def test_a_gpu_s_time_is_the_plug_in_s(opened):
    """Which surrounds the replay alone, here as in a server."""
    opened.graphs = opened.verifier.graph_ran = True
    verifying = []

    @contextmanager
    def watched():
        verifying.append(True)
        yield

    opened.timer = SimpleNamespace(verifying=watched, take_us=lambda: 3.0)
    assert opened.measure(ask(8, 8))["samples"][0]["clock_us"] == 5.0
    opened.device = torch.device("meta")
    sample = opened.measure(ask(8, 8))["samples"][0]
    assert (sample["clock_us"], verifying) == (3.0, [True])


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ask(1, 8), "cannot activate 8"),
        (ask(5, 4), "width 5 is not one of 1, 4, 8"),
        (ask(8, 4, part="non_moe"), "set 'whole: true' in the sweep"),
        (ask(8, 4) | {"layers": 2}, "set 'whole: true' in the sweep"),
    ],
)
def test_what_cannot_run_is_refused(opened, request_, says):
    """Another width would run eagerly, on an attention backend of a third."""
    with pytest.raises(Refusal, match=says) as refusal:
        opened.measure(request_)
    assert refusal.value.kind == "infeasible"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        (ValueError("no such backend\nadvice"), "failed"),
    ],
)
def test_an_engine_s_error_costs_one_cell(opened, error, kind):
    opened.verifier.breaks = error
    with pytest.raises(Refusal, match=str(error).split("\n")[0]) as refusal:
        opened.measure(ask(8, 4))
    assert refusal.value.kind == kind
    opened.verifier.breaks = RuntimeError("an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal"):
        opened.measure(ask(8, 4))


def test_products_of_new_sizes_run_once_before_they_are_timed(opened):
    opened.measure(ask(8, 8))
    opened.measure(ask(8, 8))
    assert opened.verifier.asked == 3


def test_steps_without_a_drafter_have_no_clock(opened):
    with pytest.raises(Refusal, match=r"0\.5\.16 .*cannot draft on cpu") as refusal:
        opened.answer_clock({"batch": 1, "steps": 4})
    assert refusal.value.kind == "device"


@pytest.mark.parametrize(
    ("asked", "observed", "says"),
    [
        ("fp8_block", "bfloat16", "fp8_block was asked for, .* weights of bfloat16"),
        ("bfloat16", "fp8", "bfloat16 was asked for, .* weights of fp8;"),
        ("auto", "awq", "the format awq, and sweeps know"),
    ],
)
def test_weights_of_another_format_are_refused(asked, observed, says):
    opening.check_format("auto", "fp8_block")
    with pytest.raises(Refusal, match=says):
        opening.check_format(asked, observed)


def test_weights_that_cannot_fit_are_refused_before_loading(monkeypatch):
    """61.1 GB in bfloat16, half of it on each of two devices; a checkpoint may take
    less."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    demo = to_mapping(load_model("qwen3-30b-a3b"))
    opening.check_weights(demo, 1, 62e9)
    opening.check_weights(demo, 2, 31e9)
    opening.check_weights({**demo, "checkpoint_dtype": "fp8_block"}, 1, 32e9)
    for tp, free, takes in ((1, 60e9, 61), (2, 30e9, 31)):
        says = f"weights of qwen3-30b-a3b take {takes} GB of each device, .* are free"
        with pytest.raises(Refusal, match=says) as refusal:
            opening.check_weights(demo, tp, free)
        assert refusal.value.kind == "memory"


def test_without_a_gpu_the_memory_that_lacks_is_called_the_cpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    demo = to_mapping(load_model("qwen3-30b-a3b"))
    says = "no GPU was found, and the weights .* of the memory of the CPU, and 23 GB"
    with pytest.raises(Refusal, match=says) as refusal:
        opening.check_weights(demo, 1, 23e9)
    assert "engine.tp" not in str(refusal.value)


def test_a_python_without_sglang_is_named(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(Refusal, match=f"SGLang is not installed in {sys.executable};"):
        opening.supported_version()


def test_an_unknown_version_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.4.9")
    with pytest.raises(Refusal, match=r"SGLang 0\.4\.9 is not supported; install"):
        opening.supported_version()


def test_some_layers_are_refused():
    for layers in ("auto", 8):
        opening.check_layers(MODEL, layers)
    with pytest.raises(Refusal, match="4 layers were asked for, and SGLang runs all 8"):
        opening.check_layers(MODEL, 4)


H100 = LoadPlan(
    Path("target"),
    Path("draft"),
    drafts=True,
    dtype="bfloat16",
    width=64,
    steps=5,
    topk=8,
    batches=(1, 4, 16),
    context=8192,
    graphs=True,
    attention="triton",
    seed=0,
)


def test_a_kv_pool_too_small_is_refused_with_what_fits():
    says = "140,096 tokens .* for 94,000: contexts to 5,311 fit, or batches to 10"
    with pytest.raises(Refusal, match=says) as refusal:
        opening.check_room(H100, 94_000)
    assert refusal.value.kind == "memory"
    for fits in ({"context": 5311}, {"batches": (1, 10)}):
        opening.check_room(replace(H100, **fits), 94_000)


def loaded(layers=8, vocab=2048, **changes):
    own = {"num_experts": 8, "top_k": 2, **changes}
    config = SimpleNamespace(hidden_size=1024, vocab_size=vocab)
    return [SimpleNamespace(**own) for _ in range(layers)], config


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (loaded(layers=6), "MoE layers: 8 in the sweep's model, 6 in what SGLang"),
        (loaded(layers=0), "MoE layers: 8 in the sweep's model, 0 in what SGLang"),
        (loaded(vocab=99), "vocabulary: 2048 .* 99"),
        (loaded(num_experts=64), "experts: 8 .* 64"),
        (loaded(top_k=4), "top-k: 2 .* 4"),
    ],
)
def test_another_model_is_refused(other, says):
    check_loaded(MODEL, *loaded())
    with pytest.raises(Refusal, match=says):
        check_loaded(MODEL, *other)
