"""Policies that decode the same text in turns, each with an engine of its own.

Turns are a few steps, in an order drawn anew each time, so that whatever the machine
does, it does to all; they are sized so that all policies end together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from evict_profile.replay.policies import MakePolicy, Policy, PolicyStep
from evict_profile.replay.simulate import reply_order
from evict_profile.stats import RESAMPLES, Bootstrap, Floats
from evict_profile.traces import Trace
from runners.clock import now
from runners.tree_decoding.serving import ContinuousBatching, Job, Served
from runners.tree_decoding.session import TraceSession

TURN = 2
"""Steps a turn of the policy that makes fewest steps."""
CPU = torch.device("cpu")

COLUMNS: dict[str, Callable[[Served], float]] = {
    "tokens": lambda s: sum(s.counted),
    "us": lambda s: s.step.times.step.us,
    "wall_us": lambda s: s.step.times.step.wall_us,
    "verify_us": lambda s: s.step.times.verify.us,
    "draft_us": lambda s: sum(t.us for t in s.step.times.levels),
    "fixed_us": lambda s: s.step.times.fixed.us,
    "verified": lambda s: sum(1 + t.token.shape[1] for t in s.step.trees),
    "committed": lambda s: sum(s.step.committed),
    "levels": lambda s: s.step.levels,
}
"""Numbers of one step."""


def serve_all(
    session: TraceSession,
    trace: Trace,
    policies: Mapping[str, MakePolicy],
    steps: Mapping[str, int],
    prompts: int,
    batch: int,
) -> dict[str, "Measured"]:
    """Decode the trace's replies with every policy; `steps`: how many each takes."""
    jobs = [session.job(ask) for ask in requests(trace, prompts)]
    working = {
        name: PolicyDecoding(session, make(), jobs, batch)
        for name, make in policies.items()
    }
    turns = turns_of(steps)
    rng = np.random.default_rng(0)
    while busy := [name for name, one in working.items() if not one.serving.ended]:
        for name in rng.permutation(busy):
            working[name].take_turn(turns[name])
    return {
        name: Measured(one.steps, turns[name], one.policy.us, len(jobs))
        for name, one in working.items()
    }


def turns_of(steps: Mapping[str, int]) -> dict[str, int]:
    """Steps of a turn, in proportion to the steps that each policy makes in all."""
    fewest = min(steps.values())
    return {name: round(TURN * count / fewest) for name, count in steps.items()}


def requests(trace: Trace, prompts: int) -> list[dict[str, Any]]:
    """The requests that had these replies traced."""
    pairs = zip(trace.replies, trace.tokens.tolist(), strict=True)
    return [asdict(r) | {"tokens": n, "prompts": prompts} for r, n in pairs]


class Timed:
    """A policy, or one step of it, and the CPU time that it took to decide."""

    def __init__(self, policy: Policy) -> None:
        self.depth, self.us = policy.depth, 0.0
        self._begin = self._timed(policy.begin)
        self.observe = self._timed(policy.observe)

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        step = self._begin(batch, context, nodes)
        asked = {name: getattr(step, name) for name in ("deeper", "extend", "keep")}
        return cast(
            PolicyStep,
            SimpleNamespace(**{name: self._timed(ask) for name, ask in asked.items()}),
        )

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begun = now(CPU)
            result = method(*given)
            self.us += (now(CPU) - begun).us
            return result

        return run


class PolicyDecoding:
    """A policy at work, with an engine of its own."""

    def __init__(
        self, session: TraceSession, policy: Policy, jobs: Sequence[Job], batch: int
    ) -> None:
        """`jobs` are decoded in the order in which a replay simulates them."""
        self.policy = Timed(policy)
        engine = session.engine(batch, max(job.tokens for job in jobs), None)
        order = reply_order(len(jobs), 0)
        self.serving = ContinuousBatching(engine, self.policy, jobs, order, batch)
        self.steps: list[list[float]] = []

    def take_turn(self, steps: int) -> None:
        """So many steps, or as many as are left."""
        for _ in range(steps):
            if not self.serving.ended:
                served = self.serving.serve()
                self.steps.append([float(read(served)) for read in COLUMNS.values()])


class Measured:
    """What one policy did on the real clock, step by step."""

    def __init__(
        self,
        steps: Sequence[Sequence[float]],
        turn: int,
        decided_us: float,
        replies: int,
    ) -> None:
        """`steps`: of each its `COLUMNS`; `turn`: steps of a turn."""
        self.turn, self.replies = turn, replies
        self.decision_us = decided_us / len(steps)
        values = np.array(steps, dtype=np.float64).T
        self.columns: dict[str, Floats] = dict(zip(COLUMNS, values, strict=True))

    def mean(self, name: str) -> float:
        """Of a step."""
        return float(self.columns[name].mean())

    def tokens_per_s(self, clock: str) -> Floats:
        """As measured, then in resamples of turns: float64 [1 + resamples]."""
        return 1e6 * self.ratio(self.columns["tokens"], self.columns[clock], seed=0)

    def over(self, other: "Measured") -> Floats:
        """Its speed over another's on the same text, float64 [1 + resamples].

        Of all of it, then of resampled shares, as many as there are replies.
        """
        us = np.stack([one.us_by_share() for one in (other, self)], axis=1)
        theirs, own = Bootstrap(self.replies).sums(us)
        ratio: Floats = theirs / own
        return ratio

    def us_by_share(self) -> Floats:
        """Time on each of equal shares of the text, float64 [replies]."""
        tokens, us = (
            np.concatenate([[0.0], self.columns[name].cumsum()])
            for name in ("tokens", "us")
        )
        ends = np.linspace(0.0, tokens[-1], self.replies + 1)
        shares: Floats = np.diff(np.interp(ends, tokens, us))
        return shares

    def ratio(self, above: Floats, below: Floats, seed: int) -> Floats:
        """Ratio of two sums over steps, then of resampled turns: [1 + resamples].

        The steps of a turn are drawn together, because they share a moment.
        """
        begins = np.arange(0, len(above), self.turn)
        turns = np.stack([np.add.reduceat(x, begins) for x in (above, below)])
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, len(begins), (RESAMPLES, len(begins)))
        sums = np.hstack([turns.sum(axis=1)[:, None], turns[:, drawn].sum(axis=2)])
        ratio: Floats = sums[0] / sums[1]
        return ratio
