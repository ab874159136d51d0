"""SGLang's step-per-second table says what the staircase says, at every token."""

import json
from bisect import bisect_right
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.errors import TableError
from evict_profile.integrations.by_tokens import token_curve
from evict_profile.integrations.formats import write_format
from evict_profile.integrations.sglang_sps import sps_table
from evict_profile.table import CostTable, Staircase
from tests.integrations.tables import any_staircases, staircase, with_staircases


@pytest.fixture
def sglang_sps() -> ModuleType:
    """SGLang's own module of table formats."""
    return pytest.importorskip(
        "sglang.srt.speculative.dspark_components.dspark_sps",
        reason="SGLang is not installed here",
        exc_type=ImportError,
    )


def floor_lookup(fields: Any, tokens: int) -> float:
    """What SGLang reads at a token count: the last sample at or under it."""
    index = bisect_right(fields["sample_batch_tokens"], tokens) - 1
    return float(fields["sample_steps_per_sec"][max(0, index)])


@settings(deadline=None)
@given(staircases=any_staircases(), draft_ms=st.sampled_from([None, 0.004]))
def test_every_measured_count_keeps_its_price(
    table: CostTable, staircases: list[Staircase], draft_ms: float | None
) -> None:
    """Dropping samples on flat tiers changes no look-up inside the domain."""
    export = sps_table(with_staircases(table, *staircases), None, draft_ms)
    curve = token_curve(staircases)
    for tokens, cost_us in zip(curve.tokens, curve.step_cost_us, strict=True):
        step_us = cost_us + 1e3 * (draft_ms or 0.0)
        assert floor_lookup(export.fields, tokens) == 1e6 / step_us


@settings(deadline=None)
@given(staircases=any_staircases())
def test_samples_meet_what_sglang_requires(
    table: CostTable, staircases: list[Staircase]
) -> None:
    """Strictly increasing, as long as the speeds, at least two, the last the end."""
    fields = sps_table(with_staircases(table, *staircases), None).fields
    samples = fields["sample_batch_tokens"]
    assert samples == sorted(set(samples))
    assert len(samples) == len(fields["sample_steps_per_sec"]) >= 2
    assert samples[-1] == fields["max_batch_tokens"]


def test_a_flat_tier_is_one_sample(table: CostTable) -> None:
    """On a ladder of 4, 8 there are two prices; the end is kept as a third sample."""
    ladder = staircase(1, [10.0] * 4 + [16.0] * 4)
    fields = sps_table(with_staircases(table, ladder), None).fields
    assert fields["sample_batch_tokens"] == [1, 5, 8]


def test_one_token_count_is_refused(table: CostTable) -> None:
    """SGLang would take the table for one that was never filled in."""
    with pytest.raises(TableError, match="ignores a table of one sample"):
        sps_table(with_staircases(table, staircase(3, [10.0])), None)


def test_the_note_says_what_is_lost(table: CostTable) -> None:
    """Engine, context, batch, draft and the end of the measured range."""
    said = " ".join(sps_table(table, None).notes)
    assert "not with SGLang" in said
    assert "at context 64 alone" in said
    assert "The batch is lost" in said
    assert "verification alone" in said
    assert "Measured up to 32 tokens" in said


def test_a_gap_is_named(table: CostTable) -> None:
    """Where no batch was measured, the floor look-up prices tokens too low."""
    holes = staircase(1, [10.0, 11.0]), staircase(8, [30.0, 31.0])
    said = " ".join(sps_table(with_staircases(table, *holes), None).notes)
    assert "No batch was measured at 3 to 7 tokens: SGLang takes them" in said


def test_sglang_takes_the_file_for_a_table_by_tokens(
    table: CostTable, tmp_path: Path
) -> None:
    """It tells its formats apart by the text "bias_seconds", anywhere in the file."""
    write_format(table, "sglang-sps", tmp_path / "sps.json")
    assert '"bias_seconds"' not in (tmp_path / "sps.json").read_text(encoding="utf-8")


def test_sglang_loads_the_file_and_reads_our_prices(
    table: CostTable, tmp_path: Path, sglang_sps: ModuleType
) -> None:
    """SGLang's own loader and look-up agree with ours at every token and beyond."""
    write_format(table, "sglang-sps", tmp_path / "sps.json")
    loaded = sglang_sps.load_sps_table_from_path(str(tmp_path / "sps.json"))
    assert isinstance(loaded, sglang_sps.SpsCostTable)
    assert not sglang_sps.is_uninitialized_sps_table(loaded)
    fields = json.loads((tmp_path / "sps.json").read_text(encoding="utf-8"))
    for tokens in range(50):
        assert loaded.lookup(tokens) == floor_lookup(fields, tokens)
