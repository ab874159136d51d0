"""One open model in SGLang: what it is, and the measuring of its cells."""

import sys
import tempfile
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.compat import CUTTING, experts
from evict_profile.integrations.sglang.graphs import (
    build_state,
    described,
    own_state,
    swapped,
)
from evict_profile.integrations.sglang.modes import VerifyTimer
from evict_profile.integrations.sglang.router import RouteBuffers
from runners.clock import copy_bandwidth_gbps, pick_clock
from runners.device import first_line, pick_device
from runners.protocol import Message, Refusal, tell
from runners.session import Forward, MeasureSession, Timing
from runners.sglang_verify.drafting import SEED, DraftTimer
from runners.sglang_verify.opening import (
    check_format,
    check_layers,
    check_loaded,
    check_room,
    check_weights,
    describe_engine,
    hook_the_router,
    make_plan,
    refused_memory,
    supported_version,
)
from runners.sglang_verify.rounds import ForcedServing, hook_the_worker
from runners.sglang_verify.server import load_workers, prepare_process
from runners.sglang_verify.verification import (
    CacheSlots,
    ServedForward,
    ServedTrees,
    ServedVerifier,
    chains,
    random_trees,
)
from runners.torch_moe.shape import RandomWeights
from runners.torch_moe.stack import free_bytes
from runners.trees import force_unions, row_counts, unions


class Session(MeasureSession):
    """SGLang's target in memory, and graphs for each width."""

    whole = True

    def __init__(self, model: Message, options: Message) -> None:
        super().__init__()
        self.version = supported_version()
        self.device = pick_device(options["device"])
        self.graphs = bool(options["graphs"]) and self.device.type == "cuda"
        tp = options["engine"]["tp"]
        prepare_process(self.device, options.get("rank", 0), tp)
        check_layers(model, options["layers"])
        if not options["engine"]["model"]:
            check_weights(model, tp, free_bytes(self.device))
        self.model = model
        noise = RandomWeights(self.device, torch.bfloat16, options["seed"])
        self.clock = pick_clock(self.device, noise)
        self.bandwidth_gbps = copy_bandwidth_gbps(self.device)
        self.router = RouteBuffers()
        with tempfile.TemporaryDirectory() as scratch:
            self.plan = make_plan(
                model, options, self.device, self.version, Path(scratch)
            )
            self.load(options)
        self.timer = VerifyTimer(self.model_runner)
        self.capture_sizes = sorted(self.verifier.states) if self.graphs else []
        self.fingerprint = {
            **describe_engine(self.model_runner, self.plan),
            "layers": self.layers,
            "clock": self.clock.name,
            "threads": torch.get_num_threads(),
        }
        check_format(options["dtype"], self.fingerprint["dtype"])

    def load(self, options: Message) -> None:
        plan = self.plan
        self.begun_s = time.monotonic()
        self.report("loading the model")
        hook_the_router(self.router)
        self.serving = ForcedServing() if self.version in CUTTING else None
        if self.serving:
            hook_the_worker(self.serving)
        try:
            runner, self.drafter = load_workers(plan, self.device, self.allocate)
            states = {plan.width: own_state(runner, plan.width)}
            widths = sorted({plan.width, *options["capture_sizes"]}, reverse=True)
            for place, width in enumerate(widths[1:], start=2):
                self.report(f"capturing width {width}, {place} of {len(widths)}")
                states[width] = build_state(runner, width, plan.steps)
            self.router.forcing = False
            slots = CacheSlots(runner, plan.batches, plan.max_request_tokens, plan.seed)
        except Exception as error:
            raise refused_memory(error, "memory") from error
        self.model_runner = runner
        self.verifier = ServedVerifier(runner, slots, states, plan.topk, plan.steps)
        if self.serving and self.serving.active:
            self.serving.run_on(states)
        else:  # the log says why
            self.serving = None
        self.report(described(states.values(), runner.device))

    def report(self, words: str) -> None:
        """Say in the log and, if this is rank 0, to the toolkit how far opening is."""
        words = f"SGLang, {time.monotonic() - self.begun_s:.0f} s: {words}"
        print(words, file=sys.stderr, flush=True)
        if self.plan.rank == 0:
            tell({"progress": words})

    def allocate(self, model_runner: Any) -> None:
        """Give the router its buffers, before any graph has them in it."""
        check_room(self.plan, model_runner.max_total_num_tokens)
        found = list(experts(model_runner.model))
        check_loaded(self.model, found, model_runner.model_config)
        self.layers = len(found)
        held = sum(weights.nbytes for weights in found[0].parameters())
        self.bytes_per_expert = held // self.model["moe"]["num_experts"]
        top_k = self.model["moe"]["top_k"]
        tokens = max(self.plan.batches) * self.plan.width
        ids = [layer.layer_id for layer in found]
        self.router.allocate(ids, tokens, top_k, self.device)
        self.router.forcing = self.graphs
        self.router.recording = True
        self.report(f"capturing the server's own graphs, of width {self.plan.width}")

    def answer_open(self) -> Message:
        """With the format of the weights as the engine loaded them."""
        observed = {"clocks": True, "dtype": self.fingerprint["dtype"]}
        return super().answer_open() | observed

    def answer_clock(self, ask: Message) -> Message:
        """Median times of a step beside verification, in microseconds."""
        if self.drafter is None:
            raise Refusal(
                "device",
                f"SGLang {self.version} with this model cannot draft on "
                f"{self.device.type}: 0.5.16 drafts on GPUs alone, and an EAGLE-3 head "
                "needs a target of 8 layers",
            )
        return self.draft_timer.measure(ask["batch"], ask["steps"])

    @cached_property
    def draft_timer(self) -> DraftTimer:
        """It keeps what it builds for each depth."""
        plan = self.plan
        return DraftTimer(
            self.drafter,
            self.verifier,
            plan.width,
            plan.context,
            self.clock,
            self.serving,
            self.force_usual,
        )

    def force_usual(self, batch: int, width: int) -> int:
        """Force the union that uniform routing would give, and return it."""
        moe = self.model["moe"]
        top_k, experts = moe["top_k"], moe["num_experts"]
        union = round(experts * (1.0 - (1.0 - top_k / experts) ** (batch * width)))
        cell = {"batch": batch, "width": width, "union": union, "split": "balanced"}
        self.router.forcing = True
        self.router.force(force_unions(cell, self.layers, top_k, experts, SEED))
        return union

    def refusal(self, error: Exception) -> Exception:
        if isinstance(error, ValueError):
            return Refusal("failed", first_line(error))
        return refused_memory(error, "oom")

    def sample(self, cell: Message, layers: int, seed: int) -> Message:
        """Time one forward on the backend and graphs of its width."""
        with swapped(self.model_runner, self.state_of(cell["width"])):
            return super().sample(cell, layers, seed)

    def prepare(self, cell: Message, layers: int, seed: int) -> Forward:
        """Lay out a forward, whose routes are forced."""
        batch, width, context = cell["batch"], cell["width"], cell["context"]
        draw = chains if cell["split"] == "natural" else random_trees
        trees = draw(batch, width, seed, self.device)
        routes = self.set_routes(cell, trees, seed)
        if self.are_new(self.sizes(routes, batch * width)):
            # A forward advances its requests, so it cannot run twice.
            self.verifier.prepare(trees, context, seed).run()
        forward = self.verifier.prepare(trees, context, seed)

        def read_unions() -> list[int]:
            self.check_ran(forward, batch * width)
            return unions(self.router.routes(batch * width))

        return Forward(forward.run, forward.width, read_unions)

    def state_of(self, width: int) -> Any:
        if width not in self.verifier.states:
            known = ", ".join(map(str, sorted(self.verifier.states)))
            raise Refusal("infeasible", f"width {width} is not one of {known}")
        return self.verifier.states[width]

    def set_routes(self, cell: Message, trees: ServedTrees, seed: int) -> Tensor:
        """Force the cell's union, or the routes that the model's routers choose.

        Those are learnt in an eager forward that is not timed, since captured graphs
        force. Returns what is forced, [layers, T, k].
        """
        router = self.router
        if cell["split"] == "natural":
            router.forcing = False
            eager = replace(self.state_of(cell["width"]), graph_runner=None)
            with swapped(self.model_runner, eager):
                self.verifier.prepare(trees, cell["context"], seed).run()
        else:
            moe = self.model["moe"]
            top_k, experts = moe["top_k"], moe["num_experts"]
            router.force(force_unions(cell, self.layers, top_k, experts, seed))
        router.forcing = True
        return router.routes(cell["batch"] * cell["width"])

    def sizes(self, routes: Tensor, tokens: int) -> set[int]:
        """Row counts of a CPU's products; of dense ones, the tokens, below zero."""
        if self.device.type != "cpu":
            return set()
        return {-tokens} | row_counts(routes, self.model["moe"]["num_experts"])

    def time(self, forward: Forward) -> Timing:
        """Time a forward; on a GPU by the plug-in's timer, as a server is timed."""
        if self.device.type == "cpu":
            return super().time(forward)
        with self.timer.verifying():
            reading = super().time(forward)
        return replace(reading, clock_us=self.timer.take_us() or 0.0)

    def check_ran(self, forward: ServedForward, tokens: int) -> None:
        """Refuse eager forwards among those of captured graphs, and layers that run
        other routes, as their kernels were never given what is forced."""
        if self.graphs and not forward.graph_ran:
            raise Refusal(
                "graph",
                f"no captured graph ran at batch {forward.forward_batch.batch_size}, "
                f"width {forward.width}; see SGLang's log for what was captured",
            )
        if unforced := self.router.unforced(tokens):
            raise Refusal(
                "failed",
                f"MoE layers {unforced} did not call select_experts, so their experts "
                "cannot be forced; see SGLang's log for the MoE backend that it chose",
            )
