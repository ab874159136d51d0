"""Policies that decode the same text in turns, each with an engine of its own.

Turns are a few steps, in an order drawn anew each time, so that whatever the machine
does, it does to all; they are sized so that all policies end together.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from evict_profile.replay.policies import MakePolicy, Policy
from evict_profile.replay.simulate import reply_order
from evict_profile.stats import Floats
from evict_profile.traces import Trace
from evict_profile.traces.resampling import RESAMPLES, Bootstrap
from examples.small_world.engine.engine import Engine, EngineStep
from examples.small_world.engine.session import Job, TraceSession

TURN = 2
"""Steps a turn of the policy that makes fewest steps."""
CPU = torch.device("cpu")

COLUMNS: dict[str, Callable[[EngineStep], float]] = {
    "us": lambda step: step.times.step.us,
    "verify_us": lambda step: step.times.verify.us,
    "draft_us": lambda step: sum(t.us for t in step.times.levels),
    "fixed_us": lambda step: step.times.fixed.us,
    "verified": lambda step: sum(1 + t.token.shape[1] for t in step.trees),
    "committed": lambda step: sum(step.committed),
    "levels": lambda step: step.levels,
}
"""Numbers of one step; `tokens`, those of its replies, are counted beside them."""


def serve_all(
    session: TraceSession,
    trace: Trace,
    policies: Mapping[str, MakePolicy],
    steps: Mapping[str, int],
    prompts: int,
    batch: int,
) -> dict[str, "Measured"]:
    """Decode the trace's replies with every policy; `steps`: how many each takes."""
    jobs = [
        session.job(reply, prompts, tokens)
        for reply, tokens in zip(trace.replies, trace.tokens.tolist(), strict=True)
    ]
    longest = max(job.tokens for job in jobs)
    working = {
        name: PolicyDecoding(session.engine(batch, longest), make(), jobs, batch)
        for name, make in policies.items()
    }
    turns = turns_of(steps)
    rng = np.random.default_rng(0)
    while busy := [name for name, one in working.items() if not one.ended]:
        for name in rng.permutation(busy):
            working[name].take_turn(turns[name])
    return {
        name: Measured(one.steps, turns[name], len(jobs))
        for name, one in working.items()
    }


def turns_of(steps: Mapping[str, int]) -> dict[str, int]:
    """Steps of a turn, in proportion to the steps that each policy makes in all."""
    fewest = min(steps.values())
    return {name: round(TURN * count / fewest) for name, count in steps.items()}


class PolicyDecoding:
    """A policy at work on jobs, with an engine of its own, as a replay simulates it.

    One that ends makes way for the next before the next step, lower slots first, so
    that the batch is always full; the run ends with the step in which as many tokens
    were counted as all replies have together. Prompts are run off the clock.
    """

    def __init__(
        self, engine: Engine, policy: Policy, jobs: Sequence[Job], batch: int
    ) -> None:
        self.engine, self.policy, self.jobs = engine, policy, jobs
        self.order = reply_order(len(jobs), 0)
        self.left = sum(job.tokens for job in jobs)
        self.slots = [next(self.order) for _ in range(batch)]
        self.steps: list[dict[str, float]] = []
        for slot in range(batch):
            self._admit(slot)

    @property
    def ended(self) -> bool:
        """Whether all tokens are counted."""
        return self.left <= 0

    def take_turn(self, steps: int) -> None:
        """So many steps, or as many as are left."""
        for _ in range(steps):
            if not self.ended:
                self._step()

    def _step(self) -> None:
        before = self._missing()
        step = self.engine.step(self.policy)
        tokens = sum(map(min, before, step.committed))
        numbers = {name: float(read(step)) for name, read in COLUMNS.items()}
        self.steps.append({"tokens": float(tokens)} | numbers)
        self.left -= tokens
        for slot, missing in enumerate(self._missing()):
            if missing <= 0:
                self.slots[slot] = next(self.order)
                self._admit(slot)

    def _missing(self) -> list[int]:
        """Tokens that each slot's reply lacks; the prompt's own does not count."""
        pairs = zip(self.slots, self.engine.requests, strict=True)
        return [self.jobs[job].tokens - len(r.reply) + 1 for job, r in pairs]

    def _admit(self, slot: int) -> None:
        job = self.jobs[self.slots[slot]]
        self.engine.admit(job.prompt, job.sampler, slot)


class Measured:
    """What one policy did on the real clock, step by step."""

    def __init__(
        self,
        steps: Sequence[Mapping[str, float]],
        turn: int,
        replies: int,
    ) -> None:
        """`steps`: the numbers of each; `turn`: steps of a turn."""
        self.turn, self.replies = turn, replies
        self.columns: dict[str, Floats] = {
            name: np.array([step[name] for step in steps]) for name in steps[0]
        }

    def mean(self, name: str) -> float:
        """Of a step."""
        return float(self.columns[name].mean())

    def tokens_per_s(self) -> Floats:
        """As measured, then in resamples of turns: float64 [1 + resamples]."""
        return 1e6 * self.ratio(self.columns["tokens"], self.columns["us"], seed=0)

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
