"""One open model in SGLang: what it is, and the measuring of its cells."""

import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.buffers import RouteBuffers
from evict_profile.integrations.sglang.compat import experts
from evict_profile.integrations.sglang.graphs import build_state, own_state, swapped
from runners.measuring import sample
from runners.protocol import PARTS, Message, Refusal
from runners.sglang_verify.drafting import DraftTimer
from runners.sglang_verify.opening import (
    check_layers,
    check_loaded,
    describe_engine,
    hook_the_router,
    make_plan,
    refused_memory,
    supported_version,
)
from runners.sglang_verify.server import load_workers, prepare_process
from runners.sglang_verify.verification import (
    CacheSlots,
    Forward,
    ServedTrees,
    ServedVerifier,
    chains,
    random_trees,
)
from runners.torch_moe.clocks import CpuClock, CudaClock, copy_bandwidth_gbps
from runners.torch_moe.device import first_line, pick_device
from runners.torch_moe.routing import force_unions, row_counts, unions
from runners.torch_moe.shape import Noise


class Session:
    """SGLang's target in memory, graphs for each width, and a clock."""

    def __init__(self, model: Message, options: Message) -> None:
        self.version = supported_version()
        self.device = pick_device(options["device"])
        self.graphs = bool(options["graphs"]) and self.device.type == "cuda"
        prepare_process(self.device)
        check_layers(model, options["layers"])
        self.model = model
        noise = Noise(self.device, torch.bfloat16, options["seed"])
        on_cpu = self.device.type == "cpu"
        self.clock = CpuClock(noise) if on_cpu else CudaClock(self.device)
        self.bandwidth_gbps = copy_bandwidth_gbps(self.device)
        self.router = RouteBuffers()
        with tempfile.TemporaryDirectory() as scratch:
            self.plan = make_plan(
                model, options, self.device, self.version, Path(scratch)
            )
            self.load(options)
        self.warm_rows: set[int] = set()

    def load(self, options: Message) -> None:
        """Load the model, and build what verifies each width."""
        plan = self.plan
        hook_the_router(self.router)
        try:
            runner, self.drafter = load_workers(plan, self.device, self.allocate)
            states = {plan.width: own_state(runner, plan.width)}
            for width in sorted(options["ladder"]):
                if width not in states:
                    states[width] = build_state(runner, width, plan.steps)
            self.router.forcing = False
            slots = CacheSlots(runner, plan.batches, plan.reach, plan.seed)
        except Exception as error:
            raise refused_memory(error, "memory") from error
        self.model_runner = runner
        self.verifier = ServedVerifier(runner, slots, states, plan.topk, plan.steps)

    def allocate(self, model_runner: Any) -> None:
        """Give the router its buffers, before any graph has them in it."""
        found = list(experts(model_runner.model))
        check_loaded(self.model, found, model_runner.model_config)
        self.layers = [layer.layer_id for layer in found]
        top_k = self.model["moe"]["top_k"]
        tokens = max(self.plan.batches) * self.plan.width
        self.router.allocate(self.layers, tokens, top_k, self.device)
        self.router.forcing = self.graphs
        self.router.recording = True

    def answer_open(self) -> Message:
        """The fingerprint, the ladder, the copy bandwidth, and if there is a clock."""
        moe = self.model["moe"]
        return {
            "fingerprint": {
                **describe_engine(self.model_runner, self.plan),
                "layers": len(self.layers),
                "clock": self.clock.name,
                "threads": torch.get_num_threads(),
            },
            "parts": PARTS,
            "ladder": sorted(self.verifier.states) if self.graphs else [],
            "bandwidth_gbps": self.bandwidth_gbps,
            "bytes_per_expert": 3
            * self.model["hidden_size"]
            * moe["expert_width"]
            * self.model_runner.dtype.itemsize,
            "whole": True,
            "clocks": True,
        }

    def answer_clock(self, ask: Message) -> Message:
        """Median times of a step beside verification, in microseconds."""
        if self.drafter is None:
            raise Refusal(
                "device",
                f"SGLang {self.version} with this model cannot draft on "
                f"{self.device.type}: 0.5.16 drafts on GPUs alone, and an EAGLE-3 head "
                "needs a target of 8 layers",
            )
        self.router.forcing = self.graphs
        return self.draft_timer.measure(ask["batch"], ask["steps"])

    @cached_property
    def draft_timer(self) -> DraftTimer:
        """It keeps what it builds for each depth."""
        plan = self.plan
        return DraftTimer(
            self.drafter, self.verifier, plan.width, plan.context, self.clock
        )

    def measure(self, ask: Message) -> Message:
        """Time a cell once for each of the seeds."""
        layers, cell = ask.get("layers") or len(self.layers), ask["cell"]
        if cell["part"] != "layers" or layers != len(self.layers):
            raise Refusal(
                "infeasible",
                "SGLang runs whole forwards, neither some of their layers "
                "nor the rest apart; set 'whole: true' in the sweep",
            )
        try:
            return {"samples": [self.sample(cell, seed) for seed in ask["seeds"]]}
        except ValueError as error:
            raise Refusal("failed", first_line(error)) from error
        except RuntimeError as error:
            raise refused_memory(error, "oom") from error

    def sample(self, cell: Message, seed: int) -> Message:
        """Time one forward; what ran is read back after the clock has stopped."""
        batch, width = cell["batch"], cell["width"]
        natural = cell["split"] == "natural"
        trees = (
            chains(batch, width, self.device)
            if natural
            else random_trees(batch, width, seed, self.device)
        )
        with swapped(self.model_runner, self.state_of(width)):
            routes = self.set_routes(cell, trees, seed)
            if self.is_new(routes, batch * width):
                self.verifier.prepare(trees, cell["context"], seed).run()
            forward = self.verifier.prepare(trees, cell["context"], seed)
            reading = self.clock.time(forward.run)
        self.check_graph_ran(forward)
        ran = (width, "graph") if forward.graph_ran else (0, "eager")
        routed = unions(self.router.routes(batch * width))
        return sample(seed, reading, forward.width, routed, *ran)

    def state_of(self, width: int) -> Any:
        """The backend and graphs of a width."""
        if width not in self.verifier.states:
            known = ", ".join(map(str, sorted(self.verifier.states)))
            raise Refusal("infeasible", f"width {width} is not one of {known}")
        return self.verifier.states[width]

    def set_routes(self, cell: Message, trees: ServedTrees, seed: int) -> Tensor | None:
        """Force the cell's union; a graph is given the router's own routes likewise.

        A captured graph either forces or not, and these force: so natural routes are
        learnt in an eager forward that is not timed.

        Returns:
            The routes that are forced, [layers, T, k]; None where none are.
        """
        self.router.forcing = cell["split"] != "natural"
        if self.router.forcing:
            moe, layers = self.model["moe"], len(self.layers)
            routes = force_unions(cell, layers, moe["top_k"], moe["num_experts"], seed)
        elif self.graphs:
            eager = replace(self.state_of(cell["width"]), graph_runner=None)
            with swapped(self.model_runner, eager):
                self.verifier.prepare(trees, cell["context"], seed).run()
            routes = self.router.routes(cell["batch"] * cell["width"])
        else:
            return None
        self.router.force(routes)
        return routes

    def is_new(self, routes: Tensor | None, tokens: int) -> bool:
        """On a CPU, whether a product's size is new, whose kernel is compiled first.

        Rows of experts are told apart from those of dense products, the tokens.
        """
        if self.device.type != "cpu":
            return False
        rows = {-tokens}
        if routes is not None:
            rows |= row_counts(routes, self.model["moe"]["num_experts"])
        fresh = rows - self.warm_rows
        self.warm_rows |= rows
        return bool(fresh)

    def check_graph_ran(self, forward: Forward) -> None:
        """A time of eager mode has no place among those of captured graphs."""
        if self.graphs and not forward.graph_ran:
            raise Refusal(
                "graph",
                f"no captured graph ran at batch {forward.forward_batch.batch_size}, "
                f"width {forward.width}; see SGLang's log for what was captured",
            )
