"""When wall time may be read, and what a reading holds."""

import os

import pytest

from runners.llama_cpp.clock import DecodeClock
from runners.protocol import Refusal


def work():
    sum(range(20_000))


def test_one_thread_is_timed_on_any_machine(monkeypatch):
    """CPU time beside a load of 50; the reference is timed on both sides."""
    monkeypatch.setattr(os, "getloadavg", lambda: (50.0, 0.0, 0.0))
    clock = DecodeClock(work, wall=False)
    clock.check_idle()
    reading = clock.time(work, work)
    assert clock.name == "process CPU time over a reference decode"
    assert reading.clock_us > 0.0 and reading.reference_us > 0.0


def test_a_run_alone_is_timed_without_what_readies_it():
    """Neither that nor a reference is counted."""
    clock, passed_us = DecodeClock(work, wall=False), [0.0]
    clock.now = lambda: passed_us[0]

    def passes(us):
        return lambda: passed_us.append(passed_us.pop() + us)

    assert clock.alone_us(passes(7.0), passes(50.0)) == 7.0


def test_several_threads_are_timed_on_an_idle_machine_alone(monkeypatch):
    """The load is named, and the fix."""
    clock = DecodeClock(work, wall=True)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.4, 0.0, 0.0))
    with pytest.raises(Refusal, match=r"the load is 0\.4.*set threads: 1"):
        clock.check_idle()


def test_a_reference_that_spreads_is_refused(monkeypatch):
    """Also where the load average has not caught up."""
    clock = DecodeClock(work, wall=True)
    times = iter([100.0, 150.0] * 6 + [100.0] * 12)
    monkeypatch.setattr(clock, "time_reference", lambda: next(times))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    with pytest.raises(Refusal, match="spreads by 40%"):
        clock.check_idle()
    clock.check_idle()
