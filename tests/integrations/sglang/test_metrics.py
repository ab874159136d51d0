"""Means over steps, told now and then; and drift from the table, told once."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from evict_profile.integrations.sglang import metrics
from evict_profile.integrations.sglang.decision import Choice, Outcome
from evict_profile.integrations.sglang.metrics import (
    FIRST_STEPS,
    LOG_EVERY_S,
    DriftWatch,
    Metrics,
    VerifyTimer,
)
from evict_profile.runtime import CostTable
from evict_profile.runtime.staleness import WINDOW

NAMES = [
    "width",
    "tokens_per_request",
    "predicted_us",
    "observed_us",
    "decision_us",
    "verify_ratio",
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still until it is set."""
    now = SimpleNamespace(s=metrics.time.monotonic())
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now.s)
    return now


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged."""
    caplog.set_level(logging.INFO, "evict_profile.sglang")
    return caplog


def outcome(
    width: int = 4,
    requests: int = 2,
    committed: int = 5,
    step_us: float | None = 300.0,
    predicted_us: float = 200.0,
) -> Outcome:
    """A step."""
    plan = SimpleNamespace(step_cost_us=predicted_us, includes=("verify", "draft"))
    choice = Choice(width, plan, requests, 100.0, 10.0)
    return Outcome(choice, committed, step_us)


def told(made: Metrics) -> dict[str, float]:
    """The means so far."""
    return made._sums.means()


def test_means_are_over_steps_and_requests(clock: SimpleNamespace) -> None:
    """Width and decision a step, tokens a request."""
    made = Metrics()
    made.add(outcome(width=4, requests=2, committed=5))
    made.add(outcome(width=1, requests=1, committed=1))
    found = told(made)
    assert found["width"] == 2.5
    assert found["tokens_per_request"] == 2.0
    assert found["decision_us"] == 10.0


def test_times_are_over_the_steps_that_have_one(clock: SimpleNamespace) -> None:
    """Predicted over the same steps, so that the two can be compared."""
    made = Metrics()
    made.add(outcome(step_us=300.0, predicted_us=200.0))
    made.add(outcome(step_us=None, predicted_us=9e9))
    found = told(made)
    assert (found["observed_us"], found["predicted_us"]) == (300.0, 200.0)


def test_without_any_time_there_is_none(clock: SimpleNamespace) -> None:
    """And nothing is divided by it."""
    made = Metrics()
    made.add(outcome(step_us=None))
    assert (told(made)["observed_us"], told(made)["predicted_us"]) == (0.0, 0.0)


def test_the_first_line_comes_after_the_first_steps(
    clock: SimpleNamespace, log: pytest.LogCaptureFixture
) -> None:
    """So that it is seen to work."""
    made = Metrics()
    for _ in range(FIRST_STEPS - 1):
        made.add(outcome())
    assert not log.messages
    made.add(outcome())
    assert log.messages == [
        f"evict-profile: {FIRST_STEPS} steps, mean width 4.00, 2.50 tokens a request "
        "and step, 300 us a step, predicted for verify + draft 200 us, decision 10 us"
    ]


def test_later_lines_come_with_time(
    clock: SimpleNamespace, log: pytest.LogCaptureFixture
) -> None:
    """However many steps there were; each over its own steps."""
    made = Metrics()
    for _ in range(10 * FIRST_STEPS):
        made.add(outcome())
    assert len(log.messages) == 1
    clock.s += LOG_EVERY_S + 1.0
    made.add(outcome())
    made.add(outcome())
    assert len(log.messages) == 2
    assert log.messages[1].startswith(f"evict-profile: {9 * FIRST_STEPS + 1} steps")


def test_a_slow_server_does_not_wait_for_the_first_steps(
    clock: SimpleNamespace, log: pytest.LogCaptureFixture
) -> None:
    """Half a minute is enough."""
    made = Metrics()
    for _ in range(2):
        clock.s += LOG_EVERY_S + 1.0
        made.add(outcome())
    assert len(log.messages) == 1


def test_time_without_steps_does_not_count(
    clock: SimpleNamespace, log: pytest.LogCaptureFixture
) -> None:
    """Loading and idling: else the first line would be of one step."""
    made = Metrics()
    clock.s += LOG_EVERY_S + 1.0
    made.add(outcome())
    assert not log.messages


def test_nothing_is_told_before_a_time_is_known(
    clock: SimpleNamespace, log: pytest.LogCaptureFixture
) -> None:
    """A step after a prefill has none, and no mean can be made of it."""
    made = Metrics()
    for _ in range(2):
        clock.s += LOG_EVERY_S + 1.0
        made.add(outcome(step_us=None))
    assert not log.messages


def test_gauges_show_what_the_log_says(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the plug-in's name, the newest value of all processes."""
    gauges: dict[str, float] = {}

    class Gauge:
        def __init__(self, name: str, text: str, multiprocess_mode: str) -> None:
            assert text.endswith(".") and multiprocess_mode == "mostrecent"
            self.name = name
            gauges[name] = -1.0

        def set(self, value: float) -> None:
            gauges[self.name] = value

    fake = ModuleType("prometheus_client")
    fake.Gauge = Gauge
    monkeypatch.setitem(sys.modules, "prometheus_client", fake)
    made = Metrics(prometheus=True)
    made.verify_ratio = 1.5
    made.add(outcome())
    made.tell()
    values = [4.0, 2.5, 200.0, 300.0, 10.0, 1.5]
    named = zip(NAMES, values, strict=True)
    assert gauges == {f"evict_profile:{name}": value for name, value in named}


def test_a_verification_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other forwards of the target are not."""
    now = SimpleNamespace(us=0.0)
    monkeypatch.setattr(VerifyTimer, "_mark", lambda self: now.us)

    def forward(us: float) -> str:
        now.us += us
        return "logits"

    runner = SimpleNamespace(device="cpu", forward=forward)
    timer = VerifyTimer(runner)
    runner.forward(50.0)
    assert timer.take_us() is None
    with timer.verifying():
        assert runner.forward(70.0) == "logits"
    assert (timer.take_us(), timer.take_us()) == (70.0, None)


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
def test_drift_is_told_once_with_the_command_to_recheck(
    plain_table: CostTable,
    full_table: CostTable,
    log: pytest.LogCaptureFixture,
    calibrated: bool,
    ratio: float,
    drifts: bool,
) -> None:
    """A guess of how many experts are activated is the most that there can be, so that
    faster steps than it prices are no drift."""
    table = full_table if calibrated else plain_table
    watch = DriftWatch(table)
    for _ in range(WINDOW - 1):
        assert watch.add(ratio * 300.0, 300.0) == pytest.approx(ratio)
    assert not log.messages
    for _ in range(WINDOW):
        watch.add(ratio * 300.0, 300.0)
    assert len(log.messages) == drifts
    if drifts:
        assert f"evict-profile check {table.path} --recheck" in log.text
