"""What the plug-in did, in the log and where SGLang keeps its metrics; and whether
its table still describes the machine.

A mean over the steps since the last line: one after the first steps, so that it is seen
to work, then two a minute while there are steps. Predicted is what the table
says of the parts of a step that it prices, observed is the whole step; the difference
is what the table does not know, or does not know any more. The time of verification it
must know: `StepWatch` compares that with its price, step by step.
"""

import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from evict_profile.integrations.sglang.decision import Outcome
from evict_profile.runtime import CostTable, StepWatch
from evict_profile.runtime.staleness import WINDOW

FIRST_STEPS = 32
LOG_EVERY_S = 30.0
logger = logging.getLogger("evict_profile.sglang")


@dataclass
class Sums:
    """Sums over the steps since the last line."""

    steps: int = 0
    timed: int = 0
    requests: int = 0
    width: int = 0
    committed: int = 0
    predicted_us: float = 0.0
    observed_us: float = 0.0
    decision_us: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one step."""
        choice = outcome.choice
        self.steps += 1
        self.requests += choice.requests
        self.width += choice.width
        self.committed += outcome.committed
        self.decision_us += choice.decision_us
        if outcome.step_us is not None:
            self.timed += 1
            self.observed_us += outcome.step_us
            self.predicted_us += float(choice.plan.step_cost_us)

    def means(self) -> dict[str, float]:
        """Means over the steps, by the names of the metrics."""
        timed = max(1, self.timed)
        return {
            "width": self.width / self.steps,
            "tokens_per_request": self.committed / self.requests,
            "predicted_us": self.predicted_us / timed,
            "observed_us": self.observed_us / timed,
            "decision_us": self.decision_us / self.steps,
        }


@dataclass
class Metrics:
    """Collects steps, and tells of them now and then.

    Attributes:
        verify_ratio: the last steps' time of verification over its price, median.
    """

    prometheus: bool = False
    verify_ratio: float = 1.0
    _sums: Sums = field(default_factory=Sums)
    _since_s: float = 0.0
    _told: bool = False
    _includes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._gauges = _gauges() if self.prometheus else {}

    def add(self, outcome: Outcome) -> None:
        """Add one step, and tell if it is time."""
        if not self._sums.steps:
            self._since_s = time.monotonic()
        self._sums.add(outcome)
        self._includes = outcome.choice.plan.includes
        first = not self._told and self._sums.steps >= FIRST_STEPS
        due = time.monotonic() - self._since_s >= LOG_EVERY_S
        if self._sums.timed and (first or due):
            self.tell()

    def tell(self) -> None:
        """Log the means since the last time, and begin anew."""
        means = {**self._sums.means(), "verify_ratio": self.verify_ratio}
        for name, gauge in self._gauges.items():
            gauge.set(means[name])
        logger.info("%s", self._sentence(means))
        self._sums, self._told = Sums(), True

    def _sentence(self, means: dict[str, float]) -> str:
        return (
            f"evict-profile: {self._sums.steps} steps, mean width "
            f"{means['width']:.2f}, {means['tokens_per_request']:.2f} tokens a "
            f"request and step, {means['observed_us']:.0f} us a step, predicted for "
            f"{' + '.join(self._includes)} {means['predicted_us']:.0f} us, "
            f"decision {means['decision_us']:.0f} us"
        )


def _gauges() -> dict[str, Any]:
    """Gauges in SGLang's own registry, which its /metrics endpoint shows."""
    from prometheus_client import Gauge

    said = {
        "width": "Tokens that a request verifies in a step, mean.",
        "tokens_per_request": "Tokens that a request commits in a step, mean.",
        "predicted_us": "Price of a step in the cost table, mean, microseconds.",
        "observed_us": "Time of a step, mean, microseconds.",
        "decision_us": "Time of a step that deciding takes, mean, microseconds.",
        "verify_ratio": "Time of a verification over its price, median.",
    }
    return {
        name: Gauge(f"evict_profile:{name}", text, multiprocess_mode="mostrecent")
        for name, text in said.items()
    }


class VerifyTimer:
    """Times the target's forward in verifications, without waiting for the device."""

    def __init__(self, model_runner: Any) -> None:
        """Stand around a model runner's `forward`."""
        self._on_gpu = str(model_runner.device).startswith("cuda")
        self._verifies = False
        self._ends: tuple[Any, Any] | None = None
        model_runner.forward = self._timed(model_runner.forward)

    @contextmanager
    def verifying(self) -> Iterator[None]:
        """The forward in this context is a verification."""
        self._verifies = True
        try:
            yield
        finally:
            self._verifies = False

    def take_us(self) -> float | None:
        """Time of the last verification, once; None where none has ended since."""
        ends, self._ends = self._ends, None
        if ends is None:
            return None
        begun, ended = ends
        if not self._on_gpu:
            return float(ended - begun)
        return 1e3 * float(begun.elapsed_time(ended)) if ended.query() else None

    def _timed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._verifies:
                return forward(*args, **kwargs)
            begun = self._mark()
            out = forward(*args, **kwargs)
            self._ends = begun, self._mark()
            return out

        return timed

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter_ns() / 1e3
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class DriftWatch:
    """Says once when the table no longer describes the machine. It decides nothing.

    A full window of steps is needed, so that a start at other clocks is not taken for
    drift. Where the table guesses how many experts a workload activates, its prices are
    those of uniform routing, the most that there can be: only slower steps tell of
    drift.
    """

    def __init__(self, table: CostTable) -> None:
        """Watch the prices of a table."""
        self._path, self._guesses = table.path, table.activation.is_guess
        self._watch, self._warned = StepWatch(table), False

    def add(self, verify_us: float, price_us: float) -> float:
        """Add a step: the time of its verification, and the table's price of it.

        Returns:
            The median of time over price of the last steps.
        """
        self._watch.observe(verify_us, price_us)
        seen = self._watch.report()
        drifted = seen.verdict == "drifted" and seen.steps >= WINDOW
        as_guessed = self._guesses and seen.ratio < seen.low
        if drifted and not as_guessed and not self._warned:
            self._warned = True
            logger.warning(
                "evict-profile: the cost table no longer describes this machine "
                "(verification %s); look closer with: evict-profile check %s --recheck "
                "--python %s",
                seen,
                self._path,
                sys.executable,
            )
        return seen.ratio
