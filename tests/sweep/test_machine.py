"""What happened to the machine while a sample was taken, by sixteen answers of NVML."""

import sys
from types import ModuleType, SimpleNamespace

import pynvml
import pytest
import torch

from evict_profile import doctor
from evict_profile.sweep import machine
from evict_profile.sweep.machine import GpuWatch, cpu_name
from runners import device

QUERY = "nvmlDeviceGetCurrentClocksEventReasons"


class Nvml:
    """An NVML with one answer, in place of `pynvml`; it notes who was asked for."""

    def __init__(self, monkeypatch):
        self.module = ModuleType("pynvml")
        vars(self.module).update(vars(pynvml))
        self.asked = []
        self.set("nvmlInit", lambda: None)
        for way in ("Index", "UUID", "PciBusId"):
            self.set(f"nvmlDeviceGetHandleBy{way}", lambda gpu: gpu)
        self.answer(0)
        monkeypatch.setitem(sys.modules, "pynvml", self.module)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def set(self, name, function):
        setattr(self.module, name, function)

    def answer(self, mask=0, error=None):
        def reasons(handle):
            self.asked.append(handle)
            if error:
                raise pynvml.NVMLError(error)
            return mask

        self.set(QUERY, reasons)


@pytest.fixture
def nvml(monkeypatch):
    return Nvml(monkeypatch)


@pytest.mark.parametrize(
    ("mask", "events"),
    [
        (0x1, ""),
        (0x4, "SwPowerCap"),
        (0x4 | 0x1, "SwPowerCap"),
        (0x40 | 0x8, "HwSlowdown, HwThermalSlowdown"),
        (0x2, ""),
        (0x2 | 0x20, "SwThermalSlowdown"),
        (0x100, "DisplayClockSetting"),
        (0x1000, ""),
    ],
    ids=[
        "idle",
        "at the power cap",
        "busy at one query and idle at the next",
        "hot",
        "clocks set by nvidia-smi -lgc or -ac",
        "clocks set, and hot",
        "clocks of a display",
        "a bit of a newer driver",
    ],
)
def test_what_slows_the_gpu_is_an_event(nvml, mask, events):
    """NVML's names. A bit that slows nothing, or that a user set, has none."""
    nvml.answer(mask)
    assert machine.watch("cuda").events() == events


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    ],
)
def test_a_driver_that_does_not_tell_ends_no_sweep(nvml, error):
    nvml.answer(error=error)
    assert machine.watch("cuda").events() == ""


def test_without_a_driver_the_cpu_is_watched(nvml):
    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    nvml.set("nvmlInit", refuse)
    assert isinstance(machine.watch("cuda"), machine.CpuWatch)


def test_with_an_nvidia_ml_py_before_12_535_the_cpu_is_watched(nvml):
    delattr(nvml.module, QUERY)
    assert isinstance(machine.watch("cuda"), machine.CpuWatch)


@pytest.mark.parametrize(
    ("visible", "watched"),
    [("", 0), ("3,1", 3), ("GPU-5a", "GPU-5a"), ("MIG-7", "MIG-7")],
)
def test_a_gpu_of_another_python_is_found_by_the_environment(
    nvml, monkeypatch, visible, watched
):
    """This Python's torch knows no GPU. NVML counts also those that are hidden."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert GpuWatch().events() == ""
    assert nvml.asked == [watched]


def test_the_gpu_that_torch_calls_the_first_is_watched(nvml, monkeypatch):
    """CUDA counts the fastest first, NVML by place on the bus, and a MIG slice has no
    answer of its own.
    """
    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x8D, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: place)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    assert GpuWatch().events() == ""
    assert nvml.asked == ["0:8d:0.0"]


def test_a_system_that_names_no_cpu_is_a_note_of_doctor(tmp_path, monkeypatch):
    """macOS has no /proc."""
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
    [cpu] = [each for each in doctor.examine() if each.name == "CPU"]
    assert not cpu.good and cpu.message.startswith("unknown CPU, ")
    assert doctor.cpu_dtype() == "float32"


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
