"""Exported files say what the staircases say, as SGLang and vLLM look costs up."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evict_profile.errors import DataError
from evict_profile.fit.export import make_table
from evict_profile.integrations.exporters import write_format
from evict_profile.integrations.exporters.planners import (
    TokenCurve,
    sglang_sps,
    staircases_at,
)
from evict_profile.records import replace
from evict_profile.table import CostTable, DraftClock, Drafting, ServedStep, Staircase
from tests.exported import sglang_reads_us, vllm_reads_us
from tests.factories import DRAFTING

CONTEXT = 64
Staircases = Sequence[Staircase]


@pytest.fixture(scope="session")
def table(fitted):
    """The table of the known run: batches 1 and 2, contexts 64 and 256; 40 us of a
    drafting step are fixed, and one level takes 100 us."""
    made = make_table(fitted, samples_sha256="")
    clock = DraftClock(1, (0.0, 100.0), 40.0, 0.0)
    return replace(made, drafting=Drafting("a test", "scripted", (clock,)))


def staircase(batch, *costs_us):
    """The staircase whose costs from `batch` tokens on are these."""
    steps = (costs_us[0],) * batch + costs_us
    return Staircase(batch, CONTEXT, steps, steps, steps)


APART = staircase(1, 10.0, 11.0), staircase(8, 30.0, 31.0)
CAPTURE_SIZES = (staircase(1, *[1000.0] * 4, *[1600.0] * 4),)


@st.composite
def any_staircases(draw):
    """One to three batches; costs may stay flat or fall, batches may leave gaps."""
    batches = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
    costs = st.lists(st.integers(10, 40).map(float), min_size=2, max_size=12)
    return [staircase(batch, *draw(costs)) for batch in sorted(batches)]


def exported(table, staircases=(), drafts=2, **options):
    """Fields and notes of a table for SGLang, with other staircases if given."""
    if staircases:
        table = replace(table, staircases=tuple(staircases))
    made = sglang_sps(ServedStep.of(table), drafts, **options)
    return made.fields, " ".join(made.notes)


def test_a_file_says_where_it_came_from_and_what_it_lost(saved_table, tmp_path):
    out = tmp_path / "new" / "costs.json"
    table = replace(CostTable.load(saved_table), drafting=DRAFTING)
    notes = write_format(table, "sglang-sps", out, 3, 256).notes
    text = out.read_text(encoding="utf-8")
    origin = json.loads(text)["evict_profile"]
    signed = json.loads(saved_table.read_text(encoding="utf-8"))
    assert origin["samples_sha256"] == signed["provenance"]["samples_sha256"]
    assert origin["key"] == signed["key"]
    assert origin["context"] == 256
    assert tuple(origin["note"]) == notes
    assert notes[0].startswith("Costs of scripted 1, not of")
    assert "at context 256 alone" in notes[1]
    # A file with this text SGLang takes for another format.
    assert '"bias_seconds"' not in text


def test_without_a_time_of_drafting_nothing_is_written(table, tmp_path):
    bare = replace(table, drafting=None)
    with pytest.raises(DataError, match="no time of drafting"):
        write_format(bare, "sglang-sps", tmp_path / "x", 3)
    assert not list(tmp_path.iterdir())


def test_contexts_and_steps_that_cannot_be_exported_are_refused(table):
    """Drafting that is inside a step would be counted twice."""
    chosen = staircases_at(table, None)
    assert [(s.batch, s.context) for s in chosen] == [(1, 64), (2, 64)]
    with pytest.raises(DataError, match="context 64, 256: name one"):
        staircases_at(table, 100)
    whole = replace(staircase(1, 1.0), includes=("verify", "draft"))
    with pytest.raises(DataError, match="hold more than verification"):
        staircases_at(replace(table, staircases=(whole,)), None)


def test_the_smallest_batch_that_makes_a_count_costs_it():
    """Batch 1 speaks to its end, batch 4 from there; the difference is stated."""
    curve = TokenCurve.of([staircase(1, *[10.0] * 5), staircase(4, *[20.0] * 4)])
    assert curve.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert curve.step_cost_us.tolist() == [10.0] * 5 + [20.0] * 2
    assert curve.apart == 0.5
    assert TokenCurve.of([staircase(4, 20.0, 30.0)]).tokens.tolist() == [4, 5]
    assert TokenCurve.of(APART).gaps == ((3, 7),)


@pytest.mark.parametrize(
    ("staircases", "reason"),
    [
        ([staircase(3, 10.0)], "flat from 3 to 3 tokens"),
        ([staircase(1, *[10.0] * 8)], "flat from 1 to 8 tokens"),
        ([staircase(1, 30.0, 20.0, 10.0)], "flat"),
        ([staircase(1, 10.0, 10.0), staircase(4, 20.0, 20.0)], "inert"),
    ],
)
def test_flat_and_inert_curves_are_refused(table, staircases, reason):
    with pytest.raises(DataError, match=reason):
        exported(table, staircases)


def test_a_domain_smaller_than_what_is_asked_is_refused(table):
    """The known run verifies up to 32 tokens."""
    exported(table, max_tokens=32)
    with pytest.raises(DataError, match="ends at 32 tokens"):
        exported(table, max_tokens=33)


@given(
    staircases=any_staircases(),
    drafts=st.integers(1, 5),
    captured=st.integers(0, 22),
)
def test_every_measured_count_keeps_its_cost(table, staircases, drafts, captured):
    try:
        sglang, _ = exported(table, staircases, drafts)
    except DataError as error:
        assume("flat" not in str(error) and "inert" not in str(error))
        raise
    curve = TokenCurve.of(staircases)
    vllm_ms = curve.verify_ms()
    rising_us = np.maximum.accumulate(curve.step_cost_us)
    for tokens, cost_us, risen_us in zip(
        curve.tokens, curve.step_cost_us, rising_us, strict=True
    ):
        step_us = cost_us + 40.0 + 100.0 * drafts
        assert sglang_reads_us(sglang, tokens) == pytest.approx(step_us)
        assert vllm_reads_us(vllm_ms, tokens, captured) == pytest.approx(risen_us)
    samples = sglang["sample_batch_tokens"]
    assert samples == sorted(set(samples))
    assert len(samples) == len(sglang["sample_steps_per_sec"]) >= 2
    assert samples[-1] == sglang["max_batch_tokens"]


def test_a_flat_tier_is_one_sample_or_both_its_ends(table):
    """At widths 4 and 8 there are two costs; SGLang's end is kept as a third."""
    samples, _ = exported(table, CAPTURE_SIZES)
    assert samples["sample_batch_tokens"] == [1, 5, 8]
    verify_ms = TokenCurve.of(CAPTURE_SIZES).verify_ms()
    assert verify_ms == [(1, 1.0), (4, 1.0), (5, 1.6), (8, 1.6)]


@pytest.mark.parametrize(
    ("staircases", "note"),
    [
        ((), "The batch is lost"),
        ((), "Every step drafts 2 levels (a test)"),
        (APART, "No batch has a cost at 3 to 7 tokens"),
    ],
)
def test_the_note_names_what_is_lost(table, staircases, note):
    assert note in exported(table, staircases)[1]
