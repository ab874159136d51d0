"""The datasheet's clock: bytes over bandwidth, by the format of the checkpoint."""

import pytest

from evict_profile.config import load_model
from evict_profile.records import to_mapping
from runners.roofline.__main__ import Session

MODEL = load_model("gpt-oss-120b")
CELL = {"part": "layers", "width": 1, "context": 1024, "batch": 1, "split": "balanced"}


def session(dtype="auto"):
    options = {"dtype": dtype, "engine": {"gpu": "h200-sxm"}}
    return Session(to_mapping(MODEL), options)


def layer_us(opened, union):
    asked = {"cell": CELL | {"union": union}, "layers": 1, "seeds": [0]}
    [sample] = opened.measure(asked)["samples"]
    return sample["clock_us"]


def test_an_expert_takes_the_bytes_of_the_published_format():
    """Of 3 x 2880 x 2880 weights in mxfp4, 17 bytes hold 32."""
    opened = session()
    expert = 3 * 2880 * 2880 * 17 / 32
    assert opened.answer_open()["dtype"] == "mxfp4"
    assert opened.answer_open()["bytes_per_expert"] == expert
    taken = layer_us(opened, 36) - layer_us(opened, 4)
    assert taken == pytest.approx(32 * expert / 4800e3)


def test_weights_beside_four_bit_experts_and_the_cache_have_sixteen_bits():
    """Half of the layers see 128 of 1024 tokens."""
    common, cache = MODEL.common_weights, (128 + 1024) / 2 * 2 * 8 * 64
    experts = 4 * 3 * 2880 * 2880 * 17 / 32
    expected = (2 * (common + cache) + experts) / 4800e3
    assert layer_us(session(), 4) == pytest.approx(expected)
