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


@pytest.fixture
def clock(noise, monkeypatch):
    monkeypatch.setattr(clocks, "MIN_REFERENCE_BYTES", 1 << 22)
    monkeypatch.setattr(clocks, "MAX_REFERENCE_BYTES", 1 << 22)
    return CpuClock(noise)


def test_sizes_and_speeds_are_plausible(monkeypatch):
    monkeypatch.setattr(clocks, "COPY_BYTES", {"cpu": 1 << 22})
    assert 0.0 < copy_bandwidth_gbps(torch.device("cpu")) < math.inf
    assert 1 << 20 <= last_level_cache_bytes() <= 1 << 32
    readings = [process_us() for _ in range(100)]
    assert readings == sorted(readings)


def test_what_runs_first_is_not_timed(clock):
    """It runs once, before the sample, which runs once; neither warm-up nor repeat."""
    runs: list[str] = []

    def work(name, products):
        runs.append(name)
        matrix = torch.ones(700, 700)
        for _ in range(products):
            matrix = matrix @ matrix

    reading = clock.time(lambda: work("timed", 1), lambda: work("first", 20))
    assert runs == ["first", "timed"]
    for time_us in (reading.clock_us, reading.wall_us, reading.reference_us):
        assert 0.0 < time_us < math.inf
    began = process_us()
    work("first", 20)
    assert reading.clock_us < (process_us() - began) / 2


def test_process_time_stands_still_in_sleep(clock):
    """Waiting is not work: the CPU clock of a sleep is far below its wall time."""
    reading = clock.time(lambda: time.sleep(0.05))
    assert reading.clock_us < reading.wall_us


class NoEvent:
    """An event of a GPU, two milliseconds before the next."""

    def record(self):
        pass

    def elapsed_time(self, other):
        return 2.0


def test_a_gpu_s_first_run_comes_between_sweep_and_sample(monkeypatch):
    """So that the sample finds what it left in the cache."""
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: NoEvent())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(clocks, "cache_bytes", lambda device: 64)
    cuda, order = CudaClock(torch.device("cpu")), list[str]()

    class Sweep:
        def zero_(self):
            order.append("write")

    monkeypatch.setattr(cuda, "sweep", Sweep())
    reading = cuda.time(lambda: order.append("run"), lambda: order.append("first"))
    assert order == ["write"] * clocks.SWEEPS + ["first", "run"]
    assert reading.clock_us == 2000.0
