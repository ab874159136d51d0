"""What is done with the draft trees of each decoding step, and at which widths."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.compat import assigned, on_gpu
from evict_profile.integrations.sglang.decision import Chooser, DriftWatch, Metrics
from evict_profile.integrations.sglang.drafts import check_fewer_steps
from evict_profile.integrations.sglang.state import OFF, StateFile
from evict_profile.integrations.sglang.tree import Drafted, Scores, best_nodes
from evict_profile.runtime import CostTable
from evict_profile.runtime.depth import DepthChoice
from evict_profile.runtime.learning import Learner
from evict_profile.runtime.scoring import ConditionalScorer

DEFAULT_CAPTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""For a table that was measured without captured graphs."""

logger = logging.getLogger("evict_profile.sglang")


class Mode:
    """Verifies whole trees, as the server does without the plug-in.

    A step calls `begin`; where it decodes, `steps` if the mode `can_pause` or has
    `fewer_steps`, `choose` if it drafts, `verified`; and `end`, unless it raised.

    Attributes:
        capture_sizes: widths that need graphs; none where the server's own do.
        can_pause: whether a step may draft nothing.
        fewer_steps: levels that a step may draft instead of all; 0 for none.
        on_device: whether places are chosen, and sent to other ranks, on the device.
        exchange_us: time in exchanges between ranks since the last outcome.
        most: largest batch whose trees are cut; None where any is.
    """

    capture_sizes: tuple[int, ...] = ()
    most: int | None = None
    can_pause = on_device = False
    fewer_steps, exchange_us = 0, 0.0

    def begin(self, prefill: bool) -> None:
        """A forward of the worker begins."""

    def steps(self, batch: Any) -> int | None:
        """Levels that this step drafts: with 0 it verifies roots alone, None is all."""
        return None

    def choose(self, batch: Any, drafted: Drafted) -> Tensor | None:
        """Nodes to verify, by their places, int64 [B, m]; None is all of them."""
        return None

    def verifying(self) -> AbstractContextManager[None]:
        """Around the forward that verifies, and all that is prepared for it."""
        return nullcontext()

    def verified(self, batch: Any, result: Any) -> None:
        """Trees were verified, and this was accepted."""

    def end(self) -> None:
        """The forward has ended; not called where it raised."""


class FixedWidth(Mode):
    """Verifies a fixed number of nodes by conditional acceptance.

    The draft graphs find these nodes, a chain's being its first; a step gathers them.
    """

    on_device = True

    def __init__(
        self, table: CostTable, width: int, worker: Any, scores: Scores
    ) -> None:
        acceptance, most = table.acceptance, worker.speculative_num_draft_tokens
        if acceptance is None or acceptance.conditional is None:
            raise ConfigError(
                "EVICT_PROFILE_WIDTH ranks by conditional acceptance, and "
                f"{table.path} has none; measure it with evict-profile calibrate, or "
                "set the width by --speculative-num-draft-tokens alone"
            )
        if width > most:
            raise ConfigError(
                f"EVICT_PROFILE_WIDTH={width}, and the server drafts {most} tokens "
                "with the root; give fewer, or raise --speculative-num-draft-tokens"
            )
        self.capture_sizes, self._width = (width,), width
        runner = worker.target_worker.model_runner
        self._scores_of = ConditionalScorer(acceptance.conditional).on_device(
            runner.device, worker.speculative_num_steps
        )
        rows = runner.req_to_token_pool.size
        self._places = torch.arange(width - 1, device=runner.device).repeat(rows, 1)
        scores.see = self._keep_best if width < most else None

    def choose(self, batch: Any, drafted: Drafted) -> Tensor | None:
        if self._width == drafted.width or not batch.forward_mode.is_decode():
            return None
        return self._places[: len(drafted.index)]

    def _keep_best(self, drafted: Drafted) -> None:
        scores = self._scores_of(drafted.path_prob, drafted.parent)
        best = best_nodes(drafted, self._width, scores)[: len(self._places)]
        self._places[: len(best)].copy_(best)


class ByTable(Mode):
    """Verifies the width that pays by a cost table, decided step by step.

    The host decides which captured graph runs, after one copy of this step's scores and
    the last step's accepted tokens.
    """

    def __init__(
        self,
        table: CostTable,
        widths: frozenset[int] | None,
        worker: Any,
        metrics: Metrics,
        state: Path | None = None,
        fewer_steps: int = 0,
    ) -> None:
        if fewer_steps:
            check_fewer_steps(fewer_steps, table, worker)
            metrics.depth = DepthChoice((fewer_steps, worker.speculative_num_steps))
        self.fewer_steps, self._metrics = fewer_steps, metrics
        self.capture_sizes = capture_sizes_of(
            table, worker.speculative_num_draft_tokens, widths
        )
        self._table, self.most = table, table.fit.domain["batch"][1]
        self._learns = state != OFF
        self._chooser = Chooser(table, self.capture_sizes, self._learns)
        self._state = StateFile(state, table.sha256) if state and self._learns else None
        self._resume()
        self.can_pause = self._chooser.can_pause
        self._drift = DriftWatch(table)
        self._timer = VerifyTimer(worker.target_worker.model_runner)
        self._accepted = torch.zeros(0, dtype=torch.int32)
        self._pinned: dict[Any, Tensor] = {}
        self._warned = False

    def leave_out(self, widths: Collection[int]) -> None:
        """Do without these widths; before the first step."""
        self.capture_sizes = tuple(w for w in self.capture_sizes if w not in widths)
        self._chooser = Chooser(self._table, self.capture_sizes, self._learns)
        self._resume()

    def _resume(self) -> None:
        self._chooser.depth = self._metrics.depth
        if self._state:
            self._state.restore(self._chooser.learner)

    def begin(self, prefill: bool) -> None:
        if prefill:
            self._chooser.exclude_prefill()

    def steps(self, batch: Any) -> int | None:
        if not self._decides(batch):
            return None
        (lengths,) = self._learn(batch)
        steps = self._chooser.steps(len(lengths))
        pause = self._chooser.pause(len(lengths), _mean(lengths))
        return steps if pause is None else 0

    def choose(self, batch: Any, drafted: Drafted) -> Tensor | None:
        if not self._decides(batch):
            return None
        nodes = (drafted.path_prob, drafted.index, drafted.parent_list)
        lengths, path_prob, index, parent_list = self._learn(batch, *nodes)
        choice = self._chooser.choose(
            path_prob, index, parent_list, drafted.topk, _mean(lengths)
        )
        return None if choice.width == drafted.width else choice.places

    def verifying(self) -> AbstractContextManager[None]:
        return self._timer.verifying()

    def verified(self, batch: Any, result: Any) -> None:
        self._accepted = result.accept_lens  # read with the next step's scores

    def _decides(self, batch: Any) -> bool:
        """Whether the table covers the batch; else whole trees are verified, and it is
        logged.
        """
        requests = len(batch.seq_lens)
        if not batch.forward_mode.is_decode():
            return False
        if self._chooser.costs(requests):
            return True
        self._chooser.skip()
        if not self._warned:
            logger.warning(
                "evict-profile: batches of %d are not in the table; their trees "
                "are verified whole",
                requests,
            )
        self._warned = True
        return False

    def _learn(self, batch: Any, *more: Tensor) -> list[NDArray[Any]]:
        """Copy lengths (with overlap only the device has them) and more; learn from the
        step.
        """
        lengths = batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu
        accepted, *rest = fetch(self._pinned, self._accepted, lengths, *more)
        verify_us = self._timer.take_us()
        if outcome := self._chooser.learn(accepted, verify_us):
            estimated_us = outcome.choice.verify_us
            if verify_us is not None and estimated_us is not None:
                self._metrics.verify_ratio = self._drift.add(verify_us, estimated_us)
                self._show(self._chooser.learner)
            self._metrics.add(outcome, self.exchange_us)
            self.exchange_us = 0.0
        return rest

    def _show(self, learner: Learner) -> None:
        self._metrics.cost_scale = 1.0 + learner.level
        self._metrics.union_share = learner.union_share
        self._metrics.regret = self._chooser.regret
        self._drift.log_other_machine(learner)
        if self._state:
            self._state.save_when_due(learner)


class VerifyTimer:
    """Times the target's forward in verifications, without waiting for the device.

    Of a captured graph the replay alone is timed, in a sweep as well. In a server that
    holds one graph launch of the host's time; in a sweep the device is busy meanwhile.
    """

    def __init__(self, model_runner: Any) -> None:
        self._runner, self._on_gpu = model_runner, on_gpu(model_runner)
        self._ends: tuple[Any, Any] | None = None

    @contextmanager
    def verifying(self) -> Iterator[None]:
        """Around a verification, whose graphs are in."""
        runner, self._ends = self._runner, None
        backend = getattr(runner.decode_cuda_graph_runner, "backend", None)
        replays = {"replay": self._timed(backend.replay)} if backend else {}
        forward = self._timed(runner.forward)
        with assigned(runner, forward=forward), assigned(backend, **replays):
            yield

    def take_us(self) -> float | None:
        """Time of the last verification, once; None where none has ended since."""
        ends, self._ends = self._ends, None
        if ends is None:
            return None
        begun, ended = ends
        if not self._on_gpu:
            return float(ended - begun)
        return 1e3 * float(begun.elapsed_time(ended)) if ended.query() else None

    def _timed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = self._mark()
            out = run(*args, **kwargs)
            self._ends = self._ends or (begun, self._mark())  # a replay ends first
            return out

        return timed

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter_ns() / 1e3
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def capture_sizes_of(
    table: CostTable, draft_tokens: int, asked: Collection[int] | None
) -> tuple[int, ...]:
    """Widths to choose from: `asked`, or the table's; none above the whole tree."""
    measured = table.axes.capture_sizes
    covered = measured or tuple(range(1, table.fit.domain["width"][1] + 1))
    if not_covered := sorted(set(asked or ()) - set(covered)):
        known = ", ".join(map(str, measured)) or f"1 to {covered[-1]}"
        raise ConfigError(
            f"EVICT_PROFILE_CAPTURE_SIZES has width {not_covered[0]}, and {table.path} "
            f"has widths {known}; measure it, or leave it out"
        )
    if asked and max(asked) > draft_tokens:
        raise ConfigError(
            f"EVICT_PROFILE_CAPTURE_SIZES has width {max(asked)}, and the server "
            f"drafts {draft_tokens} tokens with the root; leave it out, or raise "
            "--speculative-num-draft-tokens"
        )
    wanted = asked or {*(measured or DEFAULT_CAPTURE_SIZES), draft_tokens}
    widths = {width for width in wanted if width in covered and width <= draft_tokens}
    if not widths:
        raise ConfigError(
            f"{table.path} covers no width up to the server's {draft_tokens} draft "
            "tokens; measure smaller widths, or raise --speculative-num-draft-tokens"
        )
    return tuple(sorted(widths))


def fetch(pinned: dict[Any, Tensor], *tensors: Tensor) -> list[NDArray[Any]]:
    """Tensors on the host, valid until the next call; `pinned` has buffers by shape."""
    found = []
    for place, tensor in enumerate(tensors):
        if tensor.is_cuda:
            key = (tensor.shape, tensor.dtype, place)
            if key not in pinned:
                pinned[key] = torch.empty_like(tensor, device="cpu", pin_memory=True)
            tensor = pinned[key].copy_(tensor, non_blocking=True)
        found.append(tensor)
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream().synchronize()
    return [tensor.numpy() for tensor in found]


def _mean(lengths: NDArray[Any]) -> float:
    return float(lengths.sum()) / len(lengths)
