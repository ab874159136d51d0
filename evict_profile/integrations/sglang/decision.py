"""How many tokens each request of a batch verifies, and how such decisions turn out.

A step is timed from its copy to the next step's: copies wait for the device, so exactly
one step lies between. Steps with a prefill between are not timed.
"""

import logging
import math
import shlex
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evict_profile.integrations.sglang.tree import Ints, depths, parents
from evict_profile.records import replace
from evict_profile.runtime import CostTable, Plan, StepWatch, Truncator
from evict_profile.runtime.depth import DepthChoice
from evict_profile.runtime.learning import Learner
from evict_profile.runtime.staleness import WINDOW

FIRST_STEPS = 32
REGRET_STEPS, REGRET_MEMORY = 64, 8
"""Steps from one estimate of the regret to the next, and estimates of its mean."""

LOG_EVERY_S = 30.0
logger = logging.getLogger("evict_profile.sglang")

GAUGES = {
    "width": "Tokens that a request verifies in a step, mean.",
    "tokens_per_request": "Tokens that a request commits in a step, mean.",
    "predicted_us": "Cost of a step in the cost table, mean, microseconds.",
    "observed_us": "Time of a step, mean, microseconds.",
    "decision_us": "Time of a step that deciding takes, mean, microseconds.",
    "exchange_us": "Time of a step in exchanges between ranks, mean, microseconds.",
    "verify_ratio": "Time of a verification over its cost, median.",
    "cost_scale": "Level of the machine over the cost table's, learnt.",
    "union_share": "Growth by the union over that of uniform routing, learnt.",
    "regret": "Share of tokens that the cost table uncorrected would lose, mean.",
}

LINE = (
    "evict-profile: %(steps)d steps, mean width %(width).2f, %(tokens_per_request).2f "
    "tokens a request and step, %(observed_us).0f us a step, predicted for "
    "%(includes)s %(predicted_us).0f us, decision %(decision_us).0f us, verification "
    "%(verify_ratio).2f times its cost"
)
EXCHANGE = ", exchange between ranks %(exchange_us).0f us"


@dataclass(frozen=True)
class WidthChoice:
    """The runtime's plan at the width of one step, and the host time that it took.

    `verify_us` is the table's cost of verification; None outside its measurements.
    """

    plan: Plan
    decision_us: float
    verify_us: float | None = None

    @property
    def requests(self) -> int:
        return len(self.plan.host_keep)

    @property
    def width(self) -> int:
        return int(self.plan.tokens) // self.requests

    @property
    def places(self) -> torch.Tensor:
        """int64 [B, width - 1], places of the nodes to verify."""
        kept = self.plan.host_keep
        return torch.from_numpy(kept.nonzero()[1].reshape(self.requests, -1))


@dataclass(frozen=True)
class StepOutcome:
    choice: WidthChoice
    committed: int
    step_us: float | None


class Chooser:
    """Decides widths from a table, and learns from how the steps went.

    The table is of a step that extends the drafter's cache. SGLang's trees are decoded
    greedily or sampled target-only, where any truncation is lossless.
    """

    def __init__(
        self, table: CostTable, capture_sizes: Sequence[int], learns: bool = True
    ) -> None:
        self._table, self._capture_sizes = table, capture_sizes
        self._learns, self._steps, self.regret = learns, 0, 0.0
        self.depth: DepthChoice | None = None
        self._contexts = cache(table.contexts)
        self._truncator = Truncator(
            self._table,
            drafts="topk",
            acceptance="target-only",
            allocation="uniform",
            capture_sizes=capture_sizes,
        )
        acceptance, drafting = table.acceptance, table.drafting
        self._by_parent = bool(acceptance and acceptance.conditional)
        per_rank = bool(acceptance and acceptance.per_rank)
        self.can_pause = bool(drafting and per_rank and 1 in capture_sizes)
        verifies_alone = table.includes == ("verify",)
        self._measured = {s.batch for s in table.staircases if verifies_alone}
        self._last: WidthChoice | None = None
        self._since_us: float | None = None

    def choose(
        self,
        path_prob: NDArray[Any],
        index: Ints,
        parent_list: Ints,
        topk: int,
        context: float,
    ) -> WidthChoice:
        """Choose the width for trees, and the nodes to verify; see `Drafted`."""
        begun_us = _now_us()
        requests, nodes = path_prob.shape
        levels = int(depths(index.max(), topk)) if self._table.drafting else None
        levels = self.depth.depth if self.depth else levels
        parent = parents(index, parent_list, topk, np) if self._by_parent else None
        step = self._truncator.begin(requests, self._inside(requests, context), nodes)
        plan = step.plan_drafted(path_prob, levels, parent)
        self._steps += 1
        if self._learns and not self._steps % REGRET_STEPS:
            self.regret += (step.regret() - self.regret) / REGRET_MEMORY
        captured = self._at_captured_width(plan, path_prob)
        return self._chosen(captured, context, begun_us)

    def steps(self, requests: int) -> int | None:
        """Levels to draft in the coming step, if there is a choice; once a step."""
        if self.depth is None or self._table.drafting is None:
            return None
        return self.depth.choose(self._table.drafting.at(requests))

    def pause(self, requests: int, context: float) -> WidthChoice | None:
        if not self.can_pause:
            return None
        begun_us = _now_us()
        step = self._truncator.begin(requests, self._inside(requests, context))
        if step.deeper():
            return None
        return self._chosen(step.plan(), context, begun_us)

    def learn(
        self, accepted: NDArray[Any], verify_us: float | None = None
    ) -> StepOutcome | None:
        """Learn how the last step went; before the next choice.

        Args:
            accepted: tokens that each request committed.
            verify_us: time of its verification.
        """
        (last, self._last), since_us = (self._last, None), self._since_us
        if last is None and since_us is not None:
            return None  # learnt already, when the pause was decided
        self._since_us = now_us = _now_us()
        if last is None:
            return None
        step_us = None if since_us is None else now_us - since_us
        outcome = StepOutcome(last, int(accepted.sum()), step_us)
        drafting, has_drafted = self._table.drafting, last.plan.host_keep.shape[1] > 0
        if self.depth and drafting and has_drafted:
            draft_us = drafting.at(last.requests).beside_us(self.depth.depth)
            self.depth.observe(accepted - 1, last.plan.step_cost_us - draft_us)
        known = self._learns and last.verify_us is not None
        self._truncator.observe(
            last.plan, outcome.committed, step_us, verify_us if known else None
        )
        return outcome

    @property
    def learner(self) -> Learner:
        learner = self._truncator.learner
        assert learner, "a chooser plans from a table"
        return learner

    def costs(self, requests: int) -> bool:
        least, most = self._table.fit.domain["batch"]
        return least <= requests <= most

    def skip(self) -> None:
        self._last = self._since_us = None

    def exclude_prefill(self) -> None:
        self._since_us = None

    def _chosen(self, plan: Plan, context: float, begun_us: float) -> WidthChoice:
        requests = len(plan.host_keep)
        inside = context == self._inside(requests, context)
        known = inside and requests in self._measured
        verify_us = self._truncator.forward_us(plan) if known else None
        self._last = WidthChoice(plan, _now_us() - begun_us, verify_us)
        return self._last

    def _at_captured_width(self, plan: Plan, path_prob: NDArray[Any]) -> Plan:
        """The plan at the next captured width, filled with the most probable nodes of
        score 0.
        """
        requests = len(path_prob)
        decided = int(plan.tokens) // requests
        width = self._capture_sizes[bisect_left(self._capture_sizes, decided)]
        if width == decided:
            return plan
        kept_first = np.where(plan.host_keep, -np.inf, -path_prob)
        best = kept_first.argsort(axis=1, kind="stable")
        keep = np.zeros(path_prob.shape, np.bool_)
        np.put_along_axis(keep, best[:, : width - 1], True, axis=1)
        return replace(
            plan,
            host_widths=np.full_like(plan.host_widths, width),
            host_keep=keep,
            tokens=width * requests,
        )

    def _inside(self, requests: int, context: float) -> float:
        least, most = self._contexts(requests)
        return min(max(context, least), most)


class Metrics:
    """Logs means of steps; with `prometheus`, they are in SGLang's registry too.

    Predicted is the cost of the parts that the table has, observed is the whole step.
    """

    depth: DepthChoice | None = None

    def __init__(self, prometheus: bool = False, ranks: int = 1) -> None:
        self.verify_ratio, self.cost_scale, self.union_share = 1.0, 1.0, math.nan
        self.regret = 0.0
        self._line = LINE + (EXCHANGE if ranks > 1 else "")
        self._gauges: dict[str, Any] = {}
        if prometheus:
            from prometheus_client import Gauge

            self._gauges = {
                name: Gauge(
                    f"evict_profile:{name}", text, multiprocess_mode="mostrecent"
                )
                for name, text in GAUGES.items()
                if ranks > 1 or name != "exchange_us"
            }
        self._sums: Any = Counter()
        self._since_s, self._has_logged = 0.0, False

    def add(self, outcome: StepOutcome, exchange_us: float = 0.0) -> None:
        sums, choice = self._sums, outcome.choice
        if not sums:
            self._since_s = time.monotonic()
        sums.update(steps=1, requests=choice.requests, committed=outcome.committed)
        sums.update(width=choice.width, decision_us=choice.decision_us)
        sums.update(exchange_us=exchange_us)
        if outcome.step_us is not None:
            predicted_us = float(choice.plan.step_cost_us)
            sums.update(timed=1, observed_us=outcome.step_us, predicted_us=predicted_us)
        first = not self._has_logged and sums["steps"] >= FIRST_STEPS
        due = time.monotonic() - self._since_s >= LOG_EVERY_S
        if (first or due) and sums["timed"]:
            self.log(choice.plan.includes)

    def log(self, includes: tuple[str, ...]) -> None:
        sums = self._sums
        means = {
            "verify_ratio": self.verify_ratio,
            "cost_scale": self.cost_scale,
            "union_share": self.union_share,
            "regret": self.regret,
            "width": sums["width"] / sums["steps"],
            "tokens_per_request": sums["committed"] / sums["requests"],
            "decision_us": sums["decision_us"] / sums["steps"],
            "exchange_us": sums["exchange_us"] / sums["steps"],
            "observed_us": sums["observed_us"] / sums["timed"],
            "predicted_us": sums["predicted_us"] / sums["timed"],
        }
        for name, gauge in self._gauges.items():
            gauge.set(means[name])
        logger.info(
            self._line + (f", {self.depth}" if self.depth else ""),
            {**means, "steps": sums["steps"], "includes": " + ".join(includes)},
        )
        sums.clear()
        self._has_logged = True


class DriftWatch:
    """Logs once when the table no longer describes the machine; decides nothing.

    A full window excludes clocks at start. With uniform activation, whose costs are an
    upper bound, only slower steps are drift.
    """

    def __init__(self, table: CostTable) -> None:
        self._path, self._guesses = table.path, table.activation.is_guess
        self._watch, self._warned = StepWatch(table), False
        self._logged = False, False

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

    def log_other_machine(self, learner: Learner) -> None:
        """Log once that costs are of another machine, and once that none settle."""
        found = learner.is_other, learner.is_lost
        if found == self._logged:
            return
        self._logged = found
        logger.warning(
            "evict-profile: the cost table %s is of another machine (level %.2f times "
            "the table's, growth %.2f times that of uniform routing); %s; measure this "
            "machine with: evict-profile sweep MODEL",
            self._path,
            1.0 + learner.level,
            learner.union_share,
            "no costs settle, and whole trees are verified"
            if learner.is_lost
            else "its costs are learnt, at first by forced widths",
        )


def _now_us() -> float:
    return time.perf_counter_ns() / 1e3
