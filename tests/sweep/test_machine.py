"""What happened to the machine while a sample was taken."""

import pynvml
import pytest

from evict_profile.sweep.machine import GpuWatch


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An NVML with one GPU."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    return monkeypatch


QUERY = "nvmlDeviceGetCurrentClocksEventReasons"


def test_a_throttled_gpu_is_noted(nvml: pytest.MonkeyPatch) -> None:
    """By the names of NVML, without those that slow nothing."""
    mask = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    nvml.setattr(pynvml, QUERY, lambda handle: mask)
    assert GpuWatch().events() == "SwPowerCap"


def test_a_driver_that_does_not_tell_ends_no_sweep(nvml: pytest.MonkeyPatch) -> None:
    """Some GPUs, MIG slices and virtual machines answer NotSupported."""

    def refuse(handle: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    nvml.setattr(pynvml, QUERY, refuse)
    assert GpuWatch().events() == ""


@pytest.mark.parametrize(
    ("visible", "watched"),
    [("", 0), ("3,1", 3), ("GPU-5a", "GPU-5a"), ("MIG-7", "MIG-7")],
)
def test_the_gpu_that_is_measured_is_watched(
    nvml: pytest.MonkeyPatch, visible: str, watched: object
) -> None:
    """NVML counts also GPUs that a scheduler hides from the process."""
    seen: list[object] = []
    nvml.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    nvml.setattr(pynvml, QUERY, lambda handle: seen.append(handle) or 0)
    assert GpuWatch().events() == ""
    assert seen == [watched]
