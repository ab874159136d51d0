"""The time of a step beside verification, with SGLang's own EAGLE worker.

Drafting is timed at every depth, each with the attention backends and graphs that
SGLang would run it with; draft-extend, sampling and what else a step does are what is
left of a whole step. Rounds are whole steps one after another, whose trees the plug-in
cuts to a width, or decides upon and keeps whole. SGLang's scheduler, which admits
requests and sends tokens out, is in none of it. Steps that are timed again start from
the same state each time.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from evict_profile.integrations.sglang.graphs import GraphState, build_state, swapped
from evict_profile.stats import Floats
from runners.clock import ReferenceClock, in_a_row_us
from runners.protocol import Message
from runners.session import Clock, Run
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
"""Runs in one timing, of whole steps alone on a CPU: the host of a GPU prepares the
next while the device runs one."""


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
        self.in_a_row = 1 if self.device.type == "cpu" else IN_A_ROW

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
        drafts_us, parts_us = np.split(timed.T, [self.verifier.steps])
        step_us, decided_us, verify_us, plain_us, plain_verify_us, *cut_us, _ = parts_us
        widths = (*self.cut_widths, self.full.width)
        return {
            "draft_us": [0.0, *np.median(drafts_us, axis=1).tolist()],
            "fixed_us": beyond_us(step_us, drafts_us[-1] + verify_us),
            "plain_fixed_us": beyond_us(plain_us, plain_verify_us),
            "mechanism_us": beyond_us(decided_us, step_us) if self.serving else None,
            "reference_us": usual_us or None,
            "rounds": [
                {
                    "width": width,
                    "union": self.force(batch, width),
                    "context": self.context,
                    "us": float(np.median(us)),
                }
                for width, us in zip(widths, (*cut_us, step_us), strict=True)
            ],
        }

    @property
    def cut_widths(self) -> list[int]:
        """The narrowest and a middle one of the trees that have graphs."""
        widths = sorted(set(self.verifier.states) - {1}) if self.serving else []
        some = {*widths[:1], *widths[len(widths) // 2 :][:1]}
        return sorted(some - {self.full.width})

    def round(self, batch: int, start: Any) -> list[float]:
        """Time each of `parts` once, and the reference work, 0 on a GPU."""
        clock, busy = self.clock, partial(self.step, batch, start)
        self.force(batch, self.full.width)
        parts = self.parts(batch, start)
        us = [in_a_row_us(self.device, runs, lead_in=busy) for runs in parts]
        return [*us, clock.time_reference() if isinstance(clock, ReferenceClock) else 0]

    def parts(self, batch: int, start: Any) -> Iterator[Sequence[Run]]:
        """Runs of each part, laid out when it is their turn: drafting to each depth; a
        whole step, one that decides, and the target's forward in them; a step that
        verifies the root alone, and its forward; a step at each of the cut widths."""
        serving, step = self.serving, partial(self.step, batch, start)
        for depth in range(1, self.verifier.steps + 1):
            yield [partial(self.draft, batch, start, depth)] * self.in_a_row
        yield [step] * IN_A_ROW
        deciding = serving.deciding if serving else nullcontext
        yield [partial(run_within, deciding, step)] * IN_A_ROW
        yield self.forwards(batch, self.full)
        yield [partial(self.plain_step, batch)] * self.in_a_row
        yield self.forwards(batch, self.plain)
        for width in self.cut_widths:
            assert serving
            self.force(batch, width)
            cutting = partial(serving.cutting, width)
            yield [partial(run_within, cutting, step)] * IN_A_ROW

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

    def draft(self, batch: int, start: Any, depth: int) -> None:
        held = self.before_step(batch)
        held.spec_info = copy.copy(start)
        with torch.no_grad(), self.at_depth(depth):
            self.drafter.draft_worker.draft(held)

    def step(self, batch: int, start: Any) -> None:
        held = self.before_step(batch)
        held.spec_info = copy.copy(start)
        with torch.no_grad():
            self.drafter.forward_batch_generation(held)

    def forwards(self, batch: int, state: GraphState) -> list[Run]:
        """The target's forward alone, at a state's width, laid out for each run."""
        trees = random_trees(batch, state.width, SEED, self.device)
        within = partial(swapped, self.verifier.model_runner, state)
        with within():
            prepare = partial(self.verifier.prepare, trees, self.context, SEED)
            laid_out = [prepare() for _ in range(self.in_a_row)]
        return [partial(run_within, within, forward.run) for forward in laid_out]

    def plain_step(self, batch: int) -> None:
        """A step that verifies roots alone and takes the likeliest token."""
        roots = random_trees(batch, 1, SEED, self.device)
        with swapped(self.verifier.model_runner, self.plain):
            forward = self.verifier.prepare(roots, self.context, SEED)
            forward.run()
            forward.tokens()

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


def run_within(enter: Callable[[], AbstractContextManager[None]], run: Run) -> None:
    with enter():
        run()


def beyond_us(whole_us: Floats, part_us: Floats) -> float:
    """What a whole takes beyond a part of it, in the median of the rounds."""
    return max(0.0, float(np.median(whole_us - part_us)))
