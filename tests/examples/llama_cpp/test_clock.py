"""When wall time may be read."""

import os

import pytest

pytest.importorskip("gguf")

from examples.llama_cpp.check import check_idle
from runners.clock import ReferenceClock, cpu_now, wall_now
from runners.protocol import Refusal


def clock(now):
    return ReferenceClock("any", now, lambda: sum(range(20_000)))


def test_several_threads_are_timed_on_an_idle_machine_alone(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.4, 0.0, 0.0))
    check_idle(clock(cpu_now))
    with pytest.raises(Refusal, match=r"the load is 0\.4.*set threads: 1"):
        check_idle(clock(wall_now))


def test_a_reference_that_spreads_is_refused(monkeypatch):
    wall, times = clock(wall_now), iter([100.0, 150.0, 120.0] * 5 + [100.0] * 15)
    monkeypatch.setattr(wall, "time_reference", lambda: next(times))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    with pytest.raises(Refusal, match="spreads by 42%"):
        check_idle(wall)
    check_idle(wall)
