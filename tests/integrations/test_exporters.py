"""Exported files say what the staircases say, as SGLang and vLLM look prices up."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError, TableError
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted
from evict_profile.integrations.exporters import (
    FORMATS,
    SCHEDULES,
    Export,
    ExportOptions,
    write_format,
)
from evict_profile.integrations.exporters.curves import measured_tokens, token_curve
from evict_profile.integrations.exporters.export import staircases_at
from evict_profile.integrations.exporters.sglang import fit_additive
from evict_profile.records import replace
from evict_profile.stats import summarise_errors
from evict_profile.table import CostTable, Staircase

CONTEXT = 64
RISES_US = st.lists(st.floats(0.0, 500.0), min_size=11, max_size=11)


@pytest.fixture(scope="session")
def table(fitted: Fitted) -> CostTable:
    """The table of the known run: batches 1 and 2, contexts 64 and 256."""
    return make_table(fitted, samples_sha256="")


def staircase(batch: int, *costs_us: float) -> Staircase:
    """The staircase whose costs from `batch` tokens on are these."""
    steps = (costs_us[0],) * batch + costs_us
    return Staircase(batch, CONTEXT, steps, steps, steps)


APART = staircase(1, 10.0, 11.0), staircase(8, 30.0, 31.0)
LADDER = staircase(1, *[1000.0] * 4, *[1600.0] * 4)


@st.composite
def any_staircases(draw: st.DrawFn) -> list[Staircase]:
    """One to three batches; costs may stay flat or fall, batches may leave gaps."""
    batches = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
    costs = st.lists(st.integers(10, 40).map(float), min_size=2, max_size=12)
    return [staircase(batch, *draw(costs)) for batch in sorted(batches)]


def exports(table: CostTable, name: str, *given: Any, **options: Any) -> Export:
    """As `exported`; costs that steer nothing are not what a test is about."""
    try:
        return exported(table, name, *given, **options)
    except TableError as error:
        assume("flat" not in str(error) and "inert" not in str(error))
        raise


def exported(
    table: CostTable,
    name: str,
    staircases: Sequence[Staircase] = (),
    context: int | None = None,
    draft_ms: float | None = None,
) -> Export:
    """A table in a format, with other staircases if some are given."""
    if staircases:
        table = replace(table, staircases=tuple(staircases))
    return FORMATS[name](table, ExportOptions(context, draft_ms))


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in SCHEDULES.values()])
def test_a_file_says_where_it_came_from(
    saved_table: Path, tmp_path: Path, name: str
) -> None:
    """Key, samples, context and the printed note, in a folder made for it."""
    out = tmp_path / "new" / "prices.json"
    table = CostTable.load(saved_table)
    notes = write_format(table, name, out, ExportOptions(256, draft_ms=1.0)).notes
    text = out.read_text(encoding="utf-8")
    origin = json.loads(text)["evict_profile"]
    signed = json.loads(saved_table.read_text(encoding="utf-8"))
    assert origin["samples_sha256"] == signed["provenance"]["samples_sha256"]
    assert origin["key"] == signed["key"]
    assert origin["context"] == 256
    assert tuple(origin["note"]) == notes
    # By this text SGLang tells its formats apart.
    assert ('"bias_seconds"' in text) == (name == "sglang-sps-additive")


def test_an_unknown_format_is_refused(table: CostTable, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of sglang-sps, "):
        write_format(table, "csv", tmp_path / "x", ExportOptions())


@pytest.mark.parametrize("draft_ms", [0.0, -1.0, float("nan"), 6e4 + 1.0, 1e308])
def test_an_impossible_draft_time_is_refused(draft_ms: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 60000"):
        ExportOptions(draft_ms=draft_ms)


class TestStaircases:
    """Those at one context."""

    def test_the_default_context_is_the_smallest(self, table: CostTable) -> None:
        chosen = staircases_at(table, None)
        assert [(s.batch, s.context) for s in chosen] == [(1, 64), (2, 64)]

    def test_a_context_that_was_not_measured_is_refused(self, table: CostTable) -> None:
        with pytest.raises(TableError, match="context 64, 256: name one"):
            staircases_at(table, 100)

    def test_steps_with_more_than_verification_are_refused(
        self, table: CostTable
    ) -> None:
        """Drafting that is inside a step would be counted twice."""
        whole = replace(staircase(1, 1.0), includes=("verify", "draft"))
        with pytest.raises(TableError, match="hold more than verification"):
            staircases_at(replace(table, staircases=(whole,)), None)


class TestTokenCurve:
    """One curve by tokens out of the staircases of several batches."""

    def test_the_smallest_batch_that_makes_a_count_prices_it(self) -> None:
        """Batch 1 speaks to its end, batch 4 from there; the difference is stated."""
        curve = token_curve([staircase(1, *[10.0] * 5), staircase(4, *[20.0] * 4)])
        assert curve.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert curve.step_cost_us.tolist() == [10.0] * 5 + [20.0] * 2
        assert curve.apart == 0.5

    def test_entries_below_the_batch_are_not_prices(self) -> None:
        assert token_curve([staircase(4, 20.0, 30.0)]).tokens.tolist() == [4, 5]

    def test_counts_that_no_batch_makes_are_gaps(self) -> None:
        assert token_curve(APART).gaps == ((3, 7),)


class TestSteering:
    """Curves that would mislead a planner are refused."""

    @pytest.mark.parametrize("name", ["sglang-sps", "vllm-curves"])
    @pytest.mark.parametrize(
        ("staircases", "reason"),
        [
            ([staircase(1, *[10.0] * 8)], "flat from 1 to 8 tokens"),
            ([staircase(1, 30.0, 20.0, 10.0)], "flat"),
            ([staircase(1, 10.0, 10.0), staircase(4, 20.0, 20.0)], "inert"),
        ],
    )
    def test_flat_and_inert_curves_are_refused(
        self,
        table: CostTable,
        name: str,
        staircases: Sequence[Staircase],
        reason: str,
    ) -> None:
        """By them a draft costs nothing wherever a planner can choose."""
        with pytest.raises(TableError, match=reason):
            exported(table, name, staircases, draft_ms=1.0)

    @pytest.mark.parametrize("name", ["sglang-sps", "sglang-sps-additive"])
    def test_a_domain_smaller_than_what_is_asked_is_refused(
        self, table: CostTable, name: str
    ) -> None:
        """The known run verifies up to 32 tokens."""
        FORMATS[name](table, ExportOptions(most_tokens=32))
        with pytest.raises(TableError, match="ends at 32 tokens"):
            FORMATS[name](table, ExportOptions(most_tokens=33))


def floor_lookup(fields: Any, tokens: int) -> float:
    """What SGLang reads at a token count: the last sample at or under it."""
    index = bisect_right(fields["sample_batch_tokens"], tokens) - 1
    return float(fields["sample_steps_per_sec"][max(0, index)])


class TestSglangSps:
    """Steps per second by tokens in all."""

    @given(staircases=any_staircases(), draft_ms=st.sampled_from([None, 0.004]))
    def test_every_measured_count_keeps_its_price(
        self, table: CostTable, staircases: list[Staircase], draft_ms: float | None
    ) -> None:
        """Dropping samples on flat tiers changes no look-up inside the domain, and what
        SGLang requires of samples is kept."""
        fields = exports(table, "sglang-sps", staircases, draft_ms=draft_ms).fields
        curve = token_curve(staircases)
        for tokens, cost_us in zip(curve.tokens, curve.step_cost_us, strict=True):
            step_us = cost_us + 1e3 * (draft_ms or 0.0)
            assert floor_lookup(fields, tokens) == 1e6 / step_us
        samples = fields["sample_batch_tokens"]
        assert samples == sorted(set(samples))
        assert len(samples) == len(fields["sample_steps_per_sec"]) >= 2
        assert samples[-1] == fields["max_batch_tokens"]

    def test_a_flat_tier_is_one_sample(self, table: CostTable) -> None:
        """On a ladder of 4, 8 there are two prices; the end is kept as a third."""
        fields = exported(table, "sglang-sps", [LADDER]).fields
        assert fields["sample_batch_tokens"] == [1, 5, 8]

    def test_one_token_count_is_refused(self, table: CostTable) -> None:
        """SGLang would take the table for one that was never filled in."""
        with pytest.raises(TableError, match="ignores a table of one sample"):
            exported(table, "sglang-sps", [staircase(3, 10.0)])

    def test_the_note_names_what_is_lost(self, table: CostTable) -> None:
        note = " ".join(exported(table, "sglang-sps").notes)
        for part in (
            "not of SGLang",
            "at context 64 alone",
            "The batch is lost",
            "verification alone",
            "up to 32 tokens",
        ):
            assert part in note
        gap = " ".join(exported(table, "sglang-sps", APART).notes)
        assert "No batch has a price at 3 to 7 tokens" in gap


def additive_lookup_us(fields: Any, requests: int, tokens: int) -> float:
    """What SGLang reads: both parts interpolated linearly and clamped."""
    alpha = np.interp(requests, fields["bs_probes"], fields["alpha_seconds"])
    theta = np.interp(tokens, fields["m_probes"], fields["theta_seconds"])
    return float(1e6 * (fields["bias_seconds"] + alpha + theta))


class TestSglangSpsAdditive:
    """The nearest sum, and how far it is off."""

    @given(bias_us=st.floats(10.0, 1e6), alpha_us=st.floats(0.0, 1e4), rises=RISES_US)
    def test_a_sum_is_found_again(
        self, bias_us: float, alpha_us: float, rises: list[float]
    ) -> None:
        """Costs that are a sum come back to within a nanosecond of each part."""
        theta_us = list(accumulate(rises, initial=0.0))
        one = staircase(1, *[bias_us + theta for theta in theta_us[:8]])
        four = staircase(4, *[bias_us + alpha_us + theta for theta in theta_us[3:]])
        fields, _ = fit_additive([one, four])
        for stairs in (one, four):
            for tokens in measured_tokens(stairs):
                price_us = stairs.step_cost_us[tokens]
                read_us = additive_lookup_us(fields, stairs.batch, tokens)
                assert read_us == pytest.approx(price_us, rel=1e-6, abs=0.002)

    @given(staircases=any_staircases())
    def test_the_stated_error_is_that_of_the_look_up(
        self, staircases: list[Staircase]
    ) -> None:
        """Whatever the costs: a refusal, or a positive bias and the error one sees."""
        try:
            fields, error = fit_additive(staircases)
        except TableError:
            return
        assert fields["bias_seconds"] > 0.0
        assert min(*fields["alpha_seconds"], *fields["theta_seconds"]) >= 0.0
        points = [(s, tokens) for s in staircases for tokens in measured_tokens(s)]
        seen = summarise_errors(
            np.array([additive_lookup_us(fields, s.batch, n) for s, n in points]),
            np.array([s.step_cost_us[tokens] for s, tokens in points]),
        )
        assert seen.max == pytest.approx(error.max, abs=1e-3)
        assert seen.median == pytest.approx(error.median, abs=1e-3)

    @pytest.mark.parametrize(
        ("staircases", "reason"),
        [
            (APART[:1], "batch 1 is the only one at context 64"),
            (APART, "batch 8 shares no token count"),
            (
                [
                    staircase(1, 9600.0, 6200.0, 69.0, 1074.0),
                    staircase(2, 98.0, 131.0, 1390.0, 46.0),
                ],
                "positive bias",
            ),
        ],
    )
    def test_costs_that_determine_no_sum_are_refused(
        self, staircases: Sequence[Staircase], reason: str
    ) -> None:
        with pytest.raises(TableError, match=reason):
            fit_additive(staircases)

    def test_the_draft_is_in_the_bias(self, table: CostTable) -> None:
        name = "sglang-sps-additive"
        bare = exported(table, name).fields
        whole = exported(table, name, draft_ms=2.5).fields
        assert whole["bias_seconds"] - bare["bias_seconds"] == pytest.approx(0.0025)
        assert whole["theta_seconds"] == bare["theta_seconds"]

    def test_probes_are_whole_numbers(self, table: CostTable) -> None:
        """SGLang's decoder is strict: it refuses 2.0 where it wants 2."""
        fields = exported(table, "sglang-sps-additive").fields
        probes = (*fields["bs_probes"], *fields["m_probes"])
        assert {type(probe) for probe in probes} == {int}

    def test_the_note_states_the_error(self, table: CostTable) -> None:
        _, error = fit_additive(staircases_at(table, 256))
        notes = exported(table, "sglang-sps-additive", context=256).notes
        assert f"off by {error}" in " ".join(notes)


def vllm_lookup_ms(curve: list[tuple[int, float]], tokens: int, captured: int) -> float:
    """What vLLM reads up to the last point: costs never fall; up to the largest
    captured size the point at or above, beyond it a line between points beyond it."""
    sizes, costs = np.array(curve).T
    costs = np.maximum.accumulate(costs)
    beyond = sizes > captured
    if tokens > captured and beyond.any():
        return float(np.interp(tokens, sizes[beyond], costs[beyond]))
    return float(costs[sizes >= tokens][0])


class TestVllmCurves:
    """Draft and verify curves, within captured sizes and beyond."""

    @given(staircases=any_staircases(), captured=st.integers(0, 22))
    def test_every_measured_count_keeps_its_price(
        self, table: CostTable, staircases: list[Staircase], captured: int
    ) -> None:
        export = exports(table, "vllm-curves", staircases, draft_ms=1.0)
        curve = token_curve(staircases)
        rising_ms = np.maximum.accumulate(curve.step_cost_us) / 1e3
        for tokens, cost_ms in zip(curve.tokens, rising_ms, strict=True):
            read_ms = vllm_lookup_ms(export.fields["verify_curve"], tokens, captured)
            assert read_ms == pytest.approx(cost_ms)

    def test_a_flat_tier_keeps_both_ends_beside_the_draft_curve(
        self, table: CostTable
    ) -> None:
        fields = exported(table, "vllm-curves", [LADDER], draft_ms=1.5).fields
        assert fields["verify_curve"] == [(1, 1.0), (4, 1.0), (5, 1.6), (8, 1.6)]
        assert fields["draft_curve"] == [(1, 1.5)]

    def test_a_draft_time_is_required(self, table: CostTable) -> None:
        """A table of verification alone has none, and zeros would look measured."""
        with pytest.raises(ConfigError, match="give the time of one drafting step"):
            exported(table, "vllm-curves")

    @pytest.mark.parametrize(
        ("staircases", "note"),
        [
            ([staircase(1, 1000.0, 2000.0, 2000.0)], "at 0 ms a token"),
            ([staircase(1, 1000.0, 2000.0, 3500.0)], "at 1.5 ms a token"),
            ([staircase(1, 2000.0, 1000.0, 3000.0)], "Costs fall somewhere"),
            (APART, "No batch has a price at 3 to 7 tokens"),
        ],
    )
    def test_the_note_names_what_vllm_makes_of_it(
        self, table: CostTable, staircases: Sequence[Staircase], note: str
    ) -> None:
        made = exported(table, "vllm-curves", staircases, draft_ms=1.0)
        assert note in " ".join(made.notes)
