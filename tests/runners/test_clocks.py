"""Clocks read positive, finite times; how long is the machine's affair."""

import math
import time

import pytest
import torch

from runners.torch_moe import clocks
from runners.torch_moe.clocks import (
    CpuClock,
    CudaClock,
    copy_bandwidth_gbps,
    last_level_cache_bytes,
    process_us,
)
from runners.torch_moe.shape import Noise


@pytest.fixture
def clock(noise: Noise, monkeypatch: pytest.MonkeyPatch) -> CpuClock:
    monkeypatch.setattr(clocks, "MIN_REFERENCE_BYTES", 1 << 22)
    monkeypatch.setattr(clocks, "MAX_REFERENCE_BYTES", 1 << 22)
    return CpuClock(noise)


def test_copy_bandwidth_is_positive_and_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "COPY_BYTES", {"cpu": 1 << 22})
    assert 0.0 < copy_bandwidth_gbps(torch.device("cpu")) < math.inf


def test_a_reading_has_positive_times(clock: CpuClock) -> None:
    work = torch.ones(400, 400)
    reading = clock.time(lambda: work @ work)
    for time_us in (reading.clock_us, reading.wall_us, reading.reference_us):
        assert 0.0 < time_us < math.inf


def test_a_reading_runs_its_work_once(clock: CpuClock) -> None:
    """Neither warm-up nor repeat hides in a sample."""
    runs: list[int] = []
    clock.time(lambda: runs.append(1))
    assert runs == [1]


def test_what_runs_first_is_not_timed(clock: CpuClock) -> None:
    """It runs once, before the sample, on no clock."""
    runs: list[str] = []

    def first() -> None:
        runs.append("first")
        work = torch.ones(700, 700)
        for _ in range(20):
            work = work @ work

    reading = clock.time(lambda: runs.append("timed"), first)
    assert runs == ["first", "timed"]
    began = process_us()
    first()
    assert reading.clock_us < (process_us() - began) / 2


def test_process_time_stands_still_in_sleep(clock: CpuClock) -> None:
    """Waiting is not work: the CPU clock of a sleep is far below its wall time."""
    reading = clock.time(lambda: time.sleep(0.05))
    assert reading.clock_us < reading.wall_us


def test_process_time_never_goes_back() -> None:
    readings = [process_us() for _ in range(100)]
    assert readings == sorted(readings)


def test_cache_size_is_plausible() -> None:
    assert 1 << 20 <= last_level_cache_bytes() <= 1 << 32


class NoEvent:
    def record(self) -> None:
        pass

    def elapsed_time(self, other: object) -> float:
        return 2.0


def test_a_gpu_s_first_run_comes_between_sweep_and_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the sample finds what it left in the cache."""
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: NoEvent())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(clocks, "cache_bytes", lambda device: 64)
    cuda = CudaClock(torch.device("cpu"))
    order: list[str] = []
    swept = cuda.sweep

    class Swept:
        def zero_(self) -> None:
            order.append("write")
            swept.zero_()

    monkeypatch.setattr(cuda, "sweep", Swept())
    reading = cuda.time(lambda: order.append("run"), lambda: order.append("first"))
    assert order == ["write"] * clocks.SWEEPS + ["first", "run"]
    assert reading.clock_us == 2000.0
