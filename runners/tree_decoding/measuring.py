"""The engine's prices: forwards of forced unions, timed as the engine runs them.

What verification costs here is decided in the engine's own code: how it lays out ragged
trees, pads attention, calls experts. So the cells of a sweep are timed through it, over
the trained weights and real text, in a cache as warm as decoding leaves it (the whole
model fits in the last level). Each sample stands between two runs of one small fixed
forward, which tells how fast the machine is just then.
"""

from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.stats import Ints
from runners.measuring import Reading, check_shape, sample
from runners.protocol import PARTS, Message
from runners.torch_moe.device import pick_device
from runners.torch_moe.routing import force_unions, row_counts, unions
from runners.tree_decoding.checkpoint import describe_engine, open_checkpoint
from runners.tree_decoding.clocks import Reference, now
from runners.tree_decoding.corpus import HeldOut
from runners.tree_decoding.layout import CacheSlot, Layout, make_layout
from runners.tree_decoding.target import TargetShape, norm
from runners.tree_decoding.tree import ancestors
from runners.tree_decoding.verifier import (
    Routing,
    Verifier,
    forced_routing,
    own_routing,
    product,
)

ALONE_RUNS = 64
CLOCKS = {"cpu": "process CPU time", "cuda": "wall time"}


class MeasureSession:
    """The target in memory, filled caches, and a clock."""

    def __init__(self, model: dict[str, Any], options: dict[str, Any]) -> None:
        self.device = pick_device(options["device"])
        checkpoint = open_checkpoint(options["world"])
        self.shape = checkpoint.target.shape
        check_model(model, self.shape)
        self.room = options["max_context"] + options["max_width"]
        self.text = HeldOut(checkpoint.tokenizer).streams["prose"]
        batch = options["max_batch"]
        # The last slot is the reference's, which overwrites what the cache holds.
        self.verifier = Verifier(checkpoint.target, batch + 1, self.room, self.device)
        self.reference = Reference(self.verifier, self.text, batch)
        layers = options["layers"]
        self.layers = self.shape.layers if layers == "auto" else int(layers)
        self.fill(batch, options["max_context"])
        self.warm_rows: set[int] = set()

    def answer_open(self) -> Message:
        """The fingerprint, and how fast experts are read when they alone run."""
        return {
            "fingerprint": {
                **describe_engine(self.device),
                "layers": self.layers,
                "attention_backend": "sdpa-padded",
                "moe_backend": "torch.mm, woken experts",
                "graph_mode": "eager",
                "clock": f"{CLOCKS[self.device.type]} over reference",
            },
            "parts": PARTS,
            "ladder": [],
            "bandwidth_gbps": self.experts_alone_gbps(),
            "bytes_per_expert": self.expert_bytes,
        }

    @property
    def expert_bytes(self) -> int:
        return 3 * self.shape.hidden * self.shape.expert_width * 4

    @torch.inference_mode()
    def experts_alone_gbps(self) -> float:
        """Bytes of experts a second when their products alone are run, a row each.

        Here a copy's bandwidth bounds nothing: the weights lie in cache, and an expert
        costs two calls. What the slope in the union cannot pass is this.
        """
        count = self.shape.experts
        ids, sizes = list(range(count)), [1] * count
        x = torch.randn(count, self.shape.hidden, device=self.device)
        hidden = torch.randn(count, self.shape.expert_width, device=self.device)
        times = []
        for run in range(ALONE_RUNS):
            experts = self.verifier.experts[run % self.shape.layers]
            begun = now(self.device)
            product(x, experts.gate_up, ids, sizes)
            product(hidden, experts.down, ids, sizes)
            times.append((now(self.device) - begun).us)
        return count * self.expert_bytes / median(times) / 1e3

    def measure(self, ask: Message) -> Message:
        """Time a cell once for each of the seeds."""
        layers = ask.get("layers") or self.layers
        return {"samples": [self.sample(ask["cell"], layers, s) for s in ask["seeds"]]}

    @torch.inference_mode()
    def sample(self, cell: Message, layers: int, seed: int) -> Message:
        """Time one forward between two references."""
        forward = CellForward(self, cell, layers, seed)
        cache, own = self.verifier.cache.rows, forward.layout.rows
        # The forward writes over text that longer contexts read.
        text = cache[:, :, :, own]
        if fresh := forward.row_counts() - self.warm_rows:
            # A product of a new size compiles its kernel: run it once untimed.
            forward.run()
            self.warm_rows |= fresh
        before_us = self.reference.us()
        begun = now(self.device)
        forward.run()
        took = now(self.device) - begun
        reference_us = (before_us + self.reference.us()) / 2.0
        cache[:, :, :, own] = text
        reading = Reading(took.us, took.wall_us, reference_us)
        return sample(seed, reading, cell["width"], unions(forward.ran))

    @torch.inference_mode()
    def fill(self, batch: int, context: int) -> None:
        """Put real text into the caches of so many requests."""
        for slot in range(batch):
            self.verifier.read(self.tokens_of(slot, 0, context), slot)

    def tokens_of(self, slot: int, start: int, count: int) -> Tensor:
        """Text of one request from a position on."""
        at = slot * self.room + start
        wrapped = torch.arange(at, at + count) % len(self.text)
        return self.text[wrapped].long().to(self.device)


class CellForward:
    """One forward of a cell: its tokens, trees and routes, drawn by a seed.

    Attributes:
        routes: forced ones, [layers, T, k]; None where the routers choose.
        ran: experts [T, k] of each MoE layer of the last run.
    """

    def __init__(
        self, session: MeasureSession, cell: Message, layers: int, seed: int
    ) -> None:
        self.session, self.cell, self.seed = session, cell, seed
        self.verifier = session.verifier
        width, batch, context = (cell[n] for n in ("width", "batch", "context"))
        self.layers = layers if cell["part"] == "layers" else 0
        self.ids = torch.cat(
            [session.tokens_of(b, context, width) for b in range(batch)]
        )
        self.parents = [self.draw_parents(request) for request in range(batch)]
        self.layout = self.lay_out()
        self.x = F.embedding(self.ids, self.verifier.stack.embedding)
        forced = self.layers and cell["split"] != "natural"
        self.routes = self.draw_routes() if forced else None
        self.ran: list[Tensor] = []

    def draw_parents(self, request: int) -> Ints:
        """A random tree; real text, whose routing is natural, stays a chain."""
        nodes = np.arange(self.cell["width"] - 1)
        if self.cell["split"] == "natural":
            return nodes - 1
        rng = np.random.default_rng((self.seed, request))
        return rng.integers(-1, nodes) if len(nodes) else nodes

    def draw_routes(self) -> Tensor:
        """Routes [layers, T, k] of exactly the cell's union."""
        shape = self.session.shape
        routes = force_unions(
            self.cell, self.layers, shape.top_k, shape.experts, self.seed
        )
        return routes.to(self.session.device)

    def lay_out(self) -> Layout:
        """As the engine does before each verification."""
        context, width = self.cell["context"], self.cell["width"]
        positions = np.arange(context, context + width)
        slots = [
            CacheSlot(slot, context, ancestors(parent), positions)
            for slot, parent in enumerate(self.parents)
        ]
        return make_layout(slots, self.verifier.cache)

    def run(self) -> None:
        """The part that the cell times."""
        if not self.layers:
            self.lay_out()
            x = F.embedding(self.ids, self.verifier.stack.embedding)
            F.linear(norm(x), self.verifier.stack.head).argmax(dim=-1).tolist()
            return
        routing: Routing = own_routing
        if self.routes is not None:
            routing = forced_routing(self.routes)
        x, self.ran = self.x, []
        for index in range(self.layers):
            x, chosen = self.verifier.run_layer(index, x, self.layout, routing)
            self.ran.append(chosen)

    def row_counts(self) -> set[int]:
        if self.routes is None:
            return set()
        return row_counts(self.routes, self.session.shape.experts)


def check_model(model: Message, shape: TargetShape) -> None:
    """Check that a model description is the checkpoint's."""
    attention, moe = model["attention"], model["moe"]
    asked = {
        "vocab": model["vocab_size"],
        "hidden": model["hidden_size"],
        "layers": model["num_layers"],
        "heads": attention["num_heads"],
        "key_heads": attention["num_kv_heads"],
        "head_dim": attention["head_dim"],
        "experts": moe["num_experts"],
        "top_k": moe["top_k"],
        "expert_width": moe["expert_width"],
    }
    check_shape(
        {name: (value, getattr(shape, name)) for name, value in asked.items()},
        kind="world",
        found_in="the world",
        fix="pass the world's own model.yaml as --model",
    )
