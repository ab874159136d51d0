"""The table of a served step: verification with what a server adds to it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.served.fit import Deployment, fit_overheads
from evict_profile.calibrate.served import ServedRun
from evict_profile.table import DATASHEET, CostTable, ServedStep
from evict_profile.table.overheads import (
    RECORD,
    RECORD_ELSEWHERE,
    UNSEEN_GROWTH,
    Amounts,
)
from tests.exported import shipped_table

SHIPPED = Path("cost_tables/composed/nvidia-h200/qwen3-30b-a3b")
TABLE = CostTable.load(SHIPPED / "sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json")
OTHER_ENGINE = "nvidia-h100-80gb-hbm3/qwen3-30b-a3b/vllm-0.24.0-bfloat16-tp1-ep1"


def plain(batch):
    return ServedRun(batch, 1, 0, 1, 1.0, 100.0 * batch, 1024.0)


def chain(batch, drafts, topk=1):
    return ServedRun(batch, drafts + 1, drafts, topk, 2.0, 150.0 * batch, 1024.0)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("topk", [1, 2, 4])
def test_costs_and_the_fitted_model_are_one(batch, topk):
    served = ServedStep.of(TABLE, topk=topk)
    runs = (plain(batch), chain(batch, 3, topk), chain(batch, 7, topk))
    expected = Deployment(TABLE, runs).step_us(RECORD.amounts)
    for run, step_us in zip(runs, expected, strict=True):
        found = served.us(batch, run.width, run.levels, 1024)
        assert found.value == pytest.approx(step_us, rel=1e-4)


def test_a_measured_table_has_no_overheads_of_others(saved_table):
    table = CostTable.load(saved_table)
    assert ServedStep.of(table).table is table
    assert ServedStep.of(table).overheads is None


def test_measured_drafting_and_activation_stay(workload_table, tmp_path):
    """Overheads survive saving."""
    own = replace(RECORD, source="mine", runs=2)
    path = tmp_path / "served.json"
    replace(CostTable.load(workload_table), overheads=own).save(path)
    table = CostTable.load(path)
    served = ServedStep.of(table)
    assert table.overheads == own
    assert served.drafting == table.drafting
    assert served.table.activation == table.activation


@given(share=st.floats(0.3, 1.0))
def test_a_share_scales_what_exceeds_one_token(share):
    top_k = TABLE.model.moe.top_k
    before = np.array(TABLE.activation.union)
    amounts = replace(RECORD.amounts, union_share=share)
    after = np.array(amounts.scaled(TABLE.activation, top_k).union)
    above = before > top_k
    assert np.allclose(after[above] - top_k, share * (before[above] - top_k))
    assert np.array_equal(after[~above], before[~above])


@given(ratio=st.floats(1.0, 8.0), batch=st.integers(1, 256))
def test_the_interval_of_a_ratio_has_the_error_of_what_is_beyond_one(ratio, batch):
    """1.96 standard deviations of the log to either side; no step takes less, and
    where nothing was compared one may take more."""
    low, high = RECORD.ratio_interval(ratio, batch, 4, 3, 5_000.0)
    times = np.exp(1.96 * RECORD.growth_at(batch))
    assert low - 1.0 == pytest.approx((ratio - 1.0) / times)
    if 4 <= batch <= 16:
        assert high - 1.0 == pytest.approx(times * (ratio - 1.0))
    else:
        assert high - 1.0 > times * (ratio - 1.0)


def test_a_step_that_hardly_grows_is_not_sure_where_nothing_was_compared():
    """Drafting and host times still differ as between deployments."""
    spread = RECORD.spread
    beside_us = np.hypot(spread.round_us, 3 * spread.level_us)
    sd_us = np.hypot(beside_us, 64 * 3 * spread.token_us)
    high = RECORD.ratio_interval(1.0, 64, 4, 3, 10_000.0)[1]
    assert high == pytest.approx(1.0 + 1.96 * sd_us / 10_000.0)


def test_an_error_is_known_near_the_batches_that_were_compared():
    """A ratio of one or less has no error of growth."""
    known = RECORD.growth
    expected = [UNSEEN_GROWTH, known, known, UNSEEN_GROWTH]
    assert [*map(RECORD.growth_at, (1, 4, 16, 32))] == expected
    assert RECORD.ratio_interval(1.0, 8, 4, 3, 5_000.0) == (1.0, 1.0)
    assert RECORD.ratio_interval(0.9, 8, 4, 3, 5_000.0) == pytest.approx((0.9, 0.9))


def test_the_record_s_error_holds_for_its_engine_and_gpu_alone():
    """Elsewhere, and at other batches, the error is larger, and a caveat names what
    measures it."""
    here, other = ServedStep.of(TABLE), shipped_table(OTHER_ENGINE)
    assert here.overheads == RECORD
    assert "outside 4..16" in here.caveats[-1]
    assert ServedStep.of(other).overheads == RECORD_ELSEWHERE
    caveat = ServedStep.of(other).caveats[-1]
    assert "SGLang on H200" in caveat and "evict-profile probe" in caveat
    assert "outside" not in caveat
    own = replace(other, overheads=replace(RECORD, source="mine"))
    assert not any("intervals are wide" in each for each in ServedStep.of(own).caveats)


def test_a_data_sheet_is_an_origin_of_its_own(saved_table):
    """It has the overheads of a served step, and the largest error of all."""
    made = CostTable.load(saved_table)
    sheet = replace(made, provenance=replace(made.provenance, clock=DATASHEET))
    assert (made.origin, sheet.origin) == ("measured", DATASHEET)
    assert not ServedStep.of(sheet).assumes_drafting
    assert ServedStep.of(sheet).overheads.growth_at(8) > UNSEEN_GROWTH
    assert "data sheet, not measured" in sheet.own_caveats[0]


amounts = st.builds(
    Amounts,
    union_share=st.floats(0.6, 0.9),
    layer_us=st.floats(20.0, 70.0),
    token_us=st.floats(0.0, 80.0),
    round_us=st.floats(200.0, 1500.0),
    level_us=st.floats(100.0, 500.0),
    branch_us=st.floats(0.0, 300.0),
)


@settings(max_examples=20)
@given(planted=amounts)
def test_planted_runs_predict_a_setting_that_was_not_run(planted):
    runs = [plain(8), chain(8, 2), chain(8, 3), chain(8, 7), plain(32), chain(32, 3)]
    deployment = Deployment(TABLE, tuple(runs))
    timed = [
        ServedRun(*_with_rate(run, us))
        for run, us in zip(runs, deployment.step_us(planted), strict=True)
    ]
    found = fit_overheads([Deployment(TABLE, tuple(timed))], RECORD, "planted")
    unseen = Deployment(TABLE, (plain(8), chain(8, 5)))
    ratios = [
        unseen.step_us(a)[1] / unseen.step_us(a)[0] for a in (planted, found.amounts)
    ]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.05)


def _with_rate(run, step_us):
    rate = 1e6 * run.batch * run.committed / step_us
    return run.batch, run.width, run.levels, run.topk, run.committed, rate, run.context
