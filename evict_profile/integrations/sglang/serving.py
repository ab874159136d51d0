"""One server's state: the checks at its start, and one step after another.

Fails closed. A doubt at the start, or an error in a decision, ends the plug-in's part
for good and is logged once; the server then verifies whole trees, as it does without
the plug-in.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.integrations.sglang import compat, decision, graphs
from evict_profile.integrations.sglang.budget import BudgetHook
from evict_profile.integrations.sglang.buffers import RouteBuffers, Scores
from evict_profile.integrations.sglang.graphs import GraphState
from evict_profile.integrations.sglang.ladder import fixed_ladder, ladder_of
from evict_profile.integrations.sglang.metrics import DriftWatch, Metrics, VerifyTimer
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import Drafted, HostTrees, cut
from evict_profile.runtime.scoring import ConditionalScorer

if TYPE_CHECKING:
    from evict_profile.integrations.sglang.observer import Observer

logger = logging.getLogger("evict_profile.sglang")


class Serving:
    """The plug-in's state in a process, and of the one worker that is made there.

    Attributes:
        follows: whether it takes part in decoding at all; once false, for good.
        width: tokens that each request verifies in this step.
        full_width: tokens that each request verifies without the plug-in.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scores, self.router = Scores(), RouteBuffers()
        budget = settings.expert_budget
        self.budget = BudgetHook(budget) if budget else None
        self.follows = False
        self.worker: Any = None
        self.width = self.full_width = 0
        self._kept: NDArray[np.bool_] | None = None
        self._host = decision.Host()
        self._accepted = torch.zeros(0, dtype=torch.int32)
        self._states: dict[int, GraphState] = {}
        self._ladder: tuple[int, ...] = ()
        self._unpriced = False
        self._observer: Observer | None = None
        self._chooser: decision.Chooser | None = None
        self._worth_of: Callable[[Tensor, Tensor], Tensor] | None = None
        self._metrics: Metrics
        self._timer: VerifyTimer
        self._drift: DriftWatch

    def begin(self, worker: Any) -> None:
        """Follow a worker whose target is loaded."""
        self.worker, self.follows = worker, True
        self.width = self.full_width = int(worker.speculative_num_draft_tokens)

    @property
    def runner(self) -> Any:
        """The target's model runner."""
        return self.worker.target_worker.model_runner

    def allocate(self) -> None:
        """Make the buffers that captured graphs write; before any is captured."""
        with self._closed_on_doubt():
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
                self.router.recording = True

    def prepare(self) -> None:
        """Check the server; before the draft graphs are captured."""
        if not self.follows:
            return
        with self._closed_on_doubt():
            compat.check_server(self.worker)
            if self.settings.mode == "observe":
                self._observe()
            else:
                self._cut_by_table()

    def _observe(self) -> None:
        # Traces need pyarrow, which servers that only cut need not have.
        from evict_profile.integrations.sglang.observer import Observer

        compat.check_routes(self.runner)
        assert self.settings.traces
        self._observer = Observer(self.worker, self.settings.traces, self.router)

    def _cut_by_table(self) -> None:
        asked = self.settings
        assert asked.table
        table = compat.load_matching_table(asked.table, asked.allow, self.worker)
        if self.budget:
            table = table.within_budget(self.budget.budget)
        if asked.width:
            self._ladder = fixed_ladder(table, asked.width, self.full_width)
        else:
            self._ladder = ladder_of(table, self.full_width, asked.ladder)
            self._chooser = decision.Chooser(table, self._ladder)
        if table.acceptance and (curves := table.acceptance.conditional):
            self._worth_of = ConditionalScorer(curves).on_device(
                self.runner.device, self.worker.speculative_num_steps
            )
        prometheus = compat.option(self.runner.server_args, "enable_metrics")
        self._metrics = Metrics(bool(prometheus))
        self._timer, self._drift = VerifyTimer(self.runner), DriftWatch(table)

    def ready(self) -> None:
        """Build each width's graphs; after the server's own were captured."""
        if not self.follows:
            return
        with self._closed_on_doubt():
            if self.budget:
                self.budget.follow(self.runner)
            with self._within_budget():
                self._states = {width: self._state_of(width) for width in self._ladder}
            logger.info("%s", self._announcement())

    @contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        """Around one forward of the worker: a prefill, or a step of decoding."""
        self.width, self._kept = self.full_width, None
        prefill = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        if self._chooser and prefill:
            self._chooser.interrupt()
        observer = self._observer if self.follows and not prefill else None
        if observer:
            observer.begin()
        yield
        if observer and self.follows:
            with self._closed_on_doubt():
                observer.end()

    def pauses(self, batch: Any) -> bool:
        """Whether this step drafts nothing and verifies the root alone."""
        chooser = self._chooser
        if not chooser or not chooser.can_pause or not self._decides(chooser, batch):
            return False
        with self._closed_on_doubt():
            (lengths,) = self._learn(chooser, batch)
            choice = chooser.pause(len(lengths), _mean(lengths))
            self.width = choice.width if choice else self.full_width
        return self.width == 1

    def choose(self, batch: Any, drafted: Drafted) -> int:
        """The width of this step; the whole tree where none can be decided."""
        with self._closed_on_doubt():
            if self._observer:
                self._observer.drafted(drafted)
            fixed = self.settings.width
            if fixed and self.follows and batch.forward_mode.is_decode():
                self.width = fixed
            if self._chooser and self._decides(self._chooser, batch):
                self._choose(self._chooser, batch, drafted)
        return self.width

    def cut(self, drafted: Drafted) -> Drafted:
        """The trees of this step at its width: the nodes that the decision kept, or
        where the width is fixed the best, ranked on the device."""
        with self._closed_on_doubt():
            if self.width == drafted.width:
                return drafted
            if self._kept is not None:
                return drafted.kept(self._kept)
            worth_of = self._worth_of
            worth = worth_of(drafted.path_prob, drafted.parent) if worth_of else None
            return cut(drafted, self.width, worth)
        return drafted

    def weigh(self, path_prob: Tensor) -> None:
        """Say what is verified, [B, M], so that a budget is spent on what will be
        accepted."""
        if self.budget and self.follows:
            self.budget.weigh(path_prob)

    @contextmanager
    def graphs(self) -> Iterator[None]:
        """Verify with the graphs of this step's width while the context lasts."""
        state = self._states.get(self.width) if self.follows else None
        if state is None:
            yield
            return
        swapped = graphs.swapped(self.runner, state)
        with swapped, self._within_budget(), self._timer.verifying():
            yield

    def _within_budget(self) -> AbstractContextManager[None]:
        return self.budget.kept() if self.budget else nullcontext()

    def _state_of(self, width: int) -> GraphState:
        """Graphs of its own, but for the whole tree, which the server has graphs for;
        and for that, too, where the server's were captured without the budget."""
        own = graphs.own_state(self.runner, self.full_width)
        if width == self.full_width and not self.budget:
            return own
        state = graphs.build_state(
            self.runner, width, self.worker.speculative_num_steps
        )
        if own.graph_runner and not state.graph_runner:
            raise ConfigError(f"no graph was captured for width {width}")
        return state

    def verified(self, batch: Any, result: Any) -> None:
        """Keep what the step committed; it is read with the next step's scores."""
        self._accepted = result.accept_lens
        if self._observer and self.follows:
            with self._closed_on_doubt():
                self._observer.verified(batch, result)

    @contextmanager
    def _closed_on_doubt(self) -> Iterator[None]:
        """Stop following, and say why, if the block raises anything."""
        try:
            yield
        except Exception as error:
            self.follows, self.width = False, self.full_width
            self.router.recording = False
            if self._observer:
                self._observer.stop()
            detail = None if isinstance(error, EvictProfileError) else error
            logger.warning(
                "evict-profile: off, whole trees are verified: %s",
                error,
                exc_info=detail,
            )

    def _decides(self, chooser: decision.Chooser, batch: Any) -> bool:
        """Whether this step's width is decided. A batch without a price is verified
        whole; the first is logged."""
        if not self.follows or not batch.forward_mode.is_decode():
            return False
        requests = len(batch.seq_lens)
        if chooser.prices(requests):
            return True
        chooser.skip()
        if not self._unpriced:
            logger.warning(
                "evict-profile: batches of %d are not in the table; their trees "
                "are verified whole",
                requests,
            )
        self._unpriced = True
        return False

    def _choose(self, chooser: decision.Chooser, batch: Any, drafted: Drafted) -> None:
        nodes = (drafted.path_prob, drafted.index, drafted.parent_list)
        lengths, scores, index, parents = self._learn(chooser, batch, *nodes)
        trees = HostTrees(scores, index, parents, drafted.topk)
        choice = chooser.choose(trees, _mean(lengths))
        self.width, self._kept = choice.width, choice.plan.keep.numpy()

    def _learn(
        self, chooser: decision.Chooser, batch: Any, *more: Tensor
    ) -> tuple[NDArray[Any], ...]:
        """Copy lengths and more to the host, all at once, and learn from the last step.

        With overlapped scheduling SGLang knows lengths on the device alone.
        """
        lengths = batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu
        accepted, *rest = self._host.fetch(self._accepted, lengths, *more)
        verify_us = self._timer.take_us()
        if outcome := chooser.learn(accepted):
            priced_us = outcome.choice.verify_us
            if verify_us is not None and priced_us is not None:
                self._metrics.verify_ratio = self._drift.add(verify_us, priced_us)
            self._metrics.add(outcome)
        return tuple(rest)

    def _announcement(self) -> str:
        if self._observer:
            return f"evict-profile: observing into {self.settings.traces}"
        built = graphs.described(self._states.values(), self.runner.device)
        return f"evict-profile: on, table {self.settings.table}; {built}"


def _mean(lengths: NDArray[Any]) -> float:
    return float(lengths.sum()) / len(lengths)
