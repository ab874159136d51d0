"""The torch runner measures what it was asked to, or says why it cannot."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config import load_model
from evict_profile.physics import layer_bytes
from evict_profile.records import to_mapping
from runners.protocol import Refusal
from runners.torch_moe import clocks, device, stack
from runners.torch_moe import session as session_module
from runners.torch_moe.attention import AttnMetadata
from runners.torch_moe.program import Request, draw_routes
from runners.torch_moe.session import Session, pick_layers
from runners.torch_moe.shape import read_shape
from runners.torch_moe.stack import non_moe_bytes

MODEL = load_model("tiny")
ASKED = to_mapping(MODEL)
OPTIONS = {
    "device": "cpu",
    "layers": "auto",
    "graphs": True,
    "seed": 0,
    "ladder": [1, 4, 8],
    "max_width": 8,
    "max_context": 32,
    "max_batch": 2,
    "places": [(1, 32, 1), (4, 32, 2), (8, 32, 2)],
}
CPU, SLOTS = torch.device("cpu"), (2, 40)
SMALL_COPY = {"cpu": 1 << 22, "cuda": 1 << 22}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """The tiny model, open on the CPU."""
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(clocks, "COPY_BYTES", SMALL_COPY)
        quick.setattr(clocks, "MIN_REFERENCE_BYTES", 1 << 22)
        quick.setattr(clocks, "MAX_REFERENCE_BYTES", 1 << 22)
        yield Session(ASKED, OPTIONS)


def ask(width: int, union: int, split: str = "balanced", **changes: Any) -> Any:
    """A request to measure one cell with one seed."""
    cell = {
        "part": "layers",
        "width": width,
        "union": union,
        "context": 32,
        "batch": 1,
        "split": split,
        **changes,
    }
    return {"do": "measure", "cell": cell, "seeds": [11], "layers": None}


def measured(session: Session, request: Any) -> dict[str, Any]:
    """The one sample of a request."""
    (sample,) = session.measure(request)["samples"]
    return sample


def test_open_answers_what_makes_measurements_comparable(session: Session) -> None:
    """Device, engine, kernels and clock, all JSON, none empty but the CUDA version."""
    answer = session.answer_open()
    facts = answer["fingerprint"]
    assert facts["layers"] == 2
    assert facts["device_kind"] == "cpu"
    assert facts["graph_mode"] == "eager"
    assert facts["attention_backend"].startswith("sdpa-")
    assert all(v != "" for k, v in facts.items() if k != "cuda")
    assert answer["bandwidth_gbps"] > 0
    assert answer["bytes_per_expert"] == MODEL.bytes_per_expert
    assert answer["ladder"] == []


def test_auto_opens_in_the_dtype_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer names it, says why, and counts the bytes of an expert in it."""
    for name, size in {
        "COPY_BYTES": SMALL_COPY,
        "MAX_REFERENCE_BYTES": 1 << 22,
    }.items():
        monkeypatch.setattr(clocks, name, size)
    monkeypatch.setattr(clocks, "MIN_REFERENCE_BYTES", 1 << 22)
    monkeypatch.setattr(device, "cpu_flags", lambda: {"avx2"})
    answer = Session(ASKED, {**OPTIONS, "dtype": "auto"}).answer_open()
    assert answer["dtype"] == "float32"
    assert "emulates" in answer["dtype_reason"]
    assert answer["bytes_per_expert"] == 2 * MODEL.bytes_per_expert


@pytest.mark.parametrize("free_gb", [6.0, 9.0, 64.0])
def test_the_demo_opens_as_many_layers_as_fit(
    monkeypatch: pytest.MonkeyPatch, free_gb: float
) -> None:
    """In float32 too: one layer of its model takes 2.5 GB, embedding and head too."""
    demo = {**to_mapping(load_model("qwen3-30b-a3b")), "dtype": "float32"}
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(free_gb * 1e9))
    slots = (4, 4096 + 64)
    layers = pick_layers(demo, "auto", slots, CPU)
    shape = read_shape(demo, layers)
    taken = non_moe_bytes(shape, slots) + layers * stack.layer_bytes(shape, slots)
    assert layers == (1 if free_gb < 8.0 else 2)
    assert taken < free_gb * 1e9


@pytest.mark.parametrize("split", ["balanced", "skewed"])
@pytest.mark.parametrize(
    ("width", "union", "batch"), [(1, 4, 1), (8, 9, 1), (8, 32, 2)]
)
def test_observed_union_is_the_requested(
    session: Session, width: int, union: int, batch: int, split: str
) -> None:
    """In every layer, read back from the routes that ran."""
    sample = measured(session, ask(width, union, split, batch=batch))
    assert sample["union_low"] == sample["union_high"] == union
    assert sample["observed_union"] == union
    assert sample["observed_width"] == width


@pytest.mark.parametrize("width", [1, 4, 8])
def test_natural_routing_reports_its_own_union(session: Session, width: int) -> None:
    """At least top-k experts, at most as many as there are slots, or experts."""
    sample = measured(session, ask(width, 0, "natural"))
    assert 4 <= sample["union_low"] <= sample["union_high"] <= min(32, 4 * width)


def test_ends_have_no_union(session: Session) -> None:
    """They hold no experts: NaN, and 0 for smallest and largest."""
    sample = measured(session, ask(4, 0, "natural", part="non_moe"))
    assert sample["observed_union"] != sample["observed_union"]
    assert (sample["union_low"], sample["union_high"]) == (0, 0)


def test_a_sample_is_timed(session: Session) -> None:
    """Clock, wall and reference are positive, and no graph ran."""
    sample = measured(session, ask(4, 8))
    assert min(sample[f"{c}_us"] for c in ("clock", "wall", "reference")) > 0
    assert (sample["tier"], sample["backend"]) == (0, "eager")


def test_same_seed_same_work(session: Session) -> None:
    """Routes, tree and activations of a sample can be drawn again."""
    request = Request("layers", 4, 9, 32, 1, "skewed", tier=4, layers=2)
    program = session.program(request)
    drawn = []
    for seed in (5, 6, 5):
        program.load(request, seed)
        drawn.append((program.routes.clone(), program.hidden.clone()))
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_fewer_layers_can_be_measured(session: Session) -> None:
    """The first of two, with the union still exact; its program is another one."""
    one = session.measure({**ask(4, 8), "layers": 1})["samples"][0]
    assert one["observed_union"] == 8
    request = Request("layers", 4, 8, 32, 1, "balanced", tier=4, layers=1)
    assert session.program(request).routes.shape[0] == 1


def test_infeasible_union_is_refused(session: Session) -> None:
    """One token activates 4 experts; the runner goes on after saying so."""
    with pytest.raises(Refusal, match="cannot activate 5") as caught:
        session.measure(ask(1, 5))
    assert caught.value.kind == "infeasible"
    assert measured(session, ask(1, 4))["observed_union"] == 4


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("split", ["balanced", "skewed"])
def test_padding_to_the_ladder_keeps_the_union(
    session: Session, monkeypatch: pytest.MonkeyPatch, width: int, split: str
) -> None:
    """Width 4 runs, whatever up to 4 was asked for, with the union asked for."""
    monkeypatch.setattr(session, "ladder", [1, 4, 8])
    sample = measured(session, ask(width, 7, split, batch=2))
    assert sample["observed_width"] == 4
    assert sample["union_low"] == sample["union_high"] == 7


def test_a_width_over_the_ladder_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No graph is that wide; the top rung is named."""
    monkeypatch.setattr(session, "ladder", [1, 4])
    with pytest.raises(Refusal, match="width 8 is over the ladder's top 4"):
        session.measure(ask(8, 8))


@given(
    st.integers(1, 8), st.integers(0, 8), st.integers(1, 3), st.booleans(), st.data()
)
def test_padded_tokens_repeat_their_request_s_last(
    width: int, padding: int, batch: int, skewed: bool, data: st.DataObject
) -> None:
    """Padding activates no expert that the request's own tokens do not activate."""
    union = data.draw(st.integers(4, min(32, 4 * width * batch)))
    split = "skewed" if skewed else "balanced"
    tier = width + padding
    request = Request("layers", width, union, 32, batch, split, tier, layers=2)
    routes = draw_routes(read_shape(ASKED, 2), request, seed=3)
    assert routes.shape == (2, batch * tier, 4)
    assert [len(layer.unique()) for layer in routes] == [union, union]
    rows = routes.view(2, batch, tier, 4)
    last = rows[:, :, width - 1 : width].expand(-1, -1, padding, -1)
    assert torch.equal(rows[:, :, width:], last)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
    ],
)
def test_out_of_memory_is_a_refusal(
    session: Session, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """It costs one cell and not the process."""

    def fail(*_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(session, "program", fail)
    with pytest.raises(Refusal) as caught:
        session.measure(ask(4, 8))
    assert caught.value.kind == "oom"


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_an_engine_s_error_costs_one_cell(
    session: Session, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """It is refused with the error's first line, and the next cell is measured."""

    def fail(*_: object) -> None:
        raise kind("cuDNN Frontend error: No execution plans\nadvice\nstack")

    with monkeypatch.context() as broken:
        broken.setattr(session, "program", fail)
        with pytest.raises(Refusal, match=r"No execution plans$") as caught:
            session.measure(ask(4, 8))
    assert caught.value.kind == "failed"
    assert measured(session, ask(4, 8))["observed_union"] == 8


def test_an_accelerator_s_error_ends_the_runner(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA itself reports can poison all that follows."""

    def fail(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access", 700)

    monkeypatch.setattr(session, "program", fail)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        session.measure(ask(4, 8))


def test_an_error_that_leaves_the_device_lost_ends_the_runner(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some libraries report what CUDA did in words of their own."""

    def fail(*_: object) -> None:
        raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(session, "program", fail)
    monkeypatch.setattr(session_module, "device_lost", lambda _: True)
    with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
        session.measure(ask(4, 8))


@pytest.mark.parametrize(("before", "runs"), [("swept", 1), ("read", 1), ("self", 2)])
def test_the_cache_is_left_as_asked(
    session: Session, monkeypatch: pytest.MonkeyPatch, before: str, runs: int
) -> None:
    """The forward runs a second time only where it is to find its own weights."""
    request = Request("layers", 4, 8, 32, 1, "balanced", tier=4, layers=2)
    program, seen = session.program(request), []
    monkeypatch.setattr(program, "run", lambda: seen.append(1))
    monkeypatch.setattr(session, "warm_up", lambda _: None)
    measured(session, {**ask(4, 8), "before": before})
    assert len(seen) == runs


def test_every_attention_kernel_of_the_sweep_is_named(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of names, whatever the order of places."""
    taken = iter(["math", "flash", "flash"])
    monkeypatch.setattr(session_module, "kernel_of", lambda *_: next(taken))
    assert session.attention_backend() == "sdpa-flash+math"


def test_attention_is_asked_about_at_the_rungs_that_run(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A padded width has the shapes of its rung."""
    asked: list[AttnMetadata] = []

    def note(_: object, meta: AttnMetadata) -> str:
        asked.append(meta)
        return "flash"

    monkeypatch.setattr(session, "ladder", [4, 8])
    monkeypatch.setattr(session_module, "kernel_of", note)
    session.attention_backend()
    places = {(meta.width, meta.context, meta.batch) for meta in asked}
    assert places == {(4, 32, 1), (4, 32, 2), (8, 32, 2)}


def test_auto_takes_two_layers_on_a_cpu() -> None:
    """Time is short there, not memory."""
    assert pick_layers(ASKED, "auto", SLOTS, CPU) == 2


def test_more_layers_than_the_model_has_are_refused() -> None:
    """The message has the largest number that can be asked for."""
    with pytest.raises(Refusal, match=r"5 layers .* 4 exist .*--layers 4 or less"):
        pick_layers(ASKED, 5, SLOTS, CPU)


def test_more_layers_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise where memory is the limit."""
    free = int(3.7 * layer_bytes(MODEL))
    monkeypatch.setattr(stack, "free_bytes", lambda _: free)
    with pytest.raises(
        Refusal, match=r"4 layers .* 3 fit in memory.*--layers 3 or less"
    ):
        pick_layers(ASKED, 4, SLOTS, CPU)


def test_a_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any memory is taken, with what it needs and what is free."""
    monkeypatch.setattr(stack, "free_bytes", lambda _: 10_000_000)
    with pytest.raises(Refusal, match=r"needs 0\.1 GB, and 0\.0 GB are free") as caught:
        Session(ASKED, OPTIONS)
    assert caught.value.kind == "memory"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_no_gpu_is_a_refusal_with_its_fix() -> None:
    """Who asks for a GPU and has none is told of --device cpu."""
    with pytest.raises(Refusal, match="finds none; pass --device cpu") as caught:
        Session(ASKED, {**OPTIONS, "device": "cuda"})
    assert caught.value.kind == "device"
