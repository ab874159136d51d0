"""The time of drafting is given, measured, computed by what drafts, or assumed."""

import json

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.advice.drafting import drafter_of, drafting_of_level
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import RECORD, UNSEEN_GROWTH, Drafter
from tests.exported import shipped_table
from tests.factories import DRAFTING

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"
DEEPSEEK = "nvidia-h200/deepseek-v3/trtllm-1.3.0rc20-fp8-block-tp8-ep1"
QWEN_600M = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN_600M))
    return path


def level_us(table, drafter, batch=1, levels=1):
    own = ServedStep.of(table, drafter=drafter)
    return own.beside_us(batch, levels) - RECORD.amounts.round_us


def test_a_given_level_keeps_the_steps_rest(saved_table):
    table = CostTable.load(saved_table)
    bare, clocked = (
        drafting_of_level(replace(table, drafting=own), 2.0, Drafter()).at(1)
        for own in (None, DRAFTING)
    )
    assert (bare.overhead_us(0), bare.overhead_us(3)) == (0.0, 6e3)
    assert (clocked.overhead_us(0), clocked.overhead_us(99)) == (10.0, 198e3 + 40.0)


def test_a_composed_table_has_the_drafting_of_the_record(composed_path):
    served = ServedStep.of(CostTable.load(composed_path))
    drafting = served.drafting
    assert drafting.at(1).overhead_us(2) == pytest.approx(
        RECORD.amounts.round_us + 2 * RECORD.amounts.level_us
    )
    assert drafting.workload == RECORD.source


def test_assumed_is_a_layer_and_the_head(saved_table):
    """The known run: a forward is all its layers and the rest."""
    table = CostTable.load(saved_table)
    drafting = ServedStep.of(table, context=64).drafting
    assert "ASSUMED" in drafting.workload
    layers = table.fit.measured_layers * table.fit.layer_scale
    rest = 200.0 + 40.0
    step_us = table.costs(1, 64).step_cost_us[1]
    one_us = drafting.at(1).overhead_us(1)
    assert one_us == pytest.approx((step_us - rest) / layers + rest, rel=0.02)


@pytest.mark.parametrize("level_ms", [-1.0, 1001.0, float("nan")])
def test_impossible_times_are_refused(saved_table, level_ms):
    with pytest.raises(ConfigError, match="--draft-level-ms"):
        drafting_of_level(CostTable.load(saved_table), level_ms, Drafter())


def test_the_records_own_level_as_given_leaves_the_answer(composed_path):
    """The rest of a drafting step, which the record adds, stays."""
    table, lengths = CostTable.load(composed_path), of_rate(0.8)
    given_ms = RECORD.amounts.level_us / 1e3
    own, given = (Advisor.of(table, lengths, level_ms=ms) for ms in (None, given_ms))
    assert given.at(1) == own.at(1)


def test_a_draft_model_reads_its_weights_in_every_forward(config):
    """The known run: Qwen3-0.6B has 28 layers and 596 million weights."""
    table = shipped_table(H200)
    drafter = drafter_of(f"draft_model:{config}", table, False)
    assert (drafter.layers, drafter.weights) == (28, 595_984_384)
    read_us = 2 * drafter.weights / table.provenance.bandwidth_gbps / 1e3
    amounts = RECORD.amounts
    one_us = amounts.level_us + 27 * amounts.layer_us + read_us
    assert level_us(table, drafter) == pytest.approx(one_us)
    assert level_us(table, drafter, levels=5) == pytest.approx(5 * one_us)


@pytest.mark.parametrize("kind", ["pard", "dflash"])
def test_one_forward_drafts_a_whole_block(config, kind):
    table = shipped_table(H200)
    one = drafter_of(f"draft_model:{config}", table, False)
    block = drafter_of(f"{kind}:{config}", table, False)
    for levels in (1, 5, 40):
        assert level_us(table, block, levels=levels) == level_us(table, one)
    assert level_us(table, block, levels=0) == -RECORD.amounts.round_us


def test_an_mtp_head_adds_a_layer_of_the_target_and_its_head():
    """A model with MTP layers drafts with them; more requests activate more experts."""
    table = shipped_table(DEEPSEEK)
    assert ServedStep.of(table).drafter == Drafter("mtp")
    one, many = (level_us(table, None, batch) for batch in (1, 64))
    assert RECORD.amounts.level_us < one < many
    context = min(table.axes.context)
    plain_us = table.costs(1, context).step_cost_us[1]
    layer_us = one - RECORD.amounts.level_us
    assert plain_us / 2 / table.model.num_layers < layer_us < plain_us / 10


def test_the_error_of_other_drafters_is_that_of_other_servers(config):
    table = shipped_table(H200)
    own, other = (
        ServedStep.of(table, drafter=drafter_of(asked, table, False))
        for asked in ("eagle3", f"pard:{config}")
    )
    assert own.overheads.growth_at(8) == RECORD.growth
    assert other.overheads.growth_at(8) == UNSEEN_GROWTH
    assert "with a forward of pard computed as 1.79 ms" in other.drafting.workload
    said = "a forward of this drafter is not in them"
    assert [said in each.caveats[-1] for each in (own, other)] == [False, True]


def test_a_given_time_of_a_block_is_of_all_its_levels(composed_path):
    table, lengths = CostTable.load(composed_path), of_rate(0.8)
    block = Advisor.of(table, lengths, level_ms=2.0, drafter="dflash").served
    assert block.beside_us(1, 5) == block.beside_us(1, 1)
    assert block.drafter.kind == "dflash"


def test_a_name_of_the_drafter_leaves_measured_times(saved_table):
    """A table with drafting of its own is told what its command is to say."""
    table = replace(CostTable.load(saved_table), drafting=DRAFTING)
    served = Advisor.of(table, of_rate(0.8), drafter="draft_model").served
    assert (served.drafting, served.drafter.kind) == (DRAFTING, "draft_model")


def test_a_head_with_a_checkpoint_is_read_from_its_text_config(config):
    """As Gemma 4's assistant, of a model that has no MTP layers."""
    config.write_text(json.dumps({"text_config": QWEN_600M}))
    drafter = drafter_of(f"mtp:{config}", shipped_table(H200), False)
    assert drafter == Drafter("mtp:FILE", 28, 595_984_384)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"num_experts": 8}, "has experts"), ({"vocab_size": None}, "'vocab_size'")],
)
def test_a_config_that_cannot_be_computed_is_refused(config, change, says):
    config.write_text(json.dumps(QWEN_600M | change))
    with pytest.raises(ConfigError, match=says):
        drafter_of(f"pard:{config}", shipped_table(H200), False)


def test_a_measured_table_without_drafting_needs_the_time(saved_table, config):
    table = CostTable.load(saved_table)
    with pytest.raises(ConfigError, match="give pard alone, and where none"):
        drafter_of(f"pard:{config}", table, False)
    assert drafter_of("pard", table, True) == Drafter("pard")
