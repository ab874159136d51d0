"""What stands in for missing rows: sizes between two, and a data type near by."""

import pandas as pd
import pytest

from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.rows import Curve, KernelRows
from tests.sources import wheel as made
from tests.sources.wheel import PAIR, gemm_rows


@pytest.fixture
def rows(wheel):
    return KernelRows(open_source(wheel), PAIR)


def at(rows, **sizes):
    """Of rows that take 10 us with 16 heads and 40 us with 64, at any size."""
    frame = pd.DataFrame({"heads": [16, 64], "size": [1, 1], "us": [10.0, 40.0]})
    return rows.latency("some", frame, sizes, lambda own: Curve.of(own, "size").at)(1)


@pytest.mark.parametrize(
    ("heads", "us", "near"),
    [(16, 10.0, None), (32, 20.0, "16 and 64"), (8, 10.0, "16"), (128, 80.0, "64")],
)
def test_a_size_without_rows_lies_between_the_nearest_and_is_told(
    rows, heads, us, near
):
    assert at(rows, heads=heads) == pytest.approx(us)
    assert rows.stand_ins == ({f"some of heads {heads}": near} if near else {})


def test_products_of_a_type_that_timed_the_host_are_of_the_nearest(rows):
    """Rows of fp8_block take 30 times as long as those of bf16."""
    assert set(rows.products("fp8_block")["gemm_dtype"]) == {"fp8"}
    assert rows.stand_ins == {"gemm of fp8_block": "fp8"}
    assert set(rows.products("fp8")["gemm_dtype"]) == {"fp8"}


def test_without_any_near_type_products_are_bf16(tmp_path):
    root = made.write_wheel(tmp_path / "wheel")
    made.write_rows(root, "gemm", gemm_rows())
    found = KernelRows(open_source(root), PAIR)
    assert set(found.products("nvfp4")["gemm_dtype"]) == {"bfloat16"}


def test_a_type_with_nothing_near_is_refused(rows):
    with pytest.raises(ConfigError, match="no usable rows of fp8, only of int8"):
        rows.nearest_dtype("gemm", "fp8", {"int8"})


def test_rows_of_another_version_are_told(wheel):
    found = KernelRows(open_source(wheel), PAIR._replace(version="0.6.0"))
    found.of("gemm")
    assert found.substituted_versions == {"gemm": made.ENGINE_VERSION}
