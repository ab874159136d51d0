"""One server's state: the checks at its start, and one step after another.

A failed check, hook or decision disables the plug-in for good and is logged once; the
server then verifies whole trees. What a cut needs is made before the tree is built,
since its results cannot go back to a whole tree's. With tensor parallelism all ranks
stop cutting at the same step. The server ends if an error on one rank makes agreement
impossible.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang import compat
from evict_profile.integrations.sglang.decision import Metrics
from evict_profile.integrations.sglang.drafts import FewerLevels
from evict_profile.integrations.sglang.graphs import (
    GraphState,
    build_state,
    described,
    fitting,
    own_state,
    swapped,
)
from evict_profile.integrations.sglang.modes import ByTable, FixedWidth, Mode
from evict_profile.integrations.sglang.ranks import Ranks, Said
from evict_profile.integrations.sglang.router import BudgetHook, RouteBuffers
from evict_profile.integrations.sglang.tree import Drafted, Scores

logger = logging.getLogger("evict_profile.sglang")

SWITCH = "evict_profile"
"""The key of SGLang's /set_internal_state that switches cutting off (0) and on (1)."""


class ErrorEnds(Enum):
    """What an error on this rank ends."""

    CUTTING_HERE = "at once: no other rank waits for this one"
    CUTTING_WITH_NEXT_DECISION = "on all ranks: this rank decides for all"
    SERVER = "other ranks wait for what this rank does"


class Serving:
    """The plug-in's state in a process, and of its one worker.

    At the start the worker calls `begin`, `allocate`, `prepare` and `ready`; in each
    forward `step` around all, then `drafts`, `choose`, `verified`, with `graphs` around
    a verification and its preparation. Each request verifies `width` tokens,
    `full_width` without the plug-in; after fewer, `slots` are the cache slots of a
    whole tree. While the ranks decode, `active` is the same on all of them. Once false,
    it stays false.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scores, self.router = Scores(self._keeping), RouteBuffers()
        budget = settings.expert_budget
        self.budget = BudgetHook(budget) if budget else None
        self.active = False
        self.worker: Any = None
        self.width = self.full_width = 0
        self.slots = torch.empty(0)
        self.ranks = Ranks()
        self._mode = Mode()
        self._states: dict[int, GraphState] = {}
        self._switched_off: tuple[Mode, dict[int, GraphState]] | None = None
        self.fewer = FewerLevels(self._fail_closed)
        self._error_ends = ErrorEnds.CUTTING_HERE
        self._chooses_steps = self._has_failed = False
        self._table_sha256 = ""

    def begin(self, worker: Any) -> None:
        self.worker, self.active = worker, True
        self.width = self.full_width = int(worker.speculative_num_draft_tokens)
        with self._fail_closed():
            # The model runner has the group only until 0.5.20.
            from sglang.srt.distributed.parallel_state import get_tp_group

            self.ranks = Ranks(get_tp_group())

    @property
    def runner(self) -> Any:
        return self.worker.target_worker.model_runner

    def allocate(self) -> None:
        """Make the buffers that captured graphs write; before any is captured."""
        with self._fail_closed():
            device, requests = self.runner.device, self.runner.req_to_token_pool.size
            tokens = requests * self.full_width
            self.scores.allocate(requests, self.full_width, device)
            if self.budget:
                self.budget.allocate(tokens, device)
            if self.settings.mode == "observe":
                layers = list(compat.experts(self.runner.model))
                ids = [layer.layer_id for layer in layers]
                top_k = max((layer.top_k for layer in layers), default=0)
                self.router.allocate(ids, tokens, top_k, device)
                self.router.recording = self.ranks.leads

    def prepare(self) -> None:
        """Check the server, on all ranks; before the draft graphs are captured."""
        with self._fail_closed():
            if self.active:
                compat.check_server(self.worker)
                if self.budget:
                    self.budget.attach(self.runner)
                self._run(self._asked_mode())
        self._agree_on_start()
        if not self.active:
            self.scores.allocate(0, 1, "cpu")  # No graph will keep scores.
        self.fewer.steps, self.fewer.most = self._mode.fewer_steps, self._mode.most
        self._error_ends = self._if_shared()

    def _run(self, mode: Mode) -> None:
        """Ranks that follow drop the mode later, and keep whether depths are sent."""
        self._mode = mode
        self._chooses_steps = mode.can_pause or mode.fewer_steps > 0

    def _if_shared(self) -> ErrorEnds:
        """After an exchange a rank alone must not turn to whole trees."""
        return ErrorEnds.SERVER if self.ranks.size > 1 else self._error_ends

    def _agree_on_start(self) -> None:
        mode, budget = self._mode, self.settings.expert_budget
        widths = mode.capture_sizes, mode.can_pause, mode.on_device
        own = (self.active, *widths, mode.fewer_steps, budget, self._table_sha256)
        with self._fail_closed(ErrorEnds.SERVER):
            said = self.ranks.all_of(own)
        with self._fail_closed():
            if self.active and len(set(said)) > 1:
                raise ConfigError(
                    "ranks differ in what they may verify: give all the same "
                    f"EVICT_PROFILE_ variables and table, and see their logs; {said}"
                )

    def _asked_mode(self) -> Mode:
        asked, worker = self.settings, self.worker
        if asked.mode == "observe":
            # Traces need pyarrow, which servers that only cut need not have.
            from evict_profile.integrations.sglang.observer import Observer

            compat.check_routes(self.runner)
            if not self.ranks.leads:
                return Mode()
            assert asked.traces
            return Observer(worker, asked.traces, self.router)
        assert asked.table
        table = compat.load_matching_table(asked.table, asked.allow, worker)
        self._table_sha256 = table.sha256
        if self.budget:
            table = table.within_budget(self.budget.budget)
        if asked.width:
            return FixedWidth(table, asked.width, worker, self.scores)
        prometheus = compat.option(self.runner.server_args, "enable_metrics")
        metrics = Metrics(bool(prometheus) and self.ranks.leads, self.ranks.size)
        state = asked.state if self.ranks.leads else None
        given = table, asked.capture_sizes, worker, metrics, state
        return ByTable(*given, asked.fewer_steps or 0)

    def ready(self) -> None:
        """Build each width's graphs; after the server's own were captured."""
        with self._fail_closed():
            if not self.active:
                return
            with self._within_budget():
                self._states = self._built()
            if self.ranks.leads:
                logger.info("%s", self._announcement())
        if self._has_failed:
            gc.collect()  # Graphs that were built before one failed are in cycles.
            torch.cuda.empty_cache()
        if not self._mode.on_device:
            if self.ranks.leads:
                self._error_ends = ErrorEnds.CUTTING_WITH_NEXT_DECISION
            else:
                self._mode, self._error_ends = Mode(), ErrorEnds.SERVER

    @contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        self.width, self.fewer.chosen = self.full_width, False
        prefill = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        with self._fail_closed():
            self._mode.begin(prefill)
        yield
        with self._fail_closed():
            self._mode.end()

    def drafts(self, batch: Any) -> bool:
        """Whether this step drafts; else it verifies roots alone."""
        decodes = batch.forward_mode.is_decode()
        if not self.active or not self._chooses_steps or not decodes:
            return True
        steps = self._decided("depth", batch, lambda: self._mode.steps(batch))
        self.fewer.chosen = bool(steps) and steps == self.fewer.steps
        if steps == 0:
            with self._fail_closed(self._if_shared()):
                roots = torch.zeros(len(batch.seq_lens), 0, device=batch.device)
                self._prepare_cut(batch, roots)
        return self.width > 1

    def choose(
        self, batch: Any, parent_list: Tensor, index: Tensor, tokens: Tensor, topk: int
    ) -> Drafted | None:
        """What to verify of the last draft; None is the whole tree."""
        with self._fail_closed(self._if_shared()):
            drafted = self._drafted(parent_list, index, tokens, topk)
            decide = self._mode.choose
            if not self._mode.on_device:
                places = self._decided("cut", batch, lambda: decide(batch, drafted))
            elif (places := decide(batch, drafted)) is not None:
                places = self.ranks.shared(places)
            kept = drafted if places is None else drafted.at(places)
            self._prepare_cut(batch, kept.path_prob)
            return kept if self.width < self.full_width else None
        return None

    def _drafted(
        self, parent_list: Tensor, index: Tensor, tokens: Tensor, topk: int
    ) -> Drafted:
        """The last draft; scores that weigh tokens are the same on all ranks."""
        scores = self.scores.last(len(index))
        if self.budget:
            scores = self.ranks.shared(scores)
        return Drafted(parent_list, index, tokens, scores, topk)

    def _prepare_cut(self, batch: Any, path_prob: Tensor) -> None:
        """Do all of a cut that may fail; its nodes have these path probabilities."""
        if self.budget and self.active:
            self.budget.set_token_weights(path_prob)
        width = path_prob.shape[1] + 1
        if width < self.full_width:
            self.slots = compat.cache_slots(batch, self.full_width)
        if state := self._states.get(width):
            with swapped(self.runner, state):
                pass  # What works here works again, after the tree was cut.
        self.width = width

    def _decided(
        self, what: str, batch: Any, decide: Callable[[], Said]
    ) -> Said | None:
        """What rank 0 decides; None, for good, where it has failed."""
        found = None
        if self.ranks.leads:
            with self._fail_closed():
                found = decide()
        said, begun_ns = (not self._has_failed, found), time.perf_counter_ns()
        self.active, found = self.ranks.decided(said, what, len(batch.seq_lens))
        self._mode.exchange_us += (time.perf_counter_ns() - begun_ns) / 1e3
        if not self.active:
            # Rank 0 has dropped its graphs: no rank may keep to a budget alone.
            self._states = {}
        return found

    @contextmanager
    def graphs(self) -> Iterator[None]:
        with ExitStack() as stack:
            if state := self._states.get(self.width):
                stack.enter_context(swapped(self.runner, state))
                stack.enter_context(self._within_budget())
            stack.enter_context(self._mode.verifying())
            yield

    def verified(self, batch: Any, result: Any) -> None:
        with self._fail_closed():
            self._mode.verified(batch, result)

    def switch(self, original: Callable[..., Any], scheduler: Any, asked: Any) -> Any:
        """The hook around `set_internal_state`, which all ranks run between the same
        steps. SGLang refuses the key where it is left in.
        """
        with self._fail_closed():
            can_switch = self.active and not self._has_failed
            if can_switch and SWITCH in asked.server_args:
                self._switch(bool(asked.server_args.pop(SWITCH)))
        return original(scheduler, asked)

    def _switch(self, on: bool) -> None:
        if on and self._switched_off:
            (self._mode, self._states), self._switched_off = self._switched_off, None
            self._mode.begin(prefill=True)  # The time in between is of no step.
        elif not on and not self._switched_off:
            self._switched_off = self._mode, self._states
            self._mode, self._states = Mode(), {}
        says = "on" if on else "off: whole trees are verified"
        if self.ranks.leads:
            logger.info("evict-profile: switched %s", says)

    def _within_budget(self) -> Context[None]:
        return self.budget.enabled() if self.budget else nullcontext()

    def _built(self) -> dict[int, GraphState]:
        """The graphs of each width that fits on all ranks. Without a budget the whole
        tree uses the server's.
        """
        mode, full = self._mode, self.full_width
        most = None if self.budget else mode.most  # the server's run within no budget
        asked = {w for w in mode.capture_sizes if w != full or self.budget}
        said = self.ranks.all_of(tuple(fitting(self.runner, asked, most)))
        fits, steps = min(said, key=len), self.worker.speculative_num_steps
        if missing := sorted(asked.difference(fits)):
            left = f"widths {', '.join(map(str, missing))} do not fit into the memory"
            fix = "lower --context-length or --mem-fraction-static"
            if not fits or not isinstance(mode, ByTable) or self.budget:
                raise ConfigError(f"{left}; {fix}")
            logger.warning("evict-profile: %s and are left out; %s", left, fix)
            mode.leave_out(missing)
        states = {w: build_state(self.runner, w, steps, most) for w in fits}
        if full in mode.capture_sizes:
            states.setdefault(full, own_state(self.runner, full))
        return states

    def _keeping(self) -> Context[None]:
        """Around what a hook keeps for a choice, for which rank 0's is read."""
        return self._fail_closed() if self.ranks.leads else suppress(Exception)

    @contextmanager
    def _fail_closed(self, ends: ErrorEnds | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if ErrorEnds.SERVER in (ends, self._error_ends):
                logger.critical(
                    "evict-profile: this rank cannot do what the others do, and the "
                    "server ends: %s",
                    error,
                )
                raise
            if self._error_ends is ErrorEnds.CUTTING_HERE:
                self.active = False
            self.width = self.full_width
            self._mode, self._states, self._switched_off = Mode(), {}, None
            self.router.recording = False
            self.fewer.built = {}
            failed_before, self._has_failed = self._has_failed, True
            if failed_before:
                return
            detail = None if isinstance(error, EvictProfileError) else error
            logger.warning(
                "evict-profile: off, whole trees are verified: %s",
                error,
                exc_info=detail,
            )

    def _announcement(self) -> str:
        if self.settings.mode == "observe":
            return f"evict-profile: observing into {self.settings.traces}"
        built = described(self._states.values(), self.runner.device)
        return f"evict-profile: on, table {self.settings.table}; {built}"
