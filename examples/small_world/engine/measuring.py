"""Cells of a sweep, timed through the engine's own code.

What verification costs here is how the engine lays out ragged trees, pads attention and
calls experts, in a cache as warm as decoding leaves it. So cells are its forwards, over
the trained weights and real text.
"""

from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from examples.small_world.engine.checkpoint import describe_engine, open_checkpoint
from examples.small_world.engine.clocks import make_clock
from examples.small_world.engine.corpus import HeldOut
from examples.small_world.engine.drafter import TargetShape, norm
from examples.small_world.engine.layout import CacheSlot, Layout, make_layout
from examples.small_world.engine.tree import ancestors
from examples.small_world.engine.verifier import (
    Routing,
    Verifier,
    forced_routing,
    own_routing,
    product,
)
from runners.clock import now
from runners.device import pick_device
from runners.protocol import Message
from runners.session import Forward, MeasureSession, check_shape
from runners.trees import force_unions, random_parents, row_counts, unions

READ_RUNS = 64


class Session(MeasureSession):
    """The target in memory, and filled caches."""

    def __init__(self, model: Message, options: Message) -> None:
        super().__init__()
        self.device = pick_device(options["device"])
        checkpoint = open_checkpoint(Path(options["engine"]["world"]), self.device)
        self.shape = shape = checkpoint.shape
        check_model(model, shape)
        self.room = options["max_context"] + options["max_width"]
        self.text = HeldOut(checkpoint.tokenizer).streams["prose"]
        batch = options["max_batch"]
        # The last slot is the reference's, which overwrites what the cache holds.
        self.verifier = Verifier(checkpoint, batch + 1, self.room)
        self.clock = make_clock(self.verifier, self.text, batch)
        layers = options["layers"]
        self.layers = shape.layers if layers == "auto" else int(layers)
        self.bytes_per_expert = 3 * shape.hidden * shape.expert_width * 4
        self.fill(batch, options["max_context"])
        self.bandwidth_gbps = self.expert_read_gbps()
        self.fingerprint = {
            **describe_engine(self.device),
            "layers": self.layers,
            "attention_backend": "sdpa-padded",
            "moe_backend": "torch.mm, activated experts",
            "graph_mode": "eager",
            "clock": self.clock.name,
        }

    @torch.inference_mode()
    def expert_read_gbps(self) -> float:
        """Bytes of experts a second when their products alone run, a row each.

        A copy's bandwidth bounds nothing here: the weights lie in cache, and an expert
        costs two calls. The slope in the union cannot pass this.
        """
        count = self.shape.experts
        ids, sizes = list(range(count)), [1] * count
        x = torch.randn(count, self.shape.hidden, device=self.device)
        hidden = torch.randn(count, self.shape.expert_width, device=self.device)
        times = []
        for run in range(READ_RUNS):
            experts = self.verifier.experts[run % self.shape.layers]
            start = now(self.device)
            product(x, experts.gate_up, ids, sizes)
            product(hidden, experts.down, ids, sizes)
            times.append((now(self.device) - start).us)
        return count * self.bytes_per_expert / median(times) / 1e3

    def prepare(self, cell: Message, layers: int, seed: int) -> Forward:
        forward = CellForward(self, cell, layers, seed)
        return Forward(
            forward.run,
            cell["width"],
            lambda: unions(forward.ran),
            sizes=forward.row_counts(),
        )

    @torch.inference_mode()
    def sample(self, cell: Message, layers: int, seed: int) -> Message:
        """Time one forward, which writes over text that longer contexts read."""
        context, cache = cell["context"], self.verifier.cache
        slots = cache.rows.unflatten(3, (cache.slots, cache.room))
        written = slots[:, :, :, : cell["batch"], context : context + cell["width"]]
        text = written.clone()
        answer = super().sample(cell, layers, seed)
        written.copy_(text)
        return answer

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
    """One forward of a cell: its tokens, trees and routes, drawn by a seed; `ran` are
    the experts [T, k] of each layer of the last run."""

    def __init__(self, session: Session, cell: Message, layers: int, seed: int) -> None:
        self.session, self.cell, self.seed = session, cell, seed
        self.verifier = session.verifier
        width, batch, context = (cell[n] for n in ("width", "batch", "context"))
        self.layers = layers if cell["part"] == "layers" else 0
        self.ids = torch.cat(
            [session.tokens_of(b, context, width) for b in range(batch)]
        )
        # Real text, whose routing is natural, stays a chain.
        chain = torch.arange(width - 1).expand(batch, -1)
        natural = cell["split"] == "natural"
        self.parents = chain if natural else random_parents(batch, width, seed)
        self.layout = self.lay_out()
        self.x = F.embedding(self.ids, self.verifier.stack.embedding)
        self.routes = self.draw_routes() if self.layers and not natural else None
        self.ran: list[Tensor] = []

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
            CacheSlot(slot, context, ancestors(parents), positions)
            for slot, parents in enumerate(self.parents.numpy() - 1)
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
        "dtype": model["dtype"],
        "expert_width": moe["expert_width"],
    }
    found = {**vars(shape), "dtype": "float32"}
    check_shape(
        {name: (value, found[name]) for name, value in asked.items()},
        kind="infeasible",
        found_in="the world",
        fix="pass the world's own model.yaml as --model",
    )
