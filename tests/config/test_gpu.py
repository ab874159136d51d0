"""What the datasheets of GPUs state is plausible."""

import pytest

from evict_profile.config.gpu import load_gpu
from tests.config.files import example, failure, names


@pytest.mark.parametrize("name", names("gpus"))
def test_rates_are_dense_bf16_and_gigabytes_a_second(name):
    # 153 to 295 operations a byte; a rate with sparsity or in TB/s falls outside.
    gpu = load_gpu(name)
    ridge = gpu.bf16_dense_tflops * 1e3 / gpu.memory_bandwidth_gbps
    assert 150 < ridge < 300


def test_the_h200_differs_from_the_h100_in_memory_alone():
    h100, h200 = load_gpu("h100-sxm"), load_gpu("h200-sxm")
    assert h200.bf16_dense_tflops == h100.bf16_dense_tflops
    assert h200.memory_bandwidth_gbps > h100.memory_bandwidth_gbps


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_an_impossible_rate_is_named(tmp_path, rate):
    changes = {"memory_bandwidth_gbps": rate}
    message = failure("gpus", tmp_path, example("gpus") | changes)
    assert "memory_bandwidth_gbps: Expected `float`" in message
