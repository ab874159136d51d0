"""What happened to the machine while a sample was taken."""

import pynvml
import pytest
import torch

from evict_profile.sweep import machine
from evict_profile.sweep.machine import GpuWatch, cpu_name
from runners import device


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    return monkeypatch


QUERY = "nvmlDeviceGetCurrentClocksEventReasons"


def test_a_throttled_gpu_is_noted(nvml):
    """By the names of NVML, without those that slow nothing."""
    mask = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    nvml.setattr(pynvml, QUERY, lambda handle: mask)
    assert GpuWatch().events() == "SwPowerCap"


def test_a_driver_that_does_not_tell_ends_no_sweep(nvml):

    def refuse(handle):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    nvml.setattr(pynvml, QUERY, refuse)
    assert GpuWatch().events() == ""


@pytest.mark.parametrize(
    ("visible", "watched"),
    [("", 0), ("3,1", 3), ("GPU-5a", "GPU-5a"), ("MIG-7", "MIG-7")],
)
def test_the_gpu_that_is_measured_is_watched(nvml, visible, watched):
    """NVML counts also GPUs that a scheduler hides from the process."""
    seen: list[object] = []
    nvml.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    nvml.setattr(pynvml, QUERY, lambda handle: seen.append(handle) or 0)
    assert GpuWatch().events() == ""
    assert seen == [watched]


ARM = "CPU implementer\t: 0x41\nCPU variant\t: 0x{}\nCPU part\t: 0xd{}\n"


@pytest.mark.parametrize(
    ("cpuinfo", "board", "name"),
    [
        ("processor\t: 0\nmodel name\t: A CPU of paper \n", "", "A CPU of paper"),
        (ARM.format(3, "0c") + ARM.format(3, "0c"), "", "CPU 0x41 0x3 0xd0c"),
        (ARM.format(1, "4f"), "", "CPU 0x41 0x1 0xd4f"),
        (ARM.format(0, "05") + ARM.format(0, "0b"), "A board\0",
         "CPU 0x41 0x0 0xd05 0xd0b A board"),
        ("processor\t: 0\n", "", "unknown CPU"),
    ],
)  # fmt: skip
def test_a_cpu_is_named_by_its_model_or_its_cores(
    cpuinfo, board, name, tmp_path, monkeypatch
):
    """Alike by the toolkit and by the runner, whose name the key of a table is."""
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    if board:
        (tmp_path / "model").write_text(board)
    for own in (machine, device):
        monkeypatch.setattr(own, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(own, "BOARD", tmp_path / "model")
    assert cpu_name() == name
    assert device.describe("any", __file__, torch.device("cpu"))["device"] == name
