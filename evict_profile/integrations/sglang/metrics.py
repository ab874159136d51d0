"""Metrics of the plug-in, in the log and in SGLang's registry; and drift of the table.

A line has means since the last one: after `FIRST_STEPS`, then twice a minute. Predicted
is the cost of the parts that the table has, observed is the whole step.
"""

import functools
import logging
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from evict_profile.integrations.sglang.compat import assigned, on_gpu
from evict_profile.integrations.sglang.decision import StepOutcome
from evict_profile.runtime import CostTable, StepWatch
from evict_profile.runtime.staleness import WINDOW

FIRST_STEPS = 32
LOG_EVERY_S = 30.0
logger = logging.getLogger("evict_profile.sglang")

GAUGES = {
    "width": "Tokens that a request verifies in a step, mean.",
    "tokens_per_request": "Tokens that a request commits in a step, mean.",
    "predicted_us": "Cost of a step in the cost table, mean, microseconds.",
    "observed_us": "Time of a step, mean, microseconds.",
    "decision_us": "Time of a step that deciding takes, mean, microseconds.",
    "verify_ratio": "Time of a verification over its cost, median.",
}


LINE = (
    "evict-profile: %(steps)d steps, mean width %(width).2f, %(tokens_per_request).2f "
    "tokens a request and step, %(observed_us).0f us a step, predicted for "
    "%(includes)s %(predicted_us).0f us, decision %(decision_us).0f us"
)


class Metrics:
    """Logs means of steps; with `prometheus`, they are in SGLang's registry too."""

    def __init__(self, prometheus: bool = False) -> None:
        self.verify_ratio = 1.0
        self._gauges: dict[str, Any] = {}
        if prometheus:
            from prometheus_client import Gauge

            self._gauges = {
                name: Gauge(
                    f"evict_profile:{name}", text, multiprocess_mode="mostrecent"
                )
                for name, text in GAUGES.items()
            }
        self._sums: Counter[str] = Counter()
        self._since_s, self._has_logged = 0.0, False

    def add(self, outcome: StepOutcome) -> None:
        sums, choice = self._sums, outcome.choice
        if not sums:
            self._since_s = time.monotonic()
        added: dict[str, Any] = {
            "steps": 1,
            "requests": choice.requests,
            "committed": outcome.committed,
            "width": choice.width,
            "decision_us": choice.decision_us,
        }
        if outcome.step_us is not None:
            added["timed"] = 1
            added["observed_us"] = outcome.step_us
            added["predicted_us"] = float(choice.plan.step_cost_us)
        sums.update(added)
        first = not self._has_logged and sums["steps"] >= FIRST_STEPS
        due = time.monotonic() - self._since_s >= LOG_EVERY_S
        if (first or due) and sums["timed"]:
            self.log(choice.plan.includes)

    def log(self, includes: tuple[str, ...]) -> None:
        sums = self._sums
        means = {
            "verify_ratio": self.verify_ratio,
            "width": sums["width"] / sums["steps"],
            "tokens_per_request": sums["committed"] / sums["requests"],
            "decision_us": sums["decision_us"] / sums["steps"],
            "observed_us": sums["observed_us"] / sums["timed"],
            "predicted_us": sums["predicted_us"] / sums["timed"],
        }
        for name, gauge in self._gauges.items():
            gauge.set(means[name])
        logger.info(
            LINE, {**means, "steps": sums["steps"], "includes": " + ".join(includes)}
        )
        sums.clear()
        self._has_logged = True


class VerifyTimer:
    """Times the target's forward in verifications, without waiting for the device."""

    def __init__(self, model_runner: Any) -> None:
        self._on_gpu = on_gpu(model_runner)
        self._verifies = False
        self._ends: tuple[Any, Any] | None = None
        model_runner.forward = self._timed(model_runner.forward)

    def verifying(self) -> AbstractContextManager[None]:
        return assigned(self, _verifies=True)

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
    """Logs once when the table no longer describes the machine; decides nothing.

    A full window excludes clocks at start. With uniform activation, whose costs are an
    upper bound, only slower steps are drift.
    """

    def __init__(self, table: CostTable) -> None:
        self._path, self._guesses = table.path, table.activation.is_guess
        self._watch, self._warned = StepWatch(table), False

    def add(self, verify_us: float, estimated_us: float) -> float:
        """Add a step; returns the median of time over cost of the last steps."""
        self._watch.observe(verify_us, estimated_us)
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
                shlex.quote(str(self._path)),
                shlex.quote(sys.executable),
            )
        return seen.ratio
