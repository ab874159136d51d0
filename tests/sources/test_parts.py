"""Parts beside the experts: found again where rows follow a formula."""

import pytest

from evict_profile.config import load_model
from evict_profile.config.model import LayerSpec
from evict_profile.records import replace
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.parts import Parts
from evict_profile.stats import Estimate
from tests.sources import wheel as made
from tests.sources.wheel import PAIR, attention_rows, attention_us, gemm_us

MODEL = load_model("qwen3-30b-a3b")
STATE = 8 * 128 * 128


def parts(root, model=MODEL, **changed):
    return Parts(open_source(root), PAIR._replace(**changed), model)


def moved_us(moved):
    return 3.0 + moved / made.PEAK_GBPS / 1e3


def norm_us(tokens):
    return moved_us(8 * tokens * MODEL.hidden_size)


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_a_layer_is_its_products_and_norms(wheel, tokens):
    qkv, output = gemm_us(tokens, 5120, 2048), gemm_us(tokens, 2048, 4096)
    expected = {"norms": 2 * norm_us(tokens), "attention products": qkv + output}
    expected |= {"router": gemm_us(tokens, 128, 2048)}
    assert parts(wheel).moe_layer(tokens) == pytest.approx(expected)


def test_ranks_share_products_and_add_all_reduces_of_a_graph(wheel):
    found = parts(wheel, tp=2).moe_layer(8)
    qkv, output = gemm_us(8, 2560, 2048), gemm_us(8, 2048, 2048)
    assert found["attention products"] == pytest.approx(qkv + output)
    assert found["all-reduce"] == pytest.approx(2 * made.all_reduce_us(8 * 2048))
    assert parts(wheel, tp=1, ep=2).moe_layer(8) == pytest.approx(found)


def test_windowed_layers_see_their_window(tmp_path):
    root = made.write_wheel(tmp_path / "wheel")
    windowed = [row | {"us": row["us"] / 2} for row in attention_rows(window_size=256)]
    made.write_rows(root, "attention", attention_rows() + windowed)
    attention = replace(MODEL.attention, sliding_window=256, sliding_every=2)
    found = parts(root, replace(MODEL, attention=attention))
    expected = (attention_us(1, 1024) + attention_us(1, 256) / 2) / 2
    assert found.attention.at(1, 1024, 1).value == pytest.approx(expected)


def test_layers_of_other_kinds_are_their_products_and_what_they_see(wheel):
    """Of 48 layers 12 attend, 24 keep a state, 12 see 256 tokens."""
    linear, sliding = 6 * 2048 * 2048, 4 * 2048 * 2048
    recurrent = LayerSpec("linear", 24, linear, state=STATE)
    others = (recurrent, LayerSpec("sliding", 12, sliding, 256))
    found = parts(wheel, replace(MODEL, other_layers=others))
    own = parts(wheel).moe_layer(4)["attention products"]
    layer = found.moe_layer(4)
    assert layer["attention products"] == pytest.approx(own / 4)
    expected = gemm_us(4, 6 * 2048, 2048) / 2
    assert layer["linear products"] == pytest.approx(expected)
    assert layer["sliding products"] == pytest.approx(gemm_us(4, 8192, 2048) / 4)
    seen = (attention_us(1, 1024) + attention_us(1, 256) + 2 * moved_us(8 * STATE)) / 4
    assert found.attention.at(1, 1024, 1).value == pytest.approx(seen)


def test_experts_on_a_latent_are_entered_and_left(wheel):
    moe = replace(MODEL.moe, expert_hidden=1024, gated=False, shared_width=1024)
    layer = parts(wheel, replace(MODEL, moe=moe)).moe_layer(2)
    ways = gemm_us(2, 1024, 2048) + gemm_us(2, 2048, 1024)
    assert layer["into experts and back"] == pytest.approx(ways)
    assert layer["shared experts"] == pytest.approx(ways)


def test_shared_and_dense_experts_are_products_of_their_type(wheel):
    moe = replace(MODEL.moe, shared_width=1024)
    model = replace(MODEL, moe=moe, dense_layers=1, dense_width=4096)
    found = parts(wheel, model, dtype="fp8")
    shared = 0.7 * (gemm_us(2, 2048, 2048) + gemm_us(2, 2048, 1024))
    dense = 0.7 * (gemm_us(2, 8192, 2048) + gemm_us(2, 2048, 4096))
    assert found.moe_layer(2)["shared experts"] == pytest.approx(shared)
    assert found.dense_layer(2)["dense"] == pytest.approx(dense)


def test_attention_lies_between_one_query_and_a_cache_for_each(wheel):
    found = parts(wheel).attention.at(tokens=64, context=700, batch=2)
    ends = (attention_us(2, 700), attention_us(64, 700))
    assert (found.low, found.high) == pytest.approx(ends)
    assert found.value == pytest.approx((found.low * found.high) ** 0.5)


def test_a_state_is_read_once_and_kept_for_each_token(wheel):
    """Ranks share it."""
    model = replace(MODEL, other_layers=(LayerSpec("mamba", 48, 0, state=STATE),))
    for tp in (1, 2):
        found = parts(wheel, model, tp=tp).attention
        step = found.at(40, 512, 10)
        assert step.value == pytest.approx(moved_us(4 * STATE * (10 + 40) / tp))
        assert step == Estimate(*[step.value] * 3)
    assert found.by_bytes == ("mamba",) and found.reaches(10**6, 10**6)


def test_sparse_attention_reads_the_cache_that_it_sees(wheel):
    """Of each query at most, of each request at least; ranks share its heads."""
    model = replace(MODEL, other_layers=(LayerSpec("sparse", 48, 0, 2048),))
    found = parts(wheel, model, tp=2).attention.at(16, 9000, 4)
    cached = 2 * MODEL.attention.cache_values_per_token / 2 * 2048
    ends = [moved_us(cached * queries) for queries in (4, 16)]
    assert [found.low, found.high] == pytest.approx(ends)


def test_hyper_connections_move_all_streams_and_are_told(wheel):
    found = parts(wheel, replace(MODEL, residual_streams=4))
    norms = found.moe_layer(8)["norms"]
    assert norms == pytest.approx(2 * moved_us(8 * 8 * 4 * MODEL.hidden_size))
    assert found.rows.stand_ins == {"hyper-connections": "their bytes"}
