"""Recording what a live server drafts and accepts: traces, evict-trace/1.

The whole tree is verified, so nothing is censored. Each step waits for the device at
the ends of its stages, so that their times are their own: a server that is observed is
slower than one that is not, and its clocks are those of a server without overlap.

Steps are written in parts, each a whole trace file, when enough are there or when the
server has nothing to do. SGLang ends its processes by SIGKILL, so there is no last
moment to write in: what is lost then is the last second. The parts are read together by
giving their folder wherever a trace is asked for.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from evict_profile.integrations.sglang.buffers import Router
from evict_profile.integrations.sglang.compat import (
    ENGINE,
    device_name,
    experts,
    installed,
    option,
)
from evict_profile.integrations.sglang.tree import Drafted

STEPS_PER_PART = 256
IDLE_S = 0.3
WORKLOAD = "served"
KEPT_CLOCKS = 512
KEPT_REPLIES = 1 << 16
"""More than any server has under way."""


@dataclass
class Stages:
    """Ends of one step's stages, on the host's clock, in microseconds."""

    begun: float
    drafted: float = 0.0
    verify_us: float = 0.0
    ended: float = 0.0

    @property
    def draft_us(self) -> float:
        """Drafting, all levels."""
        return self.drafted - self.begun

    @property
    def fixed_us(self) -> float:
        """Everything beside drafting and the target's forward."""
        return self.ended - self.drafted - self.verify_us


@dataclass
class Reply:
    """One request: its number, and how many of its tokens are committed."""

    number: int
    position: int = 1


@dataclass
class Observer:
    """Records the steps of one worker into a folder."""

    worker: Any
    folder: Path
    router: Router
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _step: list[dict[str, Any]] = field(default_factory=list)
    _replies: dict[str, Reply] = field(default_factory=dict)
    _clocks: dict[int, list[Stages]] = field(default_factory=dict)
    _batch: int = 0
    _seen: int = 0
    _parts: int = 0
    _steps: int = 0
    _stepped_s: float = 0.0
    _failed: Exception | None = None

    def __post_init__(self) -> None:
        # Once now: the first write takes seconds beside a scheduler that spins idly.
        pa, pq = _arrow()
        pq.write_table(_columns(pa).empty_table(), pa.BufferOutputStream())
        self.folder.mkdir(parents=True, exist_ok=True)
        self._runner = self.worker.target_worker.model_runner
        self._runner.forward = self._timed(self._runner.forward)
        # In a container every server has the same process id.
        self._server = f"{int(time.time())}.{os.getpid()}"
        self._stages: Stages | None = None
        self._drafted: Drafted
        self._lock = threading.Lock()
        threading.Thread(target=self._flush_when_idle, daemon=True).start()

    def begin(self) -> None:
        """A step of decoding begins."""
        self._stages = Stages(self._now_us())

    def end(self) -> None:
        """It has ended: its times are known."""
        assert self._stages
        self._stages.ended = self._now_us()
        if self._failed:
            raise self._failed
        with self._lock:
            self._keep_clocks(self._step, self._stages)
            self._rows += self._step
            self._step, self._stages, self._stepped_s = [], None, time.monotonic()
            self._steps += 1
            if self._steps % STEPS_PER_PART == 0:
                self._flush()

    def stop(self) -> None:
        """Record no more, and wait for the device no more."""
        self._stages = None

    def drafted(self, drafted: Drafted) -> None:
        """The trees of this step, whole."""
        assert self._stages
        self._stages.drafted = self._now_us()
        self._drafted = Drafted(
            drafted.parent_list.cpu(),
            drafted.index.cpu(),
            drafted.tokens.cpu(),
            drafted.path_prob.cpu(),
            drafted.topk,
        )
        # What it took to copy belongs to no stage.
        copied_us = self._now_us() - self._stages.drafted
        self._stages.begun += copied_us
        self._stages.drafted += copied_us

    def verified(self, batch: Any, result: Any) -> None:
        """What was accepted of them."""
        assert self._stages
        verified_us = self._now_us()
        width = self._drafted.width
        said = result.next_token_ids.view(-1, width).tolist()
        lengths = result.accept_lens.tolist()
        self._batch = len(lengths)
        routes = self.router.routes(len(said) * width)
        for place, request in enumerate(batch.reqs):
            own = routes[:, place * width : (place + 1) * width]
            if self._is_whole(place):
                row = self._row(place, request, said[place][: lengths[place]])
                self._step.append({**row, "routes": self._encoded(own)})
            self._reply(request).position += lengths[place]
        copied_us = self._now_us() - verified_us
        self._stages.begun += copied_us
        self._stages.drafted += copied_us

    def _is_whole(self, place: int) -> bool:
        """Whether all nodes hang on the root: what does not was never verified."""
        parent = self._drafted.parent[place]
        return bool((parent < torch.arange(len(parent))).all())

    def _flush_when_idle(self) -> None:
        while self._failed is None:
            time.sleep(IDLE_S)
            with self._lock:
                if time.monotonic() - self._stepped_s > IDLE_S:
                    try:
                        self._flush()
                    except Exception as error:
                        self._failed = error  # the next step raises it

    def _flush(self) -> None:
        """Write what was recorded since the last part."""
        if not self._rows:
            return
        pa, pq = _arrow()
        notes = {
            "schema": "evict-trace/1",
            "about": self._about(),
            "clocks": [self._clock(*each) for each in sorted(self._clocks.items())],
        }
        table = pa.Table.from_pylist(self._rows, schema=_columns(pa))
        marked = table.replace_schema_metadata({"evict-trace": json.dumps(notes)})
        path = self.folder / f"{self._server}-{self._parts:06}.parquet"
        unfinished = path.with_suffix(".unfinished")
        pq.write_table(marked, unfinished)
        unfinished.replace(path)
        self._rows, self._parts = [], self._parts + 1

    def _row(self, place: int, request: Any, said: list[int]) -> dict[str, Any]:
        tree, reply = self._drafted, self._reply(request)
        parent, tokens = tree.parent[place].tolist(), tree.tokens[place].tolist()
        return {
            "workload": WORKLOAD,
            "prompt": reply.number,
            "seed": 0,
            "temperature": _temperature(request),
            "position": reply.position,
            "context": len(request.origin_input_ids) + reply.position - 1,
            "parent": parent,
            "token": tokens,
            "path_prob": tree.path_prob[place].tolist(),
            "accepted": accepted_nodes(parent, tokens, said),
        }

    def _reply(self, request: Any) -> Reply:
        if request.rid not in self._replies:
            self._replies[request.rid] = Reply(self._seen)
            self._seen += 1
            if len(self._replies) > KEPT_REPLIES:
                self._replies.pop(next(iter(self._replies)))
        return self._replies[request.rid]

    def _keep_clocks(self, rows: list[dict[str, Any]], stages: Stages) -> None:
        levels = [0.0] * (self.worker.speculative_num_steps - 1)
        for row in rows:
            row["draft_us"] = [stages.draft_us, *levels]
            row["verify_us"] = stages.verify_us
            row["fixed_us"] = stages.fixed_us
        kept = self._clocks.setdefault(self._batch, [])
        kept.append(stages)
        del kept[:-KEPT_CLOCKS]

    def _clock(self, batch: int, stages: list[Stages]) -> dict[str, Any]:
        """Whole steps at a batch size.

        All levels are drafted whatever is cut, as one graph, so that any depth takes
        the time of all; and a step that drafts nothing extends the drafter's cache as
        well.
        """
        draft_us = median(stage.draft_us for stage in stages)
        fixed_us = median(stage.fixed_us for stage in stages)
        return {
            "batch": batch,
            "draft_us": [0.0] + [draft_us] * self.worker.speculative_num_steps,
            "fixed_us": fixed_us,
            "plain_fixed_us": fixed_us,
        }

    def _timed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._stages:  # a prefill, for which nothing need wait
                return forward(*args, **kwargs)
            begun_us = self._now_us()
            out = forward(*args, **kwargs)
            self._stages.verify_us += self._now_us() - begun_us
            return out

        return timed

    def _encoded(self, routes: torch.Tensor) -> bytes:
        """Routes [layers, tokens, k] as a trace holds them: [tokens, layers, k]."""
        kind = "<u1" if self._experts <= 256 else "<u2"
        return routes.permute(1, 0, 2).contiguous().numpy().astype(kind).tobytes()

    @property
    def _experts(self) -> int:
        return int(next(experts(self._runner.model)).num_experts)

    def _about(self) -> dict[str, Any]:
        worker, runner = self.worker, self._runner
        return {
            "model": Path(str(option(runner.server_args, "served_model_name"))).name,
            "engine": ENGINE,
            "engine_version": installed(),
            "device": device_name(runner),
            "depth": worker.speculative_num_steps,
            "fan": worker.topk,
            "nodes": worker.speculative_num_draft_tokens - 1,
            "layers": len(self.router.recorded),
            "experts": self._experts,
            "top_k": next(experts(runner.model)).top_k,
        }

    def _now_us(self) -> float:
        if str(self._runner.device).startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter_ns() / 1e3


def _arrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet part, which servers that do not observe need not load."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa, pq


def accepted_nodes(parent: list[int], tokens: list[int], said: list[int]) -> list[bool]:
    """Which nodes a reply went through: siblings never hold the same token.

    `said` are the tokens that the step committed; the last is the target's own.
    """
    accepted, at = [False] * len(parent), -1
    for token in said[:-1]:
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


def _columns(pa: Any) -> Any:
    lists = {"parent": pa.int16(), "token": pa.int32(), "path_prob": pa.float32()}
    return pa.schema(
        [
            ("workload", pa.string()),
            *((name, pa.int64()) for name in ("prompt", "seed")),
            ("temperature", pa.float64()),
            *((name, pa.int64()) for name in ("position", "context")),
            *((name, pa.list_(kind)) for name, kind in lists.items()),
            ("accepted", pa.list_(pa.bool_())),
            ("routes", pa.large_binary()),
            ("draft_us", pa.list_(pa.float32())),
            *((name, pa.float32()) for name in ("verify_us", "fixed_us")),
        ]
    )
