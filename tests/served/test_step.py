"""One table gives one answer to how long a served step takes, whoever asks."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.integrations.exporters.additive import sglang_sps
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.integrations.vllm.checks import curves_of, served_by
from evict_profile.records import replace
from evict_profile.report.tables import SHOWN_DRAFTS, break_even_rows
from evict_profile.served.step import ServedStep
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from tests.exported import sglang_reads_us, shipped_table
from tests.factories import DRAFTING

FREE = DraftClock(1, (0.0,), 0.0, 0.0)
TABLES = (
    "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1",
    "nvidia-h200/kimi-k2/sglang-0.5.14-fp8-block-tp8-ep1",
    "nvidia-h100-80gb-hbm3/qwen3-30b-a3b/vllm-0.24.0-bfloat16-tp1-ep1",
    "nvidia-b300-sxm6-ac/gpt-oss-120b/trtllm-1.3.0rc20-w4a8-mxfp4-mxfp8-tp1-ep1",
)


@pytest.fixture(params=TABLES)
def table(request):
    return shipped_table(request.param)


@pytest.fixture
def bare(saved_table):
    return CostTable.load(saved_table)


@pytest.mark.parametrize("drafts", [1, 3])
def test_all_state_one_ratio(table, drafts):
    """The page, SGLang's file, vLLM's curves and SGLang's plug-in, of one request.
    Files and plug-ins hold times, and the plain step divides them."""
    context, width = min(table.axes.context), drafts + 1
    served = ServedStep.of(table, DRAFTING)
    ratio = served.ratio(1, width, drafts, context).value
    plain_us = served.us(1, 1, 0, context).value
    shown = break_even_rows(replace(table, drafting=DRAFTING)).cells[0][
        1 + SHOWN_DRAFTS.index(drafts)
    ]
    assert shown == f"{ratio:.2f}"
    sps = sglang_sps(served, drafts).fields
    assert sglang_reads_us(sps, 1, width) / plain_us == pytest.approx(ratio, 1e-3)
    draft, verify = (dict(curve) for curve in curves_of(served, drafts, 1))
    assert (draft[1] + verify[width]) * 1e3 / plain_us == pytest.approx(ratio, 1e-5)
    chooser = Chooser(replace(table, drafting=DRAFTING.extending()), (1, width))
    chain = np.arange(drafts)[None]
    made = chooser.choose(np.ones((1, drafts)), chain, chain[:, :0], 1, context)
    assert made.width == width
    assert made.plan.step_cost_us / plain_us == pytest.approx(ratio)


def test_a_plain_step_of_sglang_takes_the_rest_of_one_that_drafts(bare):
    served = ServedStep.of(replace(bare, drafting=DRAFTING))
    assert [served.beside_us(1, levels) for levels in (0, 1)] == [10.0, 140.0]
    extending = replace(served, drafting=DRAFTING.extending())
    assert [extending.beside_us(1, levels) for levels in (0, 1)] == [40.0, 140.0]


def test_vllm_s_own_clock_is_before_an_assumption(table):
    """A clock of the table is before it, and a given one before all."""
    assert ServedStep.of(table, DRAFTING).beside_us(1, 1) == 140.0
    assert ServedStep.of(table, DRAFTING).drafting == DRAFTING
    assert ServedStep.of(table).assumes_drafting
    manager = SimpleNamespace(cost_tables=(np.array([0.0, 0.5, 0.7]), None))
    assert served_by(table, manager).beside_us(2, 3) == 700.0
    known = replace(table, drafting=DRAFTING)
    assert served_by(known, manager).drafting == DRAFTING


def test_assumed_drafting_is_less_than_a_plain_step_and_wholly_uncertain(table):
    """A layer and the head of a model of many layers, a level."""
    served, context = ServedStep.of(table), min(table.axes.context)
    plain_us = served.us(1, 1, 0, context).value
    level_us = served.beside_us(1, 1)
    layers = table.model.num_layers
    assert plain_us / layers / 4 < level_us < 8 * plain_us / layers
    assert served.beside_us(1, 3) == pytest.approx(3 * level_us)
    assert served.table.drafting is None
    none = ServedStep.of(table, replace(DRAFTING, batches=(FREE,)))
    drafted, free = (each.ratio(1, 4, 3, context) for each in (served, none))
    apart = math.log(drafted.high / drafted.value) ** 2
    apart -= math.log(free.high / free.value) ** 2
    assert apart == pytest.approx(math.log(drafted.value / free.value) ** 2)


def test_a_ratio_has_the_errors_of_both_forwards(bare):
    """Measured drafting has none, and a plain step is exactly one."""
    served, cost = ServedStep.of(bare, DRAFTING), bare.costs(1, 64)
    half = [
        (cost.high_us[t] - cost.low_us[t]) / 2.0 / cost.step_cost_us[t] for t in (1, 4)
    ]
    ratio = served.ratio(1, 4, 3, 64)
    assert ratio.high / ratio.value == pytest.approx(math.exp(math.hypot(*half)))
    assert ratio.value / ratio.low == pytest.approx(math.exp(math.hypot(*half)))
    assert served.ratio(1, 1, 0, 64) == Estimate(1.0, 1.0, 1.0)


def test_a_step_has_the_interval_of_its_forward(bare):
    """What is not covered is refused."""
    served = ServedStep.of(bare, DRAFTING)
    cost, us = bare.costs(1, 64), served.us(1, 4, 3, 64)
    known = (cost.low_us, cost.step_cost_us, cost.high_us)
    assert (us.low, us.value, us.high) == tuple(490.0 + each[4] for each in known)
    assert served.covers(1, 16, 64) and not served.covers(1, 17, 64)
    with pytest.raises(DataError, match="no cost of 17 tokens a request at batch 1"):
        served.us(1, 17, 0, 64)
    with pytest.raises(DataError, match="context 4096 is outside"):
        served.us(1, 1, 0, 4096)
