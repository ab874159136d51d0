"""A runner is opened with all that a table needs to know of it."""

import pytest

from evict_profile.config import load_model
from evict_profile.errors import MeasurementError
from evict_profile.records import differences, replace
from evict_profile.runner import Runner
from evict_profile.sweep.session import fingerprint


def test_a_runner_that_keeps_a_fact_is_refused(open_session, monkeypatch):
    whole = Runner.open

    def without_clock(runner, *asked):
        opened = whole(runner, *asked)  # type: ignore[arg-type]
        del opened["fingerprint"]["clock"]
        return opened

    monkeypatch.setattr(Runner, "open", without_clock)
    with pytest.raises(
        MeasurementError, match=r"scripted.* key 'fingerprint.clock' is missing"
    ):
        open_session()


@pytest.mark.parametrize("measured", [0.0, float("nan")])
def test_a_bandwidth_that_no_device_has_is_refused(open_session, monkeypatch, measured):
    whole = Runner.open

    def slow(runner, *asked):
        return whole(runner, *asked) | {"bandwidth_gbps": measured}  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "open", slow)
    with pytest.raises(MeasurementError, match=r"scripted.* bandwidth_gbps: Expected"):
        open_session()


def test_a_cpu_without_a_name_is_refused(open_session, monkeypatch):
    """Its tables would be those of every other such machine."""
    monkeypatch.setenv("SCRIPTED_DEVICE", "unknown CPU avx2")
    with pytest.raises(MeasurementError, match=r"does not name its CPU.*measure where"):
        open_session()


@pytest.mark.parametrize(
    ("asked", "opened"), [("auto", "float32"), ("bfloat16", "bfloat16")]
)
def test_auto_takes_the_dtype_that_the_runner_opens(
    open_session, monkeypatch, asked, opened
):
    """It alone sees the device; model, fingerprint and a restart follow it."""
    monkeypatch.setenv("SCRIPTED_DTYPE", "float32")
    with open_session(dtype=asked) as session:
        assert session.model.dtype == session.facts["dtype"] == opened
        session.restart()
        assert session.model.dtype == opened


def test_a_runner_is_told_every_place_of_the_sweep(open_session, grid, monkeypatch):
    whole, told = Runner.open, []

    def listening(runner, model, options):
        told.extend(options["places"])
        return whole(runner, model, options)

    monkeypatch.setattr(Runner, "open", listening)
    with open_session():
        assert told == sorted({(c.width, c.context, c.batch) for c in grid.cells})


FACTS = {"engine": "paper", "layers": 2}
TINY = load_model("tiny")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 1024},
        {"num_layers": 5},
        {"moe": replace(TINY.moe, top_k=5)},
        {"attention": replace(TINY.attention, sliding_window=64)},
    ],
)
def test_another_shape_is_another_fingerprint(change):
    other = fingerprint(FACTS, replace(TINY, **change))
    assert differences(other, fingerprint(FACTS, TINY))[0].startswith("model_sha256")


def test_a_fingerprint_holds_the_runner_s_facts_and_the_dtype():
    """Each differs by its own name; where a shape was found does not matter."""
    known = fingerprint(FACTS, TINY)
    assert FACTS.items() <= known.items()
    assert fingerprint(FACTS, replace(TINY, source="elsewhere")) == known
    phrases = differences(fingerprint(FACTS, replace(TINY, dtype="float32")), known)
    assert "dtype: float32 here, bfloat16 there" in phrases
