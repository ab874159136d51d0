"""Parts beside the experts: found again where rows follow a formula."""

import pytest

from evict_profile.config import load_model
from evict_profile.config.model import LayerSpec
from evict_profile.records import replace
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.parts import Parts
from tests.sources import wheel as made
from tests.sources.wheel import PAIR, attention_rows, attention_us, gemm_us

MODEL = load_model("qwen3-30b-a3b")


def parts(root, model=MODEL, **changed):
    return Parts(open_source(root), PAIR._replace(**changed), model)


def norm_us(tokens):
    return 3.0 + 8 * tokens * MODEL.hidden_size / made.PEAK_GBPS / 1e3


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
    assert found.attention(1, 1024, 1).us == pytest.approx(expected)


def test_layers_of_other_kinds_are_their_products_and_what_they_see(wheel):
    """Of 48 layers 12 attend, 24 keep a state, 12 see 256 tokens."""
    linear, sliding = 6 * 2048 * 2048, 4 * 2048 * 2048
    others = (LayerSpec("linear", 24, linear), LayerSpec("sliding", 12, sliding, 256))
    found = parts(wheel, replace(MODEL, other_layers=others))
    own = parts(wheel).moe_layer(4)["attention products"]
    layer = found.moe_layer(4)
    assert layer["attention products"] == pytest.approx(own / 4)
    expected = gemm_us(4, 6 * 2048, 2048) / 2
    assert layer["linear products"] == pytest.approx(expected)
    assert layer["sliding products"] == pytest.approx(gemm_us(4, 8192, 2048) / 4)
    seen = (attention_us(1, 1024) + attention_us(1, 256)) / 4
    assert found.attention(1, 1024, 1).us == pytest.approx(seen)


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
