"""Continuous batching on a real clock, as evict_profile.replay.simulate does it.

Batch slots take replies in a given order; one that ends makes way for the next before
the next step, lower slots first. So the batch is always full, and the run ends with the
step in which as many tokens were counted as all replies have together. Prompts are run
between steps, and off the clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evict_profile.replay.policies import Policy
from runners.tree_decoding.accept import Sampler
from runners.tree_decoding.engine import Engine, EngineStep


@dataclass(frozen=True)
class Job:
    """A reply to decode: its prompt, how it is drawn, and when it ends."""

    prompt: Sequence[int]
    sampler: Sampler
    tokens: int


@dataclass(frozen=True)
class Served:
    """One step: the job of each slot, and the tokens that count of each."""

    jobs: tuple[int, ...]
    counted: tuple[int, ...]
    step: EngineStep


class ContinuousBatching:
    """An engine at work on jobs, under one policy."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        jobs: Sequence[Job],
        order: Iterator[int],
        batch: int,
    ) -> None:
        """`order`: numbers of jobs, endless."""
        self.engine, self.policy, self.jobs, self.order = engine, policy, jobs, order
        self.left = sum(job.tokens for job in jobs)
        self.slots = [next(order) for _ in range(batch)]
        for slot in range(batch):
            self._admit(slot)

    @property
    def ended(self) -> bool:
        """Whether all tokens are counted."""
        return self.left <= 0

    def serve(self) -> Served:
        """One step; then slots whose reply has ended are taken anew."""
        before = self._left()
        step = self.engine.step(self.policy)
        counted = tuple(map(min, before, step.committed))
        served = Served(tuple(self.slots), counted, step)
        self.left -= sum(counted)
        for slot, left in enumerate(self._left()):
            if left <= 0:
                self.slots[slot] = next(self.order)
                self._admit(slot)
        return served

    def _left(self) -> list[int]:
        """Tokens that each slot's reply lacks; the prompt's own does not count."""
        pairs = zip(self.slots, self.engine.requests, strict=True)
        return [self.jobs[job].tokens - len(r.reply) + 1 for job, r in pairs]

    def _admit(self, slot: int) -> None:
        job = self.jobs[self.slots[slot]]
        self.engine.admit(job.prompt, job.sampler, slot)
