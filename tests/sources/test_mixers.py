"""Attention and states of layers: each kind by its own rows, or by those near it."""

import pytest

from evict_profile.config import load_model
from evict_profile.config.model import LayerSpec
from evict_profile.records import replace
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.parts import Parts
from tests.sources import wheel as made
from tests.sources.wheel import PAIR, attention_us, module_rows, state_rows, state_us

MODEL = load_model("qwen3-30b-a3b")
STATE = 8 * 128 * 128
LINEAR = LayerSpec("linear", 48, 0, rule="gated_delta", state=STATE)
"""Every layer keeps a state of eight heads."""


@pytest.fixture
def root(tmp_path):
    return made.write_wheel(tmp_path / "wheel")


def parts(root, *others, model=MODEL, tp=1):
    model = replace(model, other_layers=others or model.other_layers)
    return Parts(open_source(root), PAIR._replace(tp=tp), model)


def test_attention_lies_between_one_query_and_a_cache_for_each(root):
    low, us, high = parts(root).attention(tokens=64, context=700, batch=2)
    assert (low, high) == pytest.approx((attention_us(2, 700), attention_us(64, 700)))
    assert us == pytest.approx((low * high) ** 0.5)


def test_a_state_without_rows_of_verification_is_bounded_by_passes(root):
    made.write_rows(root, "gdn", state_rows((1,)))
    found, one = parts(root, LINEAR).attention(40, 512, 10), state_us(8, 10)
    assert found == pytest.approx((one, 2 * one, 4 * one))


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_verification_grows_as_the_rows_of_kda(root, width):
    made.write_rows(root, "gdn", state_rows((1,)))
    made.write_rows(root, "kda", state_rows((1, 2, 4, 8)))
    found = parts(root, LINEAR).attention(16 * width, 512, 16)
    assert found == pytest.approx([state_us(8, 16, width)] * 3)


def test_beyond_the_rows_a_pass_lies_between_their_line_and_proportion(root):
    made.write_rows(root, "kda", state_rows((1, 2, 4, 8)))
    low, us, high = parts(root, replace(LINEAR, rule="kda")).attention(32, 512, 1)
    assert (low, high) == pytest.approx((state_us(8, 1, 32), 4 * state_us(8, 1, 8)))
    assert us == pytest.approx((low * high) ** 0.5)


def test_a_fused_kernel_stands_for_the_pair(root):
    fused = [
        row | {"kernel_source": "fused_kda_decode", "us": row["us"] / 2}
        for row in state_rows((1,))
    ]
    made.write_rows(root, "kda", state_rows((1,)) + fused)
    found = parts(root, replace(LINEAR, rule="kda"))
    assert found.attention(1, 512, 1).us == pytest.approx(state_us(8, 1) / 4)


def test_ranks_share_the_heads_of_a_state(root):
    made.write_rows(root, "gdn", state_rows((1,), heads=(4, 16)))
    found = parts(root, replace(LINEAR, state=4 * STATE), tp=4)
    assert found.attention(1, 512, 1).us == pytest.approx(state_us(8, 1), rel=1e-6)
    assert found.rows.stand_ins == {"gdn of num_v_heads 8": "4 and 16"}


def test_states_without_rows_take_those_of_a_gated_delta_net(root):
    made.write_rows(root, "gdn", state_rows((1,)))
    found = parts(root, LayerSpec("mamba", 48, 0, state=STATE))
    assert found.attention(1, 512, 1).us == pytest.approx(state_us(8, 1))
    assert "mamba states" in found.rows.stand_ins
    assert found.mixers.without_kernels == ()


def test_a_module_holds_its_products(root):
    model = load_model("glm-5")
    made.write_rows(root, "dsa module", module_rows("zai-org/GLM-5-FP8", 64))
    found = parts(root, model=model)
    assert found.attention(1, 1024, 1).us == pytest.approx(20 * attention_us(1, 1024))
    assert not any("products" in name for name in found.moe_layer(4))
    assert found.mixers.without_kernels == ()


def test_modules_of_other_sizes_are_not_used(root):
    made.write_rows(root, "dsa module", module_rows("deepseek-ai/DeepSeek-V3.2", 64))
    made.write_rows(root, "mla", module_rows("any", 64))
    found = parts(root, model=load_model("glm-5"))
    assert "sparse products" in found.moe_layer(4)
    assert found.mixers.without_kernels == ("sparse",)


def test_deepseek_v4_costs_each_kind_of_layer_by_its_rows(root):
    """Two layers see a window of 128 tokens, as heavily compressed ones do there."""
    model, name = load_model("deepseek-v4-flash"), "DeepSeek-V4-Flash-FP8"
    for operation, times in (("csa module", 1.0), ("hca module", 0.5)):
        rows = [row | {"compress_ratio": 4} for row in module_rows(name, 64, times)]
        made.write_rows(root, operation, rows)
    full, window = (20 * attention_us(1, context) for context in (1024, 128))
    expected = (21 * full + 20 * full / 2 + 2 * window / 2) / 43
    found = parts(root, model=model)
    assert found.attention(1, 1024, 1).us == pytest.approx(expected)
    facts = {"architecture": "some", "num_sites": 2, "hc_mult": 4}
    facts |= {"hidden_size": 4096, "sinkhorn_iters": 20, "num_tokens": 8}
    made.write_rows(root, "hyper-connections", [facts | {"us": 18.0}])
    layer = parts(root, model=model).moe_layer(8)
    assert layer["hyper-connections"] == pytest.approx(18.0)
