"""The table of a served step: verification with what a server adds to it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evict_profile.calibrate.served import Deployment, ServedRun, fit_overheads
from evict_profile.table import CostTable
from evict_profile.table.overheads import RECORD, Amounts, scaled

SHIPPED = Path("cost_tables/composed/nvidia-h200/qwen3-30b-a3b")
TABLE = CostTable.load(SHIPPED / "sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json")


def plain(batch):
    return ServedRun(batch, 1, 0, 1, 1.0, 100.0 * batch, 1024.0)


def chain(batch, drafts, topk=1):
    return ServedRun(batch, drafts + 1, drafts, topk, 2.0, 150.0 * batch, 1024.0)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("topk", [1, 2, 4])
def test_costs_and_the_fitted_model_are_one(batch, topk):
    served = TABLE.as_served(topk)
    runs = (plain(batch), chain(batch, 3, topk), chain(batch, 7, topk))
    expected = Deployment(TABLE, runs).step_us(RECORD.amounts)
    cost = served.costs(batch, 1024).step_cost_us
    clock = served.drafting.at(batch)
    for run, step_us in zip(runs, expected, strict=True):
        found = cost[batch * run.width] + clock.overhead_us(run.levels)
        assert found == pytest.approx(step_us, rel=1e-4)


def test_a_measured_table_has_no_overheads_of_others(saved_table):
    table = CostTable.load(saved_table)
    assert table.as_served() is table


def test_a_known_fixed_time_takes_the_place_of_the_layers():
    told = replace(TABLE.provenance, fixed_us=1e6)
    served = replace(TABLE, provenance=told).as_served()
    beyond = served.fit.non_moe[-2]
    assert (beyond.feature, beyond.us_per_unit) == ("one", 0.0)


def test_overheads_take_the_place_of_a_fixed_time_that_nobody_stated():
    assert any("fixed time" in each for each in TABLE.caveats)
    assert not any("fixed time" in each for each in TABLE.as_served().caveats)


def test_measured_drafting_and_activation_stay(workload_table):
    table = replace(CostTable.load(workload_table), overheads=RECORD)
    served = table.as_served()
    assert served.drafting == table.drafting
    assert served.activation == table.activation


def test_overheads_survive_saving(tmp_path):
    own = replace(RECORD, source="mine", runs=2)
    path = tmp_path / "1.0.1.json"
    replace(TABLE, overheads=own).save(path)
    assert CostTable.load(path).overheads == own


@given(share=st.floats(0.3, 1.0))
def test_a_share_scales_what_exceeds_one_token(share):
    top_k = TABLE.model.moe.top_k
    before = np.array(TABLE.activation.union)
    after = np.array(scaled(TABLE.activation, top_k, share).union)
    above = before > top_k
    assert np.allclose(after[above] - top_k, share * (before[above] - top_k))
    assert np.array_equal(after[~above], before[~above])


def test_a_ratio_of_one_has_no_error_of_growth():
    assert RECORD.ratio_sd(1.0) == 0.0
    assert RECORD.ratio_sd(2.0) == pytest.approx(RECORD.growth / 2)


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
