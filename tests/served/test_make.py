"""Runs of one server make a table under the names that were typed."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.findings import findings
from evict_profile.served.make import assumed, served_table, shape_of
from evict_profile.served.run import Deployment, Load
from evict_profile.served.table import ServedTable
from evict_profile.table import CostTable
from tests.served.runs import clean, rows, run, saved


def stated(*deployments, **facts):
    """A plain run and a drafting one, each of a server that states something."""
    steps = ((0, 10.0), (3, 20.0))
    pairs = zip(steps, deployments, strict=True)
    return [run(1, k, ms, deployment=Deployment(**d), **facts) for (k, ms), d in pairs]


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"tp": 4}, {"tp": 8}, "tp: 4 first, 8 then"),
        ({"engine": "vllm"}, {"engine": "sglang"}, "engine: vllm first, sglang then"),
        ({"version": "1"}, {"version": "2"}, "version: 1 first, 2 then"),
        ({"gpu": "a"}, {"gpu": "b"}, "gpu: a first, b then"),
        ({"host": "a"}, {"host": "b"}, "host: a first, b then"),
        ({"flags": {"ep_size": 1}}, {"flags": {"ep_size": 8}}, "ep_size: 1 first, 8"),
    ],
)
def test_two_deployments_are_refused_with_both_values(one, other, says):
    with pytest.raises(ConfigError, match=says):
        served_table(stated(one, other), {}, "m", "g")


def test_another_attention_of_drafts_is_found_and_not_refused():
    """SGLang chooses flashinfer for trees and fa3 for plain decoding on Hopper."""
    ours, theirs = ({"flags": {"attention_backend": a}} for a in ("fa3", "flashinfer"))
    runs = stated(ours, theirs)
    served_table(runs, {}, "m", "g")
    [found] = [each for each in findings(runs, {}) if each.kind == "unlike"]
    assert "attention_backend: fa3 plain, flashinfer drafting" in found.sentence


def test_a_fact_is_compared_across_runs_that_do_not_state_it():
    runs = [*stated({"tp": 4}, {}), run(1, 5, 30.0, deployment=Deployment(tp=8))]
    with pytest.raises(ConfigError, match="tp: 4 first, 8 then"):
        served_table(runs, {}, "m", "g")


def test_settings_of_other_contexts_are_refused_with_both():
    runs = [run(1, 0, 10.0, context=64.0), run(1, 3, 20.0, context=461.0)]
    says = r"batch 1 of 64 tokens, K = 3 at batch 1 of 461 tokens\); .* -d TOKENS"
    with pytest.raises(ConfigError, match=says):
        served_table(runs, {}, "m", "g")


def test_flags_that_an_engine_sets_to_draft_may_differ():
    flags = {"disable_overlap_schedule": True, "speculative_algorithm": "EAGLE3"}
    assert served_table(stated({}, {"flags": flags}), {}, "m", "g")


@pytest.mark.parametrize(
    ("served", "typed"),
    [
        ("Qwen/Qwen3.5-35B-A3B", "qwen3.6-35b-a3b"),
        ("moonshotai/Kimi-K2.7-Code", "kimi-k2"),
        ("deepseek-ai/DeepSeek-V3", "qwen3-30b-a3b"),
    ],
)
def test_runs_of_another_model_are_refused(served, typed):
    """Qwen3.5's runs are no version of Qwen3.6's table."""
    both = {"model": served}
    with pytest.raises(ConfigError, match=f"states the model {served}, and --model"):
        served_table(stated(both, both), {}, typed, "g")


@pytest.mark.parametrize(
    ("served", "typed"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("/models/Qwen3-30B-A3B-Q4_K_M.gguf", "qwen3-30b-a3b"),
        ("default", "qwen3-30b-a3b"),
        ("Qwen/Qwen3.6-35B-A3B", "Qwen3.6-35B-A3B"),
    ],
)
def test_a_model_is_named_as_typed(served, typed):
    both = {"model": served}
    assert served_table(stated(both, both), {}, typed, "g").key.model == typed


@pytest.mark.parametrize("model", ["qwen3.6-35b", "kimi-k2.7-code"])
def test_a_name_is_a_label_and_never_another_model(model, tmp_path):
    path = saved(
        served_table(clean(deployment=Deployment()), {}, model, "H200"), tmp_path
    )
    assert path.relative_to(tmp_path).parts[1] == model


def test_a_label_that_shares_no_word_with_the_model_is_said():
    own = Deployment(model="Qwen/Qwen3-30B-A3B", tp=1)
    runs = [replace(run, deployment=own) for run in rows("1,0,10|1,3,20")]
    [said] = assumed(served_table(runs, {}, "mine", "H200"))
    assert "state the model Qwen/Qwen3-30B-A3B, and mine is taken" in said
    assert not assumed(served_table(runs, {}, "qwen3-30b-a3b", "H200"))


def test_another_gpu_is_refused_and_another_spelling_is_not():
    both = {"gpu": "NVIDIA GeForce RTX 4090"}
    assert served_table(stated(both, both), {}, "m", "rtx4090").key.gpu == "rtx4090"
    with pytest.raises(ConfigError, match="and --gpu h200 was given"):
        served_table(stated(both, both), {}, "m", "h200")


def test_the_key_has_what_runs_state_and_nothing_else():
    table = served_table(stated({}, {"engine": "vllm", "tp": 4}), {}, "m", "g")
    key = table.key
    assert (key.engine, key.tp) == ("vllm", 4)
    assert {key.engine_version, key.dtype, key.moe_backend} == {"not stated"}
    assert not assumed(table)
    flags = {"dtype": "auto", "quantization": "fp8"}
    assert served_table(stated({}, {"flags": flags}), {}, "m", "g").key.dtype == "fp8"
    alone = served_table(rows("1,0,10|1,3,20"), {}, "m", "g")
    assert alone.key.tp == 1
    assert "tensor-parallel size, and 1 is assumed" in assumed(alone)[0]


def test_a_step_surely_below_plain_is_refused():
    with pytest.raises(
        ConfigError, match=r"5.00 ms, less than the plain step of 10.00"
    ):
        served_table(rows("1,0,10|1,3,5"), {}, "m", "g")


@pytest.mark.parametrize("text", ["1,0,20|1,3,18.57", "1,0,10|1,3,9.9|1,7,9.8"])
def test_a_step_below_plain_within_noise_is_none(text):
    assert served_table(rows(text), {}, "m", "g")


def test_a_drafting_step_is_compared_at_its_own_context():
    """The plain step of a long context says nothing of a short one's."""
    runs = [
        run(1, k, step, context=context)
        for context, plain, drafting in ((512.0, 10, 15), (32768.0, 50, 70))
        for k, step in ((0, plain), (3, drafting))
    ]
    assert served_table(runs, {}, "m", "g")


def test_a_noisy_setting_is_not_refused():
    """2.40 tokens for the time of 10.7 plain steps is below 1."""
    noise = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
    runs = [run(1, 0, 1.678)] * 8 + [run(1, 3, 18.04 * n, length=2.4) for n in noise]
    ratio = served_table(runs, {}, "m", "g").ratio(1, 4, 3).value
    assert ratio.high / ratio.low > 1.3
    assert 2.4 / ratio.low < 1.0


def test_two_runs_of_one_setting_that_lie_apart_are_refused():
    with pytest.raises(ConfigError, match="as of several servers"):
        served_table(rows("1,0,10|1,3,20|1,3,30"), {}, "m", "g")


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([], "holds no run with a step"),
        (rows("1,0,10"), "no batch has two settings to compare"),
        (rows("1,0,10|2,3,20"), "run plain decoding and one K at the same batch"),
    ],
)
def test_what_compares_nothing_is_no_table(runs, says):
    with pytest.raises(ConfigError, match=says):
        served_table(runs, {}, "m", "g")


def test_k_that_changes_is_refused():
    runs = [run(), run(1, 3, 20.0, load=Load(drafted=1.4))]
    with pytest.raises(
        ConfigError, match=r"1\.40 tokens are drafted, and K = 3 is stated"
    ):
        served_table(runs, {}, "m", "g")


def test_versions_are_counted(tmp_path):
    table = served_table(rows("1,0,10|1,3,20"), {}, "m", "g")
    paths = [saved(table, tmp_path) for _ in range(2)]
    assert [path.stem for path in paths] == ["1.0.0", "1.0.1"]
    assert [ServedTable.load(path).version for path in paths] == ["1.0.0", "1.0.1"]
    assert {path.name for path in paths[0].parent.iterdir()} == {
        "1.0.0.json",
        "1.0.1.json",
    }


def test_a_shape_is_the_growth_of_the_forward(saved_table):
    table = CostTable.load(saved_table)
    shape = shape_of(table)
    batch = shape.batches[0]
    us = table.step_cost_us(batch, table.fit.domain["context"][0])
    for width in shape.widths:
        known = us[batch * width] / us[batch]
        assert shape.at(batch, width) == pytest.approx(known, rel=1e-3)


def test_runs_are_kept_with_their_sources():
    left_out = {"a": "others ran"}
    runs = rows("1,0,10|1,3,20")
    table = served_table([*runs, replace(runs[0], step_us=None)], left_out, "m", "h")
    assert len(table.runs) == len(runs)
    assert table.left_out == left_out
