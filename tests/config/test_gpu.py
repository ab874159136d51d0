"""GPU files load, are plausible, and fail in one sentence."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evict_profile.config.gpu import load_gpu
from evict_profile.errors import ConfigError
from evict_profile.io import named_file

NAMES = [path.stem for path in named_file("gpus", "b200").parent.glob("*.yaml")]


@pytest.fixture
def content() -> dict[str, Any]:
    """A GPU file that loads, for the test to break in one place."""
    return dict(yaml.safe_load(named_file("gpus", "h200-sxm").read_text()))


def failure(folder: Path, content: dict[str, Any]) -> str:
    """The message that loading `content` ends with; one line that names the file."""
    path = folder / "broken.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as caught:
        load_gpu(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_file_loads_under_the_name_it_states(name: str) -> None:
    assert load_gpu(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_dense_bf16_and_gigabytes_a_second(name: str) -> None:
    # 153 to 295 operations a byte; a rate with sparsity or in TB/s falls outside.
    gpu = load_gpu(name)
    ridge = gpu.bf16_dense_tflops * 1e3 / gpu.memory_bandwidth_gbps
    assert 150 < ridge < 300


def test_the_h200_differs_from_the_h100_in_memory_alone() -> None:
    h100, h200 = load_gpu("h100-sxm"), load_gpu("h200-sxm")
    assert h200.bf16_dense_tflops == h100.bf16_dense_tflops
    assert h200.memory_bandwidth_gbps > h100.memory_bandwidth_gbps


def test_an_unknown_key_is_named(tmp_path: Path, content: dict[str, Any]) -> None:
    message = failure(tmp_path, content | {"memory_bandwith_gbps": 4800})
    assert "unknown key 'memory_bandwith_gbps'; remove it" in message


def test_a_missing_key_is_named(tmp_path: Path, content: dict[str, Any]) -> None:
    del content["bf16_dense_tflops"]
    message = failure(tmp_path, content)
    assert "key 'bf16_dense_tflops' is missing; add it" in message


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_an_impossible_rate_is_named(
    tmp_path: Path, content: dict[str, Any], rate: float
) -> None:
    message = failure(tmp_path, content | {"memory_bandwidth_gbps": rate})
    assert "memory_bandwidth_gbps must be a positive number" in message


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"a100-sxm-80gb.*h200-sxm"):
        load_gpu("h300")
