"""Clocks read positive, finite times; how long is the machine's affair."""

import math
import time

import pytest
import torch

from runners import clock as module
from runners.clock import (
    CudaClock,
    ReferenceClock,
    Timestamp,
    cache_bytes,
    copy_bandwidth_gbps,
    in_a_row_us,
    now,
    pick_clock,
    process_us,
)

CPU = torch.device("cpu")


@pytest.fixture
def clock(noise, monkeypatch):
    monkeypatch.setattr(module, "MIN_REFERENCE_BYTES", 1 << 22)
    monkeypatch.setattr(module, "MAX_REFERENCE_BYTES", 1 << 22)
    return pick_clock(CPU, noise)


def test_sizes_and_speeds_are_plausible(monkeypatch):
    monkeypatch.setattr(module, "COPY_BYTES", {"cpu": 1 << 22})
    assert 0.0 < copy_bandwidth_gbps(CPU) < math.inf
    assert 1 << 20 <= cache_bytes(CPU) <= 1 << 32
    readings = [process_us() for _ in range(100)]
    assert readings == sorted(readings)


def test_a_run_is_timed_once(clock):
    """Neither warm-up nor repeat."""
    runs = []
    reading = clock.time(lambda: runs.append(torch.ones(700, 700) @ torch.ones(700)))
    assert len(runs) == 1
    for time_us in (reading.clock_us, reading.reference_us):
        assert 0.0 < time_us < math.inf


def test_a_sample_stands_between_two_references():
    """The reference is the mean of both."""
    passed, references = [Timestamp(0.0, 0.0)], iter([9.0, 30.0, 50.0])

    def passes(us):
        passed.append(Timestamp(passed[-1].us + us, passed[-1].wall_us + 2 * us))

    scripted = ReferenceClock(
        "scripted", lambda: passed[-1], lambda: passes(next(references))
    )
    reading = scripted.time(lambda: passes(7.0))
    assert (reading.clock_us, reading.reference_us) == (7, 40)
    assert scripted.us(lambda: passes(3.0)) == 3.0


def test_process_time_stands_still_in_sleep(clock):
    """Waiting is not work: the CPU clock of a sleep is far below its wall time."""
    reading = clock.time(lambda: time.sleep(0.05))
    assert reading.clock_us < 0.05e6


def test_wall_time_counts_on_a_gpu_and_its_work_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    gpu = torch.device("cuda")
    moment = now(gpu)
    assert moment.us == moment.wall_us and waited == [gpu]
    assert now(CPU).us != now(CPU).wall_us and len(waited) == 1


def test_runs_in_a_row_need_no_lead_in_on_a_cpu(monkeypatch):
    """CPU time holds no wait of one for another."""
    moments = iter([Timestamp(0.0, 0.0), Timestamp(12.0, 90.0)])
    monkeypatch.setattr(module, "cpu_now", lambda: next(moments))
    ran = []
    runs = [lambda: ran.append("run")] * 3
    assert in_a_row_us(CPU, runs, lambda: ran.append("lead-in")) == 4.0
    assert ran == ["run"] * 3


class NoEvent:
    """An event of a GPU, two milliseconds before the next."""

    def record(self):
        pass

    def elapsed_time(self, other):
        return 2.0


def test_a_gpu_s_sample_finds_a_cold_cache(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: NoEvent())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(module, "cache_bytes", lambda device: 64)
    cuda, order = CudaClock(CPU), []

    class Sweep:
        def zero_(self):
            order.append("write")

    monkeypatch.setattr(cuda, "sweep", Sweep())
    reading = cuda.time(lambda: order.append("run"))
    assert order == ["write"] * module.L2_FLUSHES + ["run"]
    assert reading.clock_us == 2000.0
