"""Recording what a live server drafts and accepts: traces, evict-trace/1.

The whole tree is verified, so nothing is censored. Each step waits for the device at
the ends of its stages, so that their times are their own: a server that is observed is
slower than one that is not, and its clocks are those of a server without overlap.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.buffers import RouteBuffers
from evict_profile.integrations.sglang.compat import (
    ENGINE,
    device_name,
    experts,
    installed,
    on_gpu,
    option,
)
from evict_profile.integrations.sglang.trace_writer import StageTimes, TraceWriter
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.traces.schema import encode_routes
from evict_profile.traces.trace import About

WORKLOAD = "served"
KEPT_REPLIES = 1 << 16
"""More than any server has under way."""


@dataclass
class Stages:
    """Ends of one step's stages, on the host's clock, in microseconds."""

    begun: float
    drafted: float = 0.0
    verify_us: float = 0.0

    def leave_out(self, us: float) -> None:
        """Time that belongs to no stage of the server: the observer's own."""
        self.begun += us
        self.drafted += us

    def times(self, ended: float, levels: int) -> StageTimes:
        """Drafting, whose levels are one graph and so stand in the first; the
        target's forward; and everything beside the two."""
        draft_us = self.drafted - self.begun
        return StageTimes(
            draft_us=(draft_us, *[0.0] * (levels - 1)),
            verify_us=self.verify_us,
            fixed_us=ended - self.drafted - self.verify_us,
        )


@dataclass
class ServedReply:
    """One request: its number, and how many of its tokens are committed."""

    number: int
    position: int = 1


class Observer:
    """Records the steps of one worker into a folder."""

    def __init__(self, worker: Any, folder: Path, router: RouteBuffers) -> None:
        self.worker, self.router = worker, router
        self._runner = worker.target_worker.model_runner
        self._about = self._described()
        self.writer = TraceWriter(folder, self._about)
        self._runner.forward = self._timed(self._runner.forward)
        self._replies: dict[str, ServedReply] = {}
        self._seen = self._batch = 0
        self._rows: list[dict[str, Any]] = []
        self._stages: Stages | None = None
        self._drafted: Drafted

    def begin(self) -> None:
        self._stages = Stages(self._now_us())

    def end(self) -> None:
        assert self._stages
        times = self._stages.times(self._now_us(), self._about.depth)
        self.writer.add(self._rows, self._batch, times)
        self._rows, self._stages = [], None

    def stop(self) -> None:
        """Record no more, and wait for the device no more."""
        self._stages = None

    def drafted(self, drafted: Drafted) -> None:
        """Take the whole trees of this step."""
        assert self._stages
        self._stages.drafted = self._now_us()
        self._drafted = drafted.each(Tensor.cpu)
        self._stages.leave_out(self._now_us() - self._stages.drafted)

    def verified(self, batch: Any, result: Any) -> None:
        """Take what was accepted of them."""
        assert self._stages
        verified_us = self._now_us()
        width = self._drafted.width
        committed = result.next_token_ids.view(-1, width).tolist()
        lengths = result.accept_lens.tolist()
        self._batch = len(lengths)
        routes = self.router.routes(self._batch * width).transpose(0, 1).numpy()
        for index, request in enumerate(batch.reqs):
            if self._is_whole(index):
                own = routes[index * width : (index + 1) * width]
                row = self._row(index, request, committed[index][: lengths[index]])
                row["routes"] = encode_routes(own, self._about.experts)
                self._rows.append(row)
            self._reply(request).position += lengths[index]
        self._stages.leave_out(self._now_us() - verified_us)

    def _is_whole(self, index: int) -> bool:
        """Whether all nodes hang on the root; a node that does not is not verified."""
        parent = self._drafted.parent[index]
        return bool((parent < torch.arange(len(parent))).all())

    def _row(self, index: int, request: Any, committed: list[int]) -> dict[str, Any]:
        tree, reply = self._drafted, self._reply(request)
        parent, tokens = tree.parent[index].tolist(), tree.tokens[index].tolist()
        return {
            "workload": WORKLOAD,
            "prompt": reply.number,
            "seed": 0,
            "temperature": _temperature(request),
            "position": reply.position,
            "context": len(request.origin_input_ids) + reply.position - 1,
            "parent": parent,
            "token": tokens,
            "path_prob": tree.path_prob[index].tolist(),
            "accepted": accepted_nodes(parent, tokens, committed),
        }

    def _reply(self, request: Any) -> ServedReply:
        if request.rid not in self._replies:
            self._replies[request.rid] = ServedReply(self._seen)
            self._seen += 1
            if len(self._replies) > KEPT_REPLIES:
                self._replies.pop(next(iter(self._replies)))
        return self._replies[request.rid]

    def _timed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._stages:  # a prefill, for which nothing need wait
                return forward(*args, **kwargs)
            begun_us = self._now_us()
            out = forward(*args, **kwargs)
            self._stages.verify_us += self._now_us() - begun_us
            return out

        return timed

    def _described(self) -> About:
        worker, runner = self.worker, self._runner
        layer = next(experts(runner.model))
        return About(
            model=Path(str(option(runner.server_args, "served_model_name"))).name,
            engine=ENGINE,
            engine_version=installed(),
            device=device_name(runner),
            depth=worker.speculative_num_steps,
            topk=worker.topk,
            nodes=worker.speculative_num_draft_tokens - 1,
            layers=len(self.router.recorded),
            experts=int(layer.num_experts),
            top_k=int(layer.top_k),
        )

    def _now_us(self) -> float:
        if on_gpu(self._runner):
            torch.cuda.synchronize()
        return time.perf_counter_ns() / 1e3


def accepted_nodes(
    parent: list[int], tokens: list[int], committed: list[int]
) -> list[bool]:
    """Whether a reply went through each node: siblings never hold the same token.

    `committed` are the tokens of the step; the last is the target's own.
    """
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
