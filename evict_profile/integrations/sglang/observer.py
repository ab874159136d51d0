"""Recording what a live server drafts and accepts: traces, evict-trace/1.

Whole trees are verified. Each stage waits for the device, so the server is slower, and
its clocks are those of a server without overlap.
"""

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evict_profile.drafting import DraftClock
from evict_profile.integrations.sglang.compat import (
    ENGINE,
    device_name,
    experts,
    installed,
    on_gpu,
    option,
)
from evict_profile.integrations.sglang.modes import Mode, VerifyTimer
from evict_profile.integrations.sglang.router import RouteBuffers
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.traces.schema import COLUMNS, Metadata, encode_routes, mark
from evict_profile.traces.trace import TraceInfo

WORKLOAD = "served"
KEPT_REPLIES = 1 << 16

STEPS_PER_PART = 256
IDLE_S = 0.3
KEPT_CLOCKS = 512


class Observer(Mode):
    """Records the steps of one worker into a folder."""

    def __init__(self, worker: Any, folder: Path, router: RouteBuffers) -> None:
        self.worker, self.router = worker, router
        self._runner = worker.target_worker.model_runner
        self._about = self._described()
        self.writer = TraceWriter(folder, self._about)
        self._timer = VerifyTimer(self._runner)
        # By request: its reply's number, and its last position.
        self._replies: dict[str, tuple[int, int]] = {}
        self._seen = 0
        self._rows: list[dict[str, Any]] = []
        self._begun_us = self._drafted_us = self._verify_us = 0.0
        self._drafted: Drafted | None = None

    def begin(self, prefill: bool) -> None:
        self._drafted = None
        if not prefill:
            self._begun_us = self._now_us()

    def choose(self, batch: Any, drafted: Drafted) -> None:
        self._drafted_us = now_us = self._now_us()
        self._drafted = drafted.each(Tensor.cpu)
        self._leave_out(now_us)

    def verifying(self) -> AbstractContextManager[None]:
        return self._timer.verifying()

    def verified(self, batch: Any, result: Any) -> None:
        if self._drafted is None:
            return
        now_us = self._now_us()
        self._verify_us = self._timer.take_us() or 0.0
        width = self._drafted.width
        committed = result.next_token_ids.view(-1, width).tolist()
        lengths = result.accept_lens.tolist()
        routes = self.router.routes(len(lengths) * width).transpose(0, 1).numpy()
        contexts = batch.seq_lens.tolist()
        for index, request in enumerate(batch.reqs):
            position = contexts[index] - len(request.origin_input_ids) + 1
            number = self._reply(request.rid, position)
            if self._is_whole(index):
                own = routes[index * width : (index + 1) * width]
                said = committed[index][: lengths[index]]
                self._rows.append(
                    self._tree(index, said)
                    | {
                        "workload": WORKLOAD,
                        "prompt": number,
                        "seed": 0,
                        "temperature": _temperature(request),
                        "position": position,
                        "context": contexts[index],
                        "routes": encode_routes(own, self._about.experts),
                    }
                )
        self._leave_out(now_us)

    def end(self) -> None:
        """All levels are drafted as one graph, timed as the first."""
        if self._drafted is None:
            return
        draft_us = self._drafted_us - self._begun_us
        self.writer.add(
            self._rows,
            batch=len(self._drafted.index),
            draft_us=draft_us,
            verify_us=self._verify_us,
            fixed_us=self._now_us() - self._drafted_us - self._verify_us,
        )
        self._rows = []

    def _leave_out(self, since_us: float) -> None:
        own_us = self._now_us() - since_us
        self._begun_us += own_us
        self._drafted_us += own_us

    def _is_whole(self, index: int) -> bool:
        """Whether all nodes hang on the root; others are not verified."""
        assert self._drafted
        parent = self._drafted.parent[index]
        return bool((parent < torch.arange(len(parent))).all())

    def _tree(self, index: int, committed: list[int]) -> dict[str, Any]:
        assert self._drafted
        tree = self._drafted
        parent, tokens = tree.parent[index].tolist(), tree.tokens[index].tolist()
        return {
            "parent": parent,
            "token": tokens,
            "path_prob": tree.path_prob[index].tolist(),
            "accepted": accepted_nodes(parent, tokens, committed),
        }

    def _reply(self, rid: str, position: int) -> int:
        """The number of a reply; an `rid` whose position does not rise is new."""
        number, last = self._replies.pop(rid, (0, position))
        if position <= last:
            number, self._seen = self._seen, self._seen + 1
        self._replies[rid] = number, position
        if len(self._replies) > KEPT_REPLIES:
            self._replies.pop(next(iter(self._replies)))
        return number

    def _described(self) -> TraceInfo:
        worker, runner = self.worker, self._runner
        layer = next(experts(runner.model))
        return TraceInfo(
            model=Path(str(option(runner.server_args, "served_model_name"))).name,
            engine=ENGINE,
            engine_version=installed(),
            device=device_name(runner),
            depth=worker.speculative_num_steps,
            topk=worker.topk,
            nodes=worker.speculative_num_draft_tokens - 1,
            layers=len(self.router.ids),
            experts=int(layer.num_experts),
            top_k=int(layer.top_k),
        )

    def _now_us(self) -> float:
        if on_gpu(self._runner):
            torch.cuda.synchronize()
        return time.perf_counter_ns() / 1e3


class TraceWriter:
    """Writes steps in parts, when many wait or the server is idle.

    SGLang ends its processes by SIGKILL, which loses the last second.
    """

    def __init__(self, folder: Path, about: TraceInfo) -> None:
        # Once now: the first write takes seconds beside a scheduler that spins idly.
        pq.write_table(COLUMNS.empty_table(), pa.BufferOutputStream())
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._about = folder, about
        # In a container every server has the same process id.
        self._server = f"{int(time.time())}.{os.getpid()}"
        self._rows: list[dict[str, Any]] = []
        self._times: dict[int, list[tuple[float, float]]] = {}
        self._steps = self._parts = 0
        self._stepped_s = 0.0
        self._failed: Exception | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._flush_when_idle, daemon=True).start()

    def add(
        self,
        rows: list[dict[str, Any]],
        batch: int,
        draft_us: float,
        verify_us: float,
        fixed_us: float,
    ) -> None:
        """Add a step of `batch` requests; raises errors of idle writes."""
        if self._failed:
            raise self._failed
        stages = {
            "draft_us": (draft_us, *[0.0] * (self._about.depth - 1)),
            "verify_us": verify_us,
            "fixed_us": fixed_us,
        }
        with self._lock:
            kept = self._times.setdefault(batch, [])
            kept.append((draft_us, fixed_us))
            del kept[:-KEPT_CLOCKS]
            self._rows += [row | stages for row in rows]
            self._stepped_s = time.monotonic()
            self._steps += 1
            if self._steps % STEPS_PER_PART == 0:
                self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        clocks = tuple(self._clock(batch) for batch in sorted(self._times))
        table = pa.Table.from_pylist(self._rows, schema=COLUMNS)
        path = self._folder / f"{self._server}-{self._parts:06}.parquet"
        unfinished = path.with_suffix(".unfinished")
        pq.write_table(mark(table, Metadata(self._about, clocks)), unfinished)
        unfinished.replace(path)
        self._rows, self._parts = [], self._parts + 1

    def _flush_when_idle(self) -> None:
        while self._failed is None:
            time.sleep(IDLE_S)
            with self._lock:
                if time.monotonic() - self._stepped_s > IDLE_S:
                    try:
                        self.flush()
                    except Exception as error:
                        self._failed = error  # the next step raises it

    def _clock(self, batch: int) -> DraftClock:
        """Medians over whole steps at a batch size.

        All levels are one graph, so every depth takes its time; a step that drafts
        nothing extends the drafter's cache too.
        """
        draft_us, fixed_us = map(median, zip(*self._times[batch], strict=True))
        levels = (0.0, *[draft_us] * self._about.depth)
        return DraftClock(batch, levels, fixed_us, fixed_us)


def accepted_nodes(
    parent: list[int], tokens: list[int], committed: list[int]
) -> list[bool]:
    """Whether a reply went through each node; the target's token ends `committed`."""
    accepted, at = [False] * len(parent), -1
    for token in committed[:-1]:
        at = next(
            node
            for node, above in enumerate(parent)
            if above == at and tokens[node] == token
        )
        accepted[at] = True
    return accepted


def _temperature(request: Any) -> float:
    """SGLang serves temperature 0 as top-1 at temperature 1."""
    asked = request.sampling_params
    return 0.0 if asked.top_k == 1 else float(asked.temperature)
