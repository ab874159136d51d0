"""An estimate, and the engines that are offered in place of one that has none."""

import pytest

from evict_profile.config import load_model
from evict_profile.errors import MeasurementError
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.asked import placement_of
from evict_profile.sources.estimate import estimable, estimated
from tests.sources.wheel import GPU, moe_rows, write_rows, write_wheel

MODEL = load_model("qwen3-30b-a3b")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Under vLLM reading the weights would exceed the memory's bandwidth."""
    root = write_wheel(tmp_path_factory.mktemp("public"))
    rows = [row | {"us": 0.1 * row["us"]} for row in moe_rows()]
    write_rows(root, "moe", rows, engine="vllm")
    return open_source(root)


def test_an_engine_is_offered_only_where_its_rows_pass(source):
    asked = placement_of(MODEL, GPU, "vllm")
    assert [*estimable(source, MODEL, asked)] == ["sglang"]


def test_a_refusal_names_the_engines_that_have_an_estimate(source):
    asked = placement_of(MODEL, GPU, "vllm")
    with pytest.raises(MeasurementError, match=r"slope.* of --engine sglang$"):
        estimated(source, MODEL, asked, print)
