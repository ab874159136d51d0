"""The torch runner measures what it was asked to, or says why it cannot."""

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
from runners.torch_moe.attention import AttnMetadata
from runners.torch_moe.program import CellRequest, draw_routes, kept_bytes
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
    "capture_sizes": [1, 4, 8],
    "max_width": 8,
    "max_context": 32,
    "max_batch": 2,
    "places": [(1, 32, 1), (4, 32, 2), (8, 32, 2)],
}
CPU, SLOTS = torch.device("cpu"), (2, 40)
REQUEST = CellRequest("layers", 4, 9, 32, 1, "skewed", tier=4, layers=2)


@pytest.fixture(scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "COPY_BYTES", {"cpu": 1 << 22, "cuda": 1 << 22})
        patch.setattr(clock, "MIN_REFERENCE_BYTES", 1 << 22)
        patch.setattr(clock, "MAX_REFERENCE_BYTES", 1 << 22)
        yield patch


@pytest.fixture(scope="module")
def session(quick):
    return Session(ASKED, OPTIONS)


def measured(session, width, union, split="balanced", **changes):
    layers = changes.pop("layers", None)
    cell = {"part": "layers", "width": width, "union": union, "context": 32}
    cell |= {"batch": 1, "split": split, **changes}
    ask = {"cell": cell, "seeds": [11], "layers": layers}
    (sample,) = session.measure(ask)["samples"]
    return sample


def test_open_answers_what_makes_measurements_comparable(session):
    answer = session.answer_open()
    facts = answer["fingerprint"]
    assert (facts["layers"], facts["device_kind"]) == (2, "cpu")
    assert facts["graph_mode"] == "eager"
    assert facts["attention_backend"].startswith("sdpa-")
    assert all(v != "" for k, v in facts.items() if k != "cuda")
    assert answer["bandwidth_gbps"] > 0
    assert answer["bytes_per_expert"] == MODEL.bytes_per_expert
    assert answer["capture_sizes"] == []


def test_auto_opens_in_the_dtype_of_the_machine(quick, monkeypatch):
    """The answer names it, says why, and counts the bytes of an expert in it."""
    monkeypatch.setattr(device, "cpu_flags", lambda: {"avx2"})
    answer = Session(ASKED, {**OPTIONS, "dtype": "auto"}).answer_open()
    assert answer["dtype"] == "float32"
    assert "emulates" in answer["dtype_reason"]
    assert answer["bytes_per_expert"] == 2 * MODEL.bytes_per_expert


@pytest.mark.parametrize("split", ["balanced", "skewed"])
@pytest.mark.parametrize(
    ("width", "union", "batch"), [(1, 4, 1), (8, 9, 1), (8, 32, 2)]
)
def test_the_union_that_was_asked_for_runs_in_every_layer(
    session, width, union, batch, split
):
    sample = measured(session, width, union, split, batch=batch)
    assert sample["union_low"] == sample["union_high"] == union
    assert sample["observed_union"] == union
    assert sample["observed_width"] == width
    assert min(sample[f"{c}_us"] for c in ("clock", "wall", "reference")) > 0
    assert (sample["tier"], sample["backend"]) == (0, "eager")


@pytest.mark.parametrize("width", [1, 4, 8])
def test_natural_routing_reports_its_own_union(session, width):
    """At least top-k experts, at most as many as there are slots, or experts."""
    sample = measured(session, width, 0, "natural")
    assert 4 <= sample["union_low"] <= sample["union_high"] <= min(32, 4 * width)


def test_what_is_not_moe_has_no_union(session):
    sample = measured(session, 4, 0, "natural", part="non_moe")
    assert sample["observed_union"] != sample["observed_union"]
    assert (sample["union_low"], sample["union_high"]) == (0, 0)


def test_a_seed_draws_the_same_work_again(session):
    program, drawn = session.program(REQUEST), []
    for seed in (5, 6, 5):
        program.load(REQUEST, seed)
        drawn.append((program.routes.clone(), program.hidden.clone()))
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_fewer_layers_can_be_measured(session):
    assert measured(session, 4, 8, layers=1)["observed_union"] == 8
    one = CellRequest("layers", 4, 8, 32, 1, "balanced", tier=4, layers=1)
    assert session.program(one).routes.shape[0] == 1


def test_an_infeasible_union_is_refused_and_the_next_cell_measured(session):
    with pytest.raises(Refusal, match="cannot activate 5") as caught:
        measured(session, 1, 5)
    assert caught.value.kind == "infeasible"
    assert measured(session, 1, 4)["observed_union"] == 4


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("split", ["balanced", "skewed"])
def test_padding_to_a_captured_size_keeps_the_union(session, monkeypatch, width, split):
    monkeypatch.setattr(session, "capture_sizes", [1, 4, 8])
    sample = measured(session, width, 7, split, batch=2)
    assert sample["observed_width"] == 4
    assert sample["union_low"] == sample["union_high"] == 7


def test_a_width_over_all_captured_sizes_is_refused(session, monkeypatch):
    monkeypatch.setattr(session, "capture_sizes", [1, 4])
    with pytest.raises(Refusal, match="width 8 is over the largest captured size, 4"):
        measured(session, 8, 8)


@given(
    st.integers(1, 8), st.integers(0, 8), st.integers(1, 3), st.booleans(), st.data()
)
def test_padded_tokens_repeat_their_request_s_last(width, padding, batch, skewed, data):
    """So padding activates no expert that the request's own tokens do not."""
    union = data.draw(st.integers(4, min(32, 4 * width * batch)))
    split = "skewed" if skewed else "balanced"
    tier = width + padding
    request = CellRequest("layers", width, union, 32, batch, split, tier, layers=2)
    routes = draw_routes(read_shape(ASKED, 2), request, seed=3)
    assert routes.shape == (2, batch * tier, 4)
    assert [len(layer.unique()) for layer in routes] == [union, union]
    rows = routes.view(2, batch, tier, 4)
    last = rows[:, :, width - 1 : width].expand(-1, -1, padding, -1)
    assert torch.equal(rows[:, :, width:], last)


def broken(error):

    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "oom"),
        (RuntimeError("cuDNN: No execution plans\nadvice\nstack"), "failed"),
        (ValueError("cuDNN: No execution plans\nadvice\nstack"), "failed"),
    ],
)
def test_an_engine_s_error_costs_one_cell(session, monkeypatch, error, kind):
    """It is refused with the error's first line, and the next cell is measured."""
    with monkeypatch.context() as patch:
        patch.setattr(session, "program", broken(error))
        with pytest.raises(Refusal) as caught:
            measured(session, 4, 8)
    assert (caught.value.kind, str(caught.value)) == (kind, str(error).split("\n")[0])
    assert measured(session, 4, 8)["observed_union"] == 8


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access", 700), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
    ],
)
def test_an_error_that_poisons_all_that_follows_ends_the_runner(
    session, monkeypatch, error, lost
):
    """CUDA's own, or of a library that reports what CUDA did in words of its own."""
    monkeypatch.setattr(session, "program", broken(error))
    monkeypatch.setattr(session_module, "device_lost", lambda _: lost)
    with pytest.raises(type(error)):
        measured(session, 4, 8)


def test_every_attention_kernel_of_the_sweep_is_named(session, monkeypatch):
    """In the order of names; asked for at the sizes of the graphs that run."""
    asked: list[AttnMetadata] = []
    taken = iter(["math", "flash", "flash"])

    def kernel_of(_, meta):
        asked.append(meta)
        return next(taken)

    monkeypatch.setattr(session, "capture_sizes", [4, 8])
    monkeypatch.setattr(session_module, "kernel_of", kernel_of)
    assert session.attention_backend() == "sdpa-flash+math"
    sizes = {(meta.width, meta.context, meta.batch) for meta in asked}
    assert sizes == {(4, 32, 1), (4, 32, 2), (8, 32, 2)}


@pytest.mark.parametrize("free_gb", [6.0, 9.0, 64.0])
def test_auto_opens_two_layers_on_a_cpu_if_they_fit(monkeypatch, free_gb):
    """In float32 a layer of the demo takes 2.5 GB, embedding and head too."""
    demo = {**to_mapping(load_model("qwen3-30b-a3b")), "dtype": "float32"}
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(free_gb * 1e9))
    slots = (4, 4096 + 64)
    layers = pick_layers(demo, "auto", slots, CPU)
    shape = read_shape(demo, layers)
    taken = non_moe_bytes(shape, slots) + layers * stack.layer_bytes(shape, slots)
    assert layers == (1 if free_gb < 8.0 else 2)
    assert taken < free_gb * 1e9


@pytest.mark.parametrize(
    ("layers", "free", "sentence"),
    [
        (5, 1e12, r"5 layers .* 4 exist .*--layers 4 or less"),
        (4, 3.7 * layer_bytes(MODEL), r"4 layers .* 3 fit in memory.*--layers 3"),
    ],
)
def test_more_layers_than_there_are_or_fit_are_refused(
    monkeypatch, layers, free, sentence
):
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(free))
    with pytest.raises(Refusal, match=sentence):
        pick_layers(ASKED, layers, SLOTS, CPU)


def test_the_programs_of_a_sweep_are_part_of_its_memory(monkeypatch):
    """In sweep `full`, 6 GB of masks and inputs beside the layers of deepseek-v3."""
    model, slots = load_model("deepseek-v3"), (1, 64)
    cells = make_grid(load_sweep("full"), model).measured
    places = sorted({(c.width, c.context, c.batch) for c in cells})
    big = to_mapping(model)
    shape = read_shape(big, 1)
    assert kept_bytes(shape, 58, places) / 1e9 == pytest.approx(6.1, abs=0.1)
    needed = non_moe_bytes(shape, slots) + 2.1 * stack.layer_bytes(shape, slots)
    free = needed / stack.HEADROOM
    monkeypatch.setattr(stack, "free_bytes", lambda _: int(free))
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


def test_a_model_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(stack, "free_bytes", lambda _: 10_000_000)
    with pytest.raises(Refusal, match=r"needs 0\.1 GB.* 0\.0 GB .*shorter") as caught:
        Session(ASKED, OPTIONS)
    assert caught.value.kind == "memory"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_no_gpu_is_a_refusal_with_its_fix():
    with pytest.raises(Refusal, match="finds none; pass --device cpu") as caught:
        Session(ASKED, {**OPTIONS, "device": "cuda"})
    assert caught.value.kind == "device"
