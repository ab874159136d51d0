"""The time of a step beside verification, with SGLang's own EAGLE worker.

Drafting is timed at every depth, each with the attention backends and graphs that
SGLang would run it with; draft-extend, sampling and what else a step does are what is
left of a whole step. Rounds are whole steps one after another, whose trees the plug-in
cuts to a width. SGLang's scheduler, which admits requests and sends tokens out, is in
none of it. Steps that are timed again start from the same state each time.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from evict_profile.integrations.sglang.graphs import GraphState, build_state, swapped
from runners.clock import ReferenceClock, now
from runners.protocol import Message
from runners.session import Clock
from runners.sglang_verify.rounds import ForcedServing
from runners.sglang_verify.verification import ServedVerifier, random_trees

DEPTH_STATE = (
    "draft_attn_backend",
    "draft_extend_attn_backend",
    "cuda_graph_runner",
    "cuda_graph_runner_for_draft_extend",
)
"""Parts of SGLang's draft worker that are built for one depth."""

SEED = 1
IN_A_ROW = 3
"""Rounds in one timing: the host prepares the next while the device runs one."""


class DraftTimer:
    """The EAGLE worker beside a verifier, and what it needs at each depth."""

    def __init__(
        self,
        drafter: Any,
        verifier: ServedVerifier,
        width: int,
        context: int,
        clock: Clock,
        serving: ForcedServing | None,
        force: Callable[[int, int], int],
    ) -> None:
        """`serving` cuts the drafter's trees; None if the plug-in does not run here.

        `force(batch, width)` sets the routes of the next forwards, and returns their
        union.
        """
        self.drafter, self.verifier, self.clock = drafter, verifier, clock
        self.context, self.serving, self.force = context, serving, force
        runner, states = verifier.model_runner, verifier.states
        self.device = torch.device(runner.device)
        self.full = states[width]
        self.plain = states.get(1) or build_state(runner, 1, verifier.steps)
        self.states: dict[int, dict[str, Any]] = {}

    def measure(self, batch: int, rounds: int) -> Message:
        """Median times at a batch size; `draft_us` is cumulative by depth.

        Everything is timed once a round, so that a machine that changes its speed
        changes it for all; on a CPU a reference says by how much.
        """
        self.force(batch, self.full.width)
        start = self.first_draft_input(batch)
        # The first round warms up, and captures graphs.
        timed = np.array([self.round(batch, start) for _ in range(rounds + 1)][1:])
        reference_us = timed[:, -1]
        usual_us = float(np.median(reference_us))
        if usual_us:
            timed *= (usual_us / reference_us)[:, None]
        drafts_us = timed[:, : self.verifier.steps]
        parts_us = timed.T[len(drafts_us.T) :]
        step_us, verify_us, plain_us, plain_verify_us, *rounds_us, _ = parts_us
        fixed_us = np.median(step_us - drafts_us[:, -1] - verify_us)
        return {
            "draft_us": [0.0, *np.median(drafts_us, axis=0).tolist()],
            "fixed_us": max(0.0, float(fixed_us)),
            "plain_fixed_us": max(0.0, float(np.median(plain_us - plain_verify_us))),
            "reference_us": usual_us or None,
            "rounds": [
                {
                    "width": width,
                    "union": self.force(batch, width),
                    "context": self.context,
                    "us": float(np.median(us)),
                }
                for width, us in zip(self.round_widths, rounds_us, strict=True)
            ],
        }

    @property
    def round_widths(self) -> list[int]:
        """The narrowest, a middle and the widest of the trees that have graphs."""
        widths = sorted(set(self.verifier.states) - {1}) if self.serving else []
        return sorted({*widths[:1], *widths[len(widths) // 2 :][:1], *widths[-1:]})

    def round(self, batch: int, start: Any) -> list[float]:
        """Time everything once, in microseconds: drafting to each depth; a whole step,
        and the target's forward in it; both of a step that verifies the root alone; a
        round at each of its widths; the reference work, 0 on a GPU."""
        clock = self.clock
        self.force(batch, self.full.width)
        return [
            *(
                self.draft_us(batch, start, depth + 1)
                for depth in range(self.verifier.steps)
            ),
            self.timed_us(lambda: self.step(batch, start)),
            self.forward_us(batch, self.full),
            self.plain_step_us(batch),
            self.forward_us(batch, self.plain),
            *(self.round_us(batch, start, width) for width in self.round_widths),
            clock.time_reference() if isinstance(clock, ReferenceClock) else 0.0,
        ]

    def timed_us(self, run: Callable[[], object]) -> float:
        """Time of one run: CPU time on a CPU, wall time on a GPU."""
        begun = now(self.device)
        run()
        return (now(self.device) - begun).us

    def first_draft_input(self, batch: int) -> Any:
        """The input of a step, as a verification and draft-extend leave it."""
        trees = random_trees(batch, self.full.width, SEED, self.device)
        held = self.before_step(batch)
        held.spec_info = self.verifier.verify_input(held, trees, SEED)
        with torch.no_grad():
            verified = self.drafter.verify(held)
            self.drafter.draft_worker._draft_extend_for_decode(held, verified)
        return verified.next_draft_input

    def before_step(self, size: int) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        batch = self.verifier.slots.batch_of(size, self.context)
        batch.forward_mode = ForwardMode.DECODE
        return batch

    def draft_us(self, batch: int, start: Any, depth: int) -> float:
        held = self.before_step(batch)
        held.spec_info = copy.copy(start)
        with torch.no_grad(), self.at_depth(depth):
            return self.timed_us(lambda: self.drafter.draft_worker.draft(held))

    def step(self, batch: int, start: Any) -> None:
        held = self.before_step(batch)
        held.spec_info = copy.copy(start)
        with torch.no_grad():
            self.drafter.forward_batch_generation(held)

    def round_us(self, batch: int, start: Any, width: int) -> float:
        """Time from one round to the next, at a forced width."""

        def rounds() -> None:
            for _ in range(IN_A_ROW):
                self.step(batch, start)

        assert self.serving
        self.force(batch, width)
        with self.serving.cutting(width):
            return self.timed_us(rounds) / IN_A_ROW

    def forward_us(self, batch: int, state: GraphState) -> float:
        """Time of the target's forward alone, at a state's width."""
        trees = random_trees(batch, state.width, SEED, self.device)
        with swapped(self.verifier.model_runner, state):
            forward = self.verifier.prepare(trees, self.context, SEED)
            return self.timed_us(forward.run)

    def plain_step_us(self, batch: int) -> float:
        """Time of a step that verifies the root alone and takes the likeliest token."""
        trees = random_trees(batch, 1, SEED, self.device)

        def plain() -> None:
            forward = self.verifier.prepare(trees, self.context, SEED)
            forward.run()
            forward.tokens()

        with swapped(self.verifier.model_runner, self.plain):
            return self.timed_us(plain)

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Let SGLang draft to another depth, as its adaptive speculation does."""
        worker = self.drafter.draft_worker
        if depth == self.verifier.steps:
            yield
            return
        with self.drafter._override_worker_state(depth, self.drafted_width(depth)):
            if depth in self.states:
                for name, value in self.states[depth].items():
                    setattr(worker, name, value)
                worker.draft_runner.draft_attn_backend = worker.draft_attn_backend
            else:
                worker.init_attention_backend()
                worker._capture_cuda_graphs()
                self.states[depth] = {n: getattr(worker, n) for n in DEPTH_STATE}
            yield

    def drafted_width(self, depth: int) -> int:
        """Tokens that a tree of this depth can fill."""
        topk = self.verifier.topk
        return min(self.full.width, 1 + topk + (depth - 1) * topk**2)
