"""Means over steps, logged now and then; and drift from the table, logged once."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from evict_profile.integrations.sglang import decision
from evict_profile.integrations.sglang.decision import (
    FIRST_STEPS,
    LOG_EVERY_S,
    DriftWatch,
    Metrics,
    StepOutcome,
    WidthChoice,
)
from evict_profile.records import replace
from evict_profile.runtime.depth import DepthChoice
from evict_profile.runtime.learning import Learner
from evict_profile.runtime.staleness import WINDOW

LATER_S = LOG_EVERY_S + 1.0


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=decision.time.monotonic())
    monkeypatch.setattr(decision.time, "monotonic", lambda: now.s)
    return now


@pytest.fixture
def made(clock):
    return Metrics()


def outcome(width=4, requests=2, committed=5, step_us=300.0, predicted_us=200.0):
    plan = SimpleNamespace(
        step_cost_us=predicted_us,
        includes=("verify", "draft"),
        host_keep=requests * [0],
        tokens=width * requests,
    )
    return StepOutcome(WidthChoice(plan, 10.0), committed, step_us)


def test_means_are_over_steps_and_requests_and_times_over_steps_that_have_one(
    made, log
):
    made.add(outcome(width=4, requests=2, committed=5, step_us=None, predicted_us=9e9))
    made.add(outcome(width=1, requests=1, committed=1))
    made.log(("verify",))
    assert log.messages == [
        "evict-profile: 2 steps, mean width 2.50, 2.00 tokens a request and step, "
        "300 us a step, predicted for verify 200 us, decision 10 us, verification "
        "1.00 times its cost"
    ]


def test_the_time_of_exchanges_is_a_mean_over_steps(log):
    made = Metrics(ranks=2)
    for exchange_us in (30.0, 50.0):
        made.add(outcome(), exchange_us)
    made.log(("verify",))
    assert log.messages[0].endswith(", exchange between ranks 40 us")


def test_the_depth_and_its_changes_are_logged(made, log):
    made.depth = DepthChoice((2, 5))
    made.depth.switches = 3
    made.add(outcome())
    made.log(("verify",))
    assert log.messages[0].endswith(", 5 levels drafted after 3 changes")


def test_the_first_line_comes_after_the_first_steps(made, clock, log):
    """Time without steps, of loading and idling, does not count."""
    clock.s += LATER_S
    for _ in range(FIRST_STEPS - 1):
        made.add(outcome())
    assert not log.messages
    made.add(outcome())
    assert log.messages == [
        f"evict-profile: {FIRST_STEPS} steps, mean width 4.00, 2.50 tokens a request "
        "and step, 300 us a step, predicted for verify + draft 200 us, decision 10 us, "
        "verification 1.00 times its cost"
    ]


def test_later_lines_come_with_time(made, clock, log):
    for _ in range(10 * FIRST_STEPS):
        made.add(outcome())
    assert len(log.messages) == 1
    clock.s += LATER_S
    made.add(outcome())
    made.add(outcome())
    assert len(log.messages) == 2
    assert log.messages[1].startswith(f"evict-profile: {9 * FIRST_STEPS + 1} steps")


@pytest.mark.parametrize(("step_us", "lines"), [(300.0, 1), (None, 0)])
def test_a_slow_server_logs_by_time_once_a_step_has_one(
    made, clock, log, step_us, lines
):
    for _ in range(2):
        clock.s += LATER_S
        made.add(outcome(step_us=step_us))
    assert len(log.messages) == lines


def test_gauges_show_what_the_log_says(clock, monkeypatch):
    gauges: dict[str, float] = {}

    class Gauge:
        def __init__(self, name, text, multiprocess_mode):
            assert text.endswith(".") and multiprocess_mode == "mostrecent"
            self.name = name

        def set(self, value):
            gauges[self.name] = value

    fake = ModuleType("prometheus_client")
    fake.Gauge = Gauge
    monkeypatch.setitem(sys.modules, "prometheus_client", fake)
    made = Metrics(prometheus=True)
    made.verify_ratio, made.cost_scale, made.union_share = 1.5, 1.1, 0.4
    made.regret = 0.02
    made.add(outcome())
    made.log(("verify",))
    assert gauges == {
        "evict_profile:width": 4.0,
        "evict_profile:tokens_per_request": 2.5,
        "evict_profile:predicted_us": 200.0,
        "evict_profile:observed_us": 300.0,
        "evict_profile:decision_us": 10.0,
        "evict_profile:verify_ratio": 1.5,
        "evict_profile:cost_scale": 1.1,
        "evict_profile:union_share": 0.4,
        "evict_profile:regret": 0.02,
    }


@pytest.mark.parametrize(
    ("calibrated", "ratio", "drifts"),
    [
        (True, 1.0, False),
        (True, 2.0, True),
        (True, 0.4, True),
        (False, 1.0, False),
        (False, 2.0, True),
        (False, 0.4, False),
    ],
)
def test_drift_is_logged_once_with_the_command_to_recheck(
    plain_table, full_table, log, calibrated, ratio, drifts
):
    """A guess of how many experts are activated is the most that there can be, so that
    steps faster than its costs are no drift."""
    table = full_table if calibrated else plain_table
    table = replace(table, path=Path("my tables/1.0.0.json"))
    watch = DriftWatch(table)
    for _ in range(WINDOW - 1):
        assert watch.add(ratio * 300.0, 300.0) == pytest.approx(ratio)
    assert not log.messages
    for _ in range(WINDOW):
        watch.add(ratio * 300.0, 300.0)
    assert len(log.messages) == drifts
    if drifts:
        assert "evict-profile check 'my tables/1.0.0.json' --recheck" in log.text


def test_a_table_of_another_machine_is_logged_once_and_that_none_settle(
    plain_table, log
):
    watch, learner = DriftWatch(plain_table), Learner()
    watch.log_other_machine(learner)
    assert not log.messages
    learner.is_other = True
    watch.log_other_machine(learner)
    watch.log_other_machine(learner)
    learner.is_lost = True
    watch.log_other_machine(learner)
    first, last = log.messages
    assert "by forced widths" in first and "evict-profile sweep MODEL" in first
    assert "whole trees are verified" in last
