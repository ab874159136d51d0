"""Exported files say what the staircases say, as SGLang and vLLM look costs up."""

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.errors import DataError
from evict_profile.fit.export import make_table
from evict_profile.integrations.exporters import write_format
from evict_profile.integrations.exporters.additive import sglang_sps
from evict_profile.integrations.exporters.planners import (
    TokenCurve,
    curve_of,
    staircases_at,
)
from evict_profile.records import replace
from evict_profile.served.step import ServedStep
from evict_profile.table import CostTable, Staircase
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
    assert origin["table_sha256"] == table.sha256
    assert origin["key"] == signed["key"]
    assert origin["context"] == 256
    assert tuple(origin["note"]) == notes
    assert notes[0].startswith("Costs of scripted 1, not of")
    assert "at context 256 alone" in notes[1]
    # Without this text SGLang takes a file for another format.
    assert '"bias_seconds"' in text


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
    """Batch 1 to its end, batch 4 from there."""
    curve = TokenCurve.of([staircase(1, *[10.0] * 5), staircase(4, *[20.0] * 4)])
    assert curve.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert curve.step_cost_us.tolist() == [10.0] * 5 + [20.0] * 2
    assert TokenCurve.of([staircase(4, 20.0, 30.0)]).tokens.tolist() == [4, 5]


@pytest.mark.parametrize(
    "staircases",
    [
        [staircase(3, 10.0)],
        [staircase(1, *[10.0] * 8)],
        [staircase(1, 30.0, 20.0, 10.0)],
        [staircase(1, 10.0, 10.0), staircase(4, 20.0, 20.0)],
        [staircase(1, *[10.0] * 8), staircase(2, 10.0, 20.0)],
    ],
)
def test_curves_by_which_no_draft_costs_anything_are_refused(staircases):
    with pytest.raises(DataError, match="no draft ever costs anything"):
        curve_of(staircases)


def test_sums_by_which_no_draft_costs_anything_are_refused(table):
    flat = staircase(1, 10.0, 10.0), staircase(2, 20.0, 20.0)
    with pytest.raises(DataError, match="no draft ever costs anything"):
        exported(table, flat)


@given(staircases=any_staircases(), captured=st.integers(0, 22))
def test_vllm_reads_every_measured_count_at_its_cost(staircases, captured):
    curve = TokenCurve.of(staircases)
    rising_us = np.maximum.accumulate(curve.step_cost_us)
    for tokens, cost_us in zip(curve.tokens, rising_us, strict=True):
        read_us = vllm_reads_us(curve.verify_ms(), tokens, captured)
        assert read_us == pytest.approx(cost_us)


COSTS = st.integers(10, 40).map(float)


@given(more=COSTS, costs=st.lists(COSTS, min_size=3, max_size=20))
def test_steps_that_are_a_sum_are_read_as_they_are(table, more, costs):
    """Of 1 and 2 requests, whose parts of 1 and 2 tokens differ by any amount."""
    assume(max(costs) > costs[0] or max(costs[1:]) > costs[1])
    stairs = staircase(1, *costs), staircase(2, *(each + more for each in costs[1:]))
    fields, _ = exported(table, stairs)
    for batch in (1, 2):
        for tokens, us in enumerate(costs[batch - 1 :], batch):
            step_us = us + more * (batch - 1) + 240.0
            assert sglang_reads_us(fields, batch, tokens) == pytest.approx(step_us)


def test_the_note_states_how_far_the_sum_is_from_the_steps(table):
    stairs = staircase(1, 1e4, 2e4, 3e4), staircase(2, 2e4, 3.2e4)
    fields, note = exported(table, stairs)
    worst, middle = re.findall(r"within ([\d.]+)%", note)
    off = [
        abs(sglang_reads_us(fields, s.batch, t) / (s.step_cost_us[t] + 240.0) - 1.0)
        for s in stairs
        for t in range(s.batch, len(s.step_cost_us))
    ]
    assert float(worst) == pytest.approx(100.0 * max(off), abs=0.05)
    assert float(middle) == pytest.approx(100.0 * np.median(off), abs=0.05)
    assert 0.0 < float(middle) < float(worst)


def test_steps_that_no_sum_is_near_are_refused(table):
    """Tokens that cost one request more cost two requests less."""
    crossing = staircase(1, 1e4, 1e4, 2e4), staircase(2, 2e4, 1e4)
    with pytest.raises(DataError, match=r"up to \d+% off such a sum"):
        exported(table, crossing)


def test_padding_to_captured_widths_is_not_in_a_sum(table):
    axes = replace(table.axes, capture_sizes=(1, 16))
    padded = replace(table, axes=axes).read_anew()
    assert padded.step_cost_us(1, CONTEXT)[2] == padded.step_cost_us(1, CONTEXT)[16]
    assert exported(padded)[0] == exported(table.read_anew())[0]


def test_a_flat_tier_is_both_its_ends():
    """At widths 4 and 8 there are two costs."""
    verify_ms = TokenCurve.of(CAPTURE_SIZES).verify_ms()
    assert verify_ms == [(1, 1.0), (4, 1.0), (5, 1.6), (8, 1.6)]


@pytest.mark.parametrize(
    "note",
    ["Every step drafts 2 levels (a test)", "up to 2 requests and 32 tokens"],
)
def test_the_note_names_what_a_step_is_and_what_is_covered(table, note):
    assert note in exported(table)[1]
