"""Clocks read positive, finite times; how long is the machine's affair."""

import math
import time

import pytest
import torch

from runners.torch_moe import clocks
from runners.torch_moe.clocks import (
    CpuClock,
    copy_bandwidth_gbps,
    last_level_cache_bytes,
    process_us,
)
from runners.torch_moe.noise import Noise


@pytest.fixture
def clock(noise: Noise, monkeypatch: pytest.MonkeyPatch) -> CpuClock:
    """A CPU clock with a small reference."""
    monkeypatch.setattr(clocks, "SMALLEST_REFERENCE", 1 << 22)
    monkeypatch.setattr(clocks, "LARGEST_REFERENCE", 1 << 22)
    return CpuClock(noise)


def test_copy_bandwidth_is_positive_and_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a copy small enough for a test."""
    monkeypatch.setattr(clocks, "COPY_BYTES", {"cpu": 1 << 22})
    assert 0.0 < copy_bandwidth_gbps(torch.device("cpu")) < math.inf


def test_a_reading_has_positive_times(clock: CpuClock) -> None:
    """Clock, wall and reference of a run that does something."""
    work = torch.ones(400, 400)
    reading = clock.time(lambda: work @ work)
    for time_us in (reading.clock_us, reading.wall_us, reading.reference_us):
        assert 0.0 < time_us < math.inf


def test_a_reading_runs_its_work_once(clock: CpuClock) -> None:
    """Neither warm-up nor repeat hides in a sample."""
    runs: list[int] = []
    clock.time(lambda: runs.append(1))
    assert runs == [1]


def test_process_time_stands_still_in_sleep(clock: CpuClock) -> None:
    """Waiting is not work: the CPU clock of a sleep is far below its wall time."""
    reading = clock.time(lambda: time.sleep(0.05))
    assert reading.clock_us < reading.wall_us


def test_process_time_never_goes_back() -> None:
    """Differences of two readings are times."""
    readings = [process_us() for _ in range(100)]
    assert readings == sorted(readings)


def test_cache_size_is_plausible() -> None:
    """From a mebibyte to a few gibibytes."""
    assert 1 << 20 <= last_level_cache_bytes() <= 1 << 32
