"""The torch runner measures what it was asked to, or says why it cannot."""

from dataclasses import replace
from math import isnan
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config import load_model, load_sweep
from evict_profile.physics import layer_bytes
from evict_profile.records import to_mapping
from evict_profile.sweep.grid import make_grid
from runners import clock, device
from runners.protocol import Refusal
from runners.torch_moe import session as session_module
from runners.torch_moe import stack
from runners.torch_moe.program import CellRequest, draw_routes, kept_bytes
from runners.torch_moe.session import Session, pick_layers
from runners.torch_moe.shape import read_shape
from runners.torch_moe.stack import non_moe_bytes

MODEL = load_model("tiny")
ASKED = to_mapping(MODEL)
OPTIONS = {
    **{"device": "cpu", "layers": "auto", "graphs": True, "seed": 0},
    **{"capture_sizes": [1, 4, 8], "max_width": 8, "max_context": 32, "max_batch": 2},
    "places": [(1, 32, 1), (4, 32, 2), (8, 32, 2)],
}
CPU = torch.device("cpu")
REQUEST = CellRequest("layers", 4, 9, 32, 1, "balanced", tier=4, layers=2)


@pytest.fixture(scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "COPY_BYTES", dict.fromkeys(("cpu", "cuda"), 1 << 22))
        for bound in ("MIN", "MAX"):
            patch.setattr(clock, f"{bound}_REFERENCE_BYTES", 1 << 22)
        yield


@pytest.fixture(scope="module")
def session(quick):
    return Session(ASKED, OPTIONS)


def measured(session, width, union, split="balanced", layers=None, **changes):
    cell = {"part": "layers", "width": width, "union": union, "context": 32}
    cell |= {"batch": 1, "split": split, **changes}
    ask = {"cell": cell, "seeds": [11], "layers": layers}
    return session.measure(ask)["samples"][0]


def test_open_answers_what_makes_measurements_comparable(session):
    answer = session.answer_open()
    facts = answer["fingerprint"]
    assert (facts["layers"], facts["device_kind"]) == (2, "cpu")
    assert facts["graph_mode"] == "eager"
    assert facts["attention_backend"].startswith("sdpa-")
    assert all(v != "" for k, v in facts.items() if k != "cuda")
    assert answer["bandwidth_gbps"] > 0 and answer["capture_sizes"] == []
    assert answer["bytes_per_expert"] == MODEL.bytes_per_expert


def test_auto_opens_in_the_dtype_of_the_machine(quick, monkeypatch):
    monkeypatch.setattr(device, "cpu_flags", lambda: {"avx2"})
    answer = Session(ASKED, {**OPTIONS, "dtype": "auto"}).answer_open()
    assert answer["dtype"] == "float32" and "emulates" in answer["dtype_reason"]
    assert answer["bytes_per_expert"] == 2 * MODEL.bytes_per_expert


UNIONS = [(1, 4, 1), (8, 9, 1), (8, 32, 2), (2, 7, 2), (3, 7, 2), (4, 7, 2)]


@pytest.mark.parametrize("sizes", [[], [1, 4, 8]])
@pytest.mark.parametrize(("width", "union", "batch"), UNIONS)
def test_the_union_that_was_asked_for_runs_in_every_layer(
    session, monkeypatch, sizes, width, union, batch
):
    """Also where a width is padded to a captured size."""
    monkeypatch.setattr(session, "capture_sizes", sizes)
    sample = measured(session, width, union, batch=batch)
    assert sample["union_low"] == sample["union_high"] == union
    assert sample["observed_union"] == union
    padded = min((size for size in sizes if size >= width), default=width)
    assert sample["observed_width"] == padded
    assert min(sample["clock_us"], sample["reference_us"]) > 0


@pytest.mark.parametrize("width", [1, 4, 8])
def test_natural_routing_reports_its_own_union(session, width):
    """At most as many experts as slots; what is not MoE has none."""
    sample = measured(session, width, 0, "natural")
    assert 4 <= sample["union_low"] <= sample["union_high"] <= min(32, 4 * width)
    rest = measured(session, width, 0, "natural", part="non_moe")
    assert isnan(rest["observed_union"]) and rest["union_high"] == 0


def test_a_seed_draws_the_same_work_again(session):
    program, drawn = session.program(REQUEST), []
    for seed in (5, 6, 5):
        program.load(REQUEST, seed)
        drawn.append((program.routes.clone(), program.hidden.clone()))
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_fewer_layers_can_be_measured(session):
    assert measured(session, 4, 8, layers=1)["observed_union"] == 8
    assert session.program(replace(REQUEST, layers=1)).routes.shape[0] == 1


@pytest.mark.parametrize(
    ("width", "union", "says"),
    [
        (1, 5, "cannot activate 5"),
        (8, 8, "width 8 is over the largest captured size, 4"),
    ],
)
def test_what_cannot_run_is_refused_and_the_next_cell_measured(
    session, monkeypatch, width, union, says
):
    monkeypatch.setattr(session, "capture_sizes", [1, 4])
    with pytest.raises(Refusal, match=says) as caught:
        measured(session, width, union)
    assert caught.value.kind == "infeasible"
    assert measured(session, 1, 4)["observed_union"] == 4


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 3), st.data())
def test_padded_tokens_repeat_their_request_s_last(width, padding, batch, data):
    """So padding activates no expert that the request's own tokens do not."""
    union = data.draw(st.integers(4, min(32, 4 * width * batch)))
    tier = width + padding
    request = CellRequest("layers", width, union, 32, batch, "balanced", tier, 2)
    routes = draw_routes(read_shape(ASKED, 2), request, seed=3)
    assert routes.shape == (2, batch * tier, 4)
    assert [len(layer.unique()) for layer in routes] == [union, union]
    rows = routes.view(2, batch, tier, 4)
    last = rows[:, :, width - 1 : width].expand(-1, -1, padding, -1)
    assert torch.equal(rows[:, :, width:], last)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "oom"),
        (RuntimeError("cuDNN: No execution plans\nadvice\nstack"), "failed"),
        (ValueError("cuDNN: No execution plans\nadvice\nstack"), "failed"),
        # CUDA's own error, and a library's report of it, poison all that follows.
        (torch.AcceleratorError("CUDA error: an illegal memory access", 700), None),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), None),
    ],
)
def test_an_engine_s_error_costs_one_cell_or_ends_the_runner(
    session, monkeypatch, error, kind
):
    """A refusal has the error's first line, and the next cell is measured."""
    lost = kind is None and type(error) is RuntimeError
    monkeypatch.setattr(session_module, "device_lost", lambda _: lost)
    with monkeypatch.context() as patch:
        patch.setattr(session, "program", Mock(side_effect=error))
        with pytest.raises(Refusal if kind else type(error)) as caught:
            measured(session, 4, 8)
    if kind:
        says = str(error).split("\n")[0]
        assert (caught.value.kind, str(caught.value)) == (kind, says)
    assert measured(session, 4, 8)["observed_union"] == 8


def test_every_attention_kernel_of_the_sweep_is_named(session, monkeypatch):
    """In the order of names; asked for at the sizes of the graphs that run."""
    kernel_of = Mock(side_effect=["math", "flash", "flash"])
    monkeypatch.setattr(session, "capture_sizes", [4, 8])
    monkeypatch.setattr(session_module, "kernel_of", kernel_of)
    assert session.attention_backend() == "sdpa-flash+math"
    asked = [call.args[1] for call in kernel_of.call_args_list]
    sizes = {(meta.width, meta.context, meta.batch) for meta in asked}
    assert sizes == {(4, 32, 1), (4, 32, 2), (8, 32, 2)}


@pytest.mark.parametrize(("free_gb", "layers"), [(6.0, 1), (9.0, 2), (64.0, 2)])
def test_auto_opens_two_layers_on_a_cpu_if_they_fit(monkeypatch, free_gb, layers):
    """In float32 a layer of the demo takes 2.5 GB, embedding and head too."""
    demo = {**to_mapping(load_model("qwen3-30b-a3b")), "dtype": "float32"}
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(free_gb * 1e9))
    slots, shape = (4, 4096 + 64), read_shape(demo, layers)
    assert pick_layers(demo, "auto", slots, CPU) == layers
    taken = non_moe_bytes(shape, slots) + layers * stack.layer_bytes(shape, slots)
    assert taken < free_gb * 1e9


@pytest.mark.parametrize(
    ("layers", "free", "says"),
    [
        (5, 1e12, r"5 layers .* 4 exist .*--layers 4 or less"),
        (4, 3.7 * layer_bytes(MODEL), r"4 layers .* 3 fit in memory.*--layers 3"),
        ("auto", 1e7, r"needs 0\.1 GB.* 0\.0 GB .*shorter"),
    ],
)
def test_layers_that_do_not_exist_or_fit_are_refused(monkeypatch, layers, free, says):
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(free))
    with pytest.raises(Refusal, match=says) as caught:
        Session(ASKED, {**OPTIONS, "layers": layers})
    assert caught.value.kind == "memory"


def test_what_is_allocated_is_told_before_it_is(quick, monkeypatch):
    told = Mock()
    monkeypatch.setattr(session_module, "tell", told)
    monkeypatch.setattr(session_module, "free_bytes", lambda _: int(9.1e9))
    monkeypatch.setattr(session_module, "Stack", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        Session({**ASKED, "vocab_size": 10**6}, {**OPTIONS, "dtype": "bfloat16"})
    (words,) = (call.args[0]["progress"] for call in told.call_args_list)
    gb = (2 * layer_bytes(MODEL) + 2 * 2 * 10**6 * MODEL.hidden_size) / 1e9
    assert words == (
        f"MoE layers: 2, with embedding and head {gb:.1f} GB of the 9.1 GB that are "
        "free on cpu"
    )


def test_the_programs_of_a_sweep_are_part_of_its_memory(monkeypatch):
    """In sweep `full`, 6 GB of masks and inputs beside the layers of deepseek-v3."""
    model, slots = load_model("deepseek-v3"), (1, 64)
    cells = make_grid(load_sweep("full"), model).measured
    places = sorted({(c.width, c.context, c.batch) for c in cells})
    big = to_mapping(model)
    shape = read_shape(big, 1)
    assert kept_bytes(shape, 58, places) / 1e9 == pytest.approx(6.1, abs=0.1)
    needed = non_moe_bytes(shape, slots) + 2.1 * stack.layer_bytes(shape, slots)
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(needed / stack.HEADROOM))
    assert pick_layers(big, "auto", slots, CPU) == 2
    assert pick_layers(big, "auto", slots, CPU, places) == 1


def test_what_is_kept_is_what_programs_take(session):
    """Three programs at a place: of both kinds of layers, and of what is no layer."""
    asked = ("layers", "balanced"), ("layers", "natural"), ("non_moe", "natural")
    taken = 0
    for part, split in asked:
        program = session.program(CellRequest(part, 8, 9, 32, 2, split, 8, 2))
        taken += sum(t.nbytes for t in vars(program).values() if torch.is_tensor(t))
        taken += sum(t.nbytes for t in (program.meta.mask, *program.meta.angles))
    assert kept_bytes(session.shape, 2, [(8, 32, 2)]) == taken


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_no_gpu_is_a_refusal_with_its_fix():
    with pytest.raises(Refusal, match="finds none; pass --device cpu") as caught:
        Session(ASKED, {**OPTIONS, "device": "cuda"})
    assert caught.value.kind == "device"
