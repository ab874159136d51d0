"""Every kernel of attention is tried at every place, and none hides another."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import attention_backend
from benchmarks.attention_backend import FORCED, Kernel, first_call, main
from runners.torch_moe import clocks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small reference."""
    monkeypatch.setattr(clocks, "SMALLEST_REFERENCE", 1 << 22)
    monkeypatch.setattr(clocks, "LARGEST_REFERENCE", 1 << 22)


def test_every_place_has_every_kernel(tmp_path: Path) -> None:
    """Times of those that run here, torch's words for the others."""
    out = tmp_path / "kernels.json"
    words = ["--model", "tiny", "--sweep", "tiny", "--device", "cpu", "--rounds", "2"]
    assert main([*words, "--out", str(out)]) == 0
    places = json.loads(out.read_text())
    assert {(p["width"], p["batch"]) for p in places} >= {(1, 1), (16, 1), (8, 2)}
    for place in places:
        kernels = {kernel["name"]: kernel for kernel in place["kernels"]}
        assert kernels.keys() == FORCED.keys()
        assert kernels[place["picked"]]["us"] > 0
        assert kernels["cudnn"]["us"] is None and kernels["cudnn"]["says"]


def test_windowed_layers_stand_beside_whole_ones(tmp_path: Path) -> None:
    """A window leaves other sizes to the kernel."""
    out = tmp_path / "kernels.json"
    words = ["--model", "gpt-oss-120b", "--sweep", "tiny", "--device", "cpu"]
    assert main([*words, "--rounds", "1", "--out", str(out)]) == 0
    assert {place["window"] for place in json.loads(out.read_text())} == {0, 128}


def test_a_kernel_that_gives_up_is_told_in_its_words() -> None:
    """The first line of them."""

    def call() -> None:
        raise RuntimeError("cuDNN Frontend error: no execution plans\nstack")

    says = "cuDNN Frontend error: no execution plans"
    assert first_call("math", call, CPU) == Kernel("math", says=says)


def test_a_kernel_that_breaks_the_device_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No later number would be one."""

    def call() -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(attention_backend, "device_lost", lambda device: True)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        first_call("math", call, CPU)
