"""A toy model in a real llama.cpp: what is forced runs, what is natural is seen."""

import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from runners.protocol import Refusal

pytest.importorskip("gguf")

from examples.llama_cpp import check
from examples.llama_cpp import session as module
from examples.llama_cpp.engine import Context, ContextSize
from examples.llama_cpp.model_file import gguf_mapping
from examples.llama_cpp.session import Decode, Session
from tests.examples.llama_cpp.conftest import model_of
from tests.examples.llama_cpp.recurrent import write_recurrent_toy


@pytest.fixture(autouse=True, scope="module")
def quick_copy():
    """The bandwidth of a copy is measured elsewhere, in half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "copy_bandwidth_gbps", lambda _: 10.0)
        yield


@pytest.fixture(scope="module")
def session(libllama, model, options):
    return Session(model, options)


def cell(width, union, context=16, batch=1):
    split = "balanced" if union else "natural"
    place = {"width": width, "union": union, "context": context, "batch": batch}
    return {"part": "layers", "split": split, **place}


def measured(session, asked, *seeds):
    return session.measure({"cell": asked, "seeds": list(seeds) or [1]})["samples"]


def test_it_tells_what_runs(session):
    answer = session.answer_open()
    facts = answer["fingerprint"]
    assert (facts["engine"], facts["layers"], facts["threads"]) == ("llama_cpp", 2, 1)
    assert facts["moe_backend"] == "ggml f32 repack 1 threads"
    assert answer["bytes_per_expert"] == 3 * 64 * 32 * 4
    assert answer["whole"]


PLACES = [(1, 4, 24, 1), (4, 7, 24, 1), (8, 16, 24, 1), (4, 16, 32, 2), (4, 9, 32, 1)]


@pytest.mark.parametrize("place", PLACES)
def test_a_forced_union_is_the_union(session, place):
    """In both layers, at any width, at contexts that no place named, for two requests
    of four tokens each, and for one again."""
    for found in measured(session, cell(*place), 1, 2):
        assert found["union_low"] == found["union_high"] == place[1]
        assert found["observed_width"] == place[0]
        # What the hook costs is taken off: beside a load little may be left.
        assert math.isfinite(found["clock_us"]) and found["reference_us"] > 0.0


def test_natural_routes_are_the_known_ones(session):
    """Tokens t .. t + 3 activate the window of seven experts, in each layer's order."""
    session.set_sequences(session.hook.context, cell(4, 0), 16, np.arange(3, 7))
    read = session.hook.read("known", session.hook.context.decode)
    assert [len(np.unique(layer)) for layer in read] == [7, 7]
    [found] = measured(session, cell(4, 0))
    assert 4 <= found["union_low"] <= found["union_high"] <= 16


def test_the_text_activates_what_is_forced(session, monkeypatch):
    """As far as it reaches: two of its tokens activate five experts of the eight."""
    prepare = Mock(wraps=session.hook.prepare)
    monkeypatch.setattr(session.hook, "prepare", prepare)
    measured(session, cell(2, 8), 3)
    forced, drawn = prepare.call_args.args[1], session.text.draw(cell(2, 8), 3)
    for routes, activated in zip(forced, drawn.activated, strict=True):
        own = set(np.flatnonzero(activated))
        assert len(own) >= 4 and own <= set(np.unique(routes))


def test_forced_experts_run_and_not_others(session):
    """The logits of forced routes equal those of the tokens that choose them."""
    hook, context = session.hook, session.hook.context
    ids = np.arange(2, 6)
    session.set_sequences(context, cell(4, 4), 16, ids)
    own = hook.read("own", context.decode)
    before = context.logits()
    for routes, equal in ((own, True), ([(r + 1) % 16 for r in own], False)):
        session.set_sequences(context, cell(4, 4), 16, ids)
        hook.prepare("own", routes)
        hook.write(context.decode)
        assert np.array_equal(context.logits(), before) is equal


def test_a_timed_decode_finds_the_graph_of_its_shape(session, monkeypatch):
    """The text before it, of the same shape, runs right before and ends its context."""
    ran = list[tuple[Context, list[int], int]]()
    decode = Context.decode

    def seen(context):
        used = context.batch
        ran.append((context, used.token[: used.n_tokens], used.pos[0]))
        decode(context)

    monkeypatch.setattr(Context, "decode", seen)
    tokens = session.text.tokens.tolist()
    for union, where in ((0, session.plain), (8, session.hook.context)):
        measured(session, cell(4, union))
        *_, first, before, timed, last = ran
        assert first[0] is last[0] is session.reference_context
        assert before[0] is timed[0] is where
        assert (before[2], timed[2]) == (12, 16)
        stretches = [tokens[at : at + 8] for at in range(len(tokens))]
        assert before[1] + timed[1] in stretches


def test_the_hook_costs_what_it_adds_to_the_same_decode(session, monkeypatch):
    """Pair by pair, over the reference; a pair that a neighbour disturbs is nothing."""
    times_us = iter([100.0, 130.0, 80.0, 900.0, 200.0, 230.0] * module.PAIRS)
    monkeypatch.setattr(session, "decode_us", lambda *_: next(times_us))
    monkeypatch.setattr(session.clock, "median_reference_us", lambda: 200.0)
    assert session.measure_overhead(4, module.PAIRS) == pytest.approx(0.15)


def test_what_runs_before_and_the_hook_are_not_in_a_decode_s_time(session, monkeypatch):
    """The reference is the mean of the one before and the one after."""
    ran, references_us = [], iter([8.0, 12.0])
    monkeypatch.setattr(session.clock, "time_reference", lambda: next(references_us))
    monkeypatch.setattr(session.clock, "us", lambda run: run() or 30.0)
    before, decode = (lambda name=n: ran.append(name) for n in ("before", "decode"))
    forward = Decode(decode, 4, list, before=before, overhead=0.2)
    reading = session.time(forward)
    assert ran == ["before", "decode"]
    assert (reading.clock_us, reading.reference_us) == (28.0, 10.0)


def test_the_hook_costs_more_with_more_tokens(session, monkeypatch):
    """A line in their log between the two that are measured, and level beyond."""
    assert set(session.overheads) == {1, 8}
    monkeypatch.setattr(session, "overheads", {1: 0.1, 16: 0.3})
    shapes = [(1, 1), (4, 1), (2, 2), (16, 1), (16, 4)]
    found = [session.overhead(cell(n, 4, batch=b)) for n, b in shapes]
    assert found == pytest.approx([0.1, 0.2, 0.2, 0.3, 0.3])


def test_an_error_in_the_callback_is_not_swallowed(session):
    """llama.cpp would end the graph and answer that all is well."""
    hook, context = session.hook, session.hook.context
    session.set_sequences(context, cell(2, 4), 16, [1, 2])
    hook.places["moved"] = frozenset({0})
    hook.stride = hook.stride or 64
    hook.prepare("moved", [np.zeros((2, 4), np.int32)] * 2)
    with pytest.raises(Refusal, match="graph of this shape changed"):
        hook.write(context.decode)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"part": "non_moe"}, "times whole forwards"),
        ({"width": 400, "batch": 2}, "splits more than 512"),
        ({"union": 17}, "cannot activate 17"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(session, change, says):
    with pytest.raises(Refusal, match=says) as refused:
        measured(session, {**cell(4, 8), **change})
    assert refused.value.kind == "infeasible"


@pytest.mark.parametrize(
    ("layers", "own", "says"),
    [
        (2, {"overrides": ["exps=CUDA0"]}, "does not end in '=CPU'"),
        (2, {"text": "nowhere.txt"}, "No such file"),
        (2, {"model": "nowhere.safetensors"}, "is no GGUF file"),
        (3, {}, "layers: 3 in the sweep's model, 2 in"),
    ],
)
def test_what_cannot_be_opened_is_refused(libllama, model, options, layers, own, says):
    """Also where the sweep's model and the file are not the same."""
    with pytest.raises(Refusal, match=says):
        Session({**model, "num_layers": layers}, {**options, "engine": own})


def test_options_reach_the_engine_and_its_facts(libllama, model, options):
    own = {"cache_k": "q8_0", "flash_attention": "on", "repack": False}
    own["overrides"] = ["exps=CPU"]
    facts = Session(model, {**options, "engine": own}).answer_open()["fingerprint"]
    assert facts["attention_backend"] == "ggml flash-on q8_0/f16"
    assert facts["moe_backend"] == "ggml f32 1 threads exps=CPU"


def test_a_cache_just_larger_than_the_widest_cell_still_opens(libllama, model, options):
    """Four tokens touch all experts; behind 254 they pass the cache's step of 256."""
    small = {"places": [(1, 254, 1)], "max_context": 254, "max_width": 1}
    [found] = measured(Session(model, {**options, **small}), cell(1, 4, 254))
    assert found["union_low"] == found["union_high"] == 4


def test_the_self_test_refuses_what_it_does_not_know(libllama, monkeypatch):
    real = check.expected_logits
    monkeypatch.setattr(check, "expected_logits", lambda *a: 1.1 * real(*a))
    with pytest.raises(Refusal, match="natural routing are off by 9"):
        check.check_library(libllama)


@pytest.fixture(scope="module")
def recurrent(libllama, options, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "recurrent.gguf"
    write_recurrent_toy(path)
    return Session(model_of(path), options)


@pytest.mark.parametrize(("width", "union"), [(1, 4), (4, 7), (8, 0)])
def test_a_recurrent_model_is_measured_again_and_again(recurrent, width, union):
    """Its text is read anew, since no end of its state can be cut."""
    assert not recurrent.can_cut
    other = {"kind": "conv", "layers": 1, "weights": 64 * (4 * 64 + 3), "window": 0}
    assert gguf_mapping(recurrent.file.path)["other_layers"] == [other]
    samples = measured(recurrent, cell(width, union, 24, batch=2), 1, 2, 1)
    assert [found["observed_width"] for found in samples] == [width] * 3
    unions = [found["union_low"] for found in samples]
    assert unions[0] == unions[2] and union in (0, *unions)


def test_repeated_text_gives_the_same_logits_in_a_recurrent_state(recurrent):
    """What an earlier decode left must be gone."""
    found = []
    for seed in (1, 2, 1):
        asked = cell(4, 0, context=24)
        run, before = recurrent.plain_run(asked, recurrent.text.draw(asked, seed))
        before()
        run()
        found.append(recurrent.plain.logits())
    assert np.abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_array_equal(found[0], found[2])


def test_a_width_beyond_the_context_needs_a_cut(recurrent):
    with pytest.raises(Refusal, match="a recurrent state cannot be cut"):
        measured(recurrent, cell(8, 0, context=4))


def test_a_closed_context_frees_its_batch(session, monkeypatch):
    context, freed = Context(session.model, ContextSize(1, 8, 8)), list[Any]()
    monkeypatch.setattr(context.c, "llama_batch_free", freed.append)
    context.close()
    assert freed == [context.batch]
