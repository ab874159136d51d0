"""What every runner that measures cells answers alike."""

import math
from dataclasses import fields
from types import SimpleNamespace

import pytest

from evict_profile.cells import Reading
from runners.protocol import Refusal
from runners.session import Forward, MeasureSession, Timing, check_shape, source_digest

CELL = {"part": "layers", "width": 4, "union": 6}


def timed(run):
    run()
    return Timing(3.0, 5.0)


class Toy(MeasureSession):
    """Runs that note their seed; three layers with unions of 6, 7 and 9."""

    layers, fingerprint = 3, {"engine": "toy"}

    def __init__(self, **changes):
        super().__init__()
        self.clock, self.changes, self.ran = SimpleNamespace(time=timed), changes, []

    def prepare(self, cell, layers, seed):
        def run():
            self.ran.append(seed)

        return Forward(run, cell["width"], lambda: [6, 7, 9][:layers], **self.changes)


def measured(session, layers=None, **changes):
    ask = {"cell": {**CELL, **changes}, "seeds": [11, 12], "layers": layers}
    return session.measure(ask)["samples"]


def test_a_sample_is_what_the_toolkit_reads():
    session = Toy()
    sample, _ = measured(session)
    assert sample.keys() == {field.name for field in fields(Reading)}
    assert (sample["union_low"], sample["union_high"]) == (6, 9)
    assert sample["observed_union"] == 22 / 3
    assert session.ran == [11, 12]
    assert (sample["clock_us"], sample["reference_us"]) == (3.0, 5.0)


def test_some_layers_or_none_are_measured():
    assert [s["union_high"] for s in measured(Toy(), layers=2)] == [7, 7]
    session = Toy()
    session.layers = 0
    sample, _ = measured(session)
    assert math.isnan(sample["observed_union"])
    assert (sample["union_low"], sample["union_high"]) == (0, 0)


def test_a_product_of_a_new_size_runs_once_before_it_is_timed():
    session = Toy(sizes={4, 8})
    measured(session)
    measured(session)
    assert session.ran == [11, 11, 12, 11, 12]


@pytest.mark.parametrize(("changes", "layers"), [({"part": "non_moe"}, 3), ({}, 2)])
def test_whole_forwards_are_neither_some_layers_nor_the_rest(changes, layers):
    session = Toy()
    session.whole = True
    assert len(measured(session, layers=3)) == 2
    with pytest.raises(Refusal, match=r"toy times whole forwards.*whole: true") as no:
        measured(session, layers, **changes)
    assert no.value.kind == "infeasible"


@pytest.mark.parametrize("known", [True, False])
def test_an_engine_s_error_is_a_refusal_or_ends_the_runner(known):
    session = Toy()
    session.prepare = lambda *_: 1 + math.sqrt(-1)
    if known:
        session.refusal = lambda error: Refusal("failed", str(error))
    with pytest.raises(Refusal if known else ValueError, match=r"math|negative"):
        measured(session)


def test_another_model_is_refused_by_what_differs():
    sizes = {"experts": (8, 8), "top-k": (2, 4)}
    with pytest.raises(Refusal, match=r"top-k: 2 .* 4 in the engine; do this"):
        check_shape(sizes, "world", "the engine", "do this")


def test_the_digest_follows_the_code(tmp_path):
    module = tmp_path / "a.py"
    module.write_text("1")
    before = source_digest(str(module))
    assert source_digest(str(module)) == before
    (tmp_path / "b.py").write_text("2")
    assert source_digest(str(module)) != before
