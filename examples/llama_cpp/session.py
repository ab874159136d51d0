"""One open GGUF in llama.cpp: what it is, and the decodes of its cells.

Forced cells run in a context whose routes are written, natural ones in a plain one;
what the writing costs is measured at open and taken off. llama.cpp builds a new graph
for a decode of another shape than the last one, so the tokens that come before those of
the cell are decoded first, in its shape.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from evict_profile.errors import ConfigError
from evict_profile.records import parse
from examples.llama_cpp import library
from examples.llama_cpp.check import check_idle, check_library, check_model
from examples.llama_cpp.engine import Context, ContextSize, Ids, Model
from examples.llama_cpp.hook import Hook, Routes
from examples.llama_cpp.model_file import Gguf, gguf_mapping, read_gguf
from examples.llama_cpp.options import Options
from examples.llama_cpp.text import DecodeWindow, Text
from runners.clock import ReferenceClock, copy_bandwidth_gbps, cpu_now, wall_now
from runners.device import describe, pick_device
from runners.protocol import Message, Refusal
from runners.session import Forward, MeasureSession, Run, Timing, check_shape
from runners.trees import force_unions, unions

UBATCH = 512
"""Tokens that llama-server computes at once, by default; more are several forwards."""
REFERENCE_WIDTH = 4
REFERENCE_BATCH = 32
"""Of the reference's context, which decodes nothing wider but its prompt."""
PAIRS, WIDE_PAIRS = 40, 20
"""Measured at open: with the hook and without, of one token and of the widest cell."""
CHECKED_TOKENS = 3


@dataclass(frozen=True)
class Decode(Forward):
    """The decode of a cell.

    Attributes:
        before: runs right before it, untimed.
        overhead: what writing the routes adds to it, over the reference.
    """

    before: Run = lambda: None
    overhead: float = 0.0


class Session(MeasureSession):
    whole = True

    def __init__(self, model: Message, options: Message) -> None:
        super().__init__()
        self.options = own = parse(Options, options["engine"], "engine")
        path = Path(own.model or model["source"])
        library_path = library.find(own.library)
        self.file = read_file(path, model)
        self.layers = self.file.moe_layers
        self.bytes_per_expert = self.file.bytes_per_expert
        device = pick_device("cpu")
        self.bandwidth_gbps = copy_bandwidth_gbps(device)
        check_library(library_path)
        self.model = Model(library_path, path, self.options)
        self.contexts = sorted({place[1] for place in options["places"]})
        longest = options["max_context"]
        self.experts = self.file.size("expert_count")
        self.top_k = self.file.size("expert_used_count")
        touch_width = min(-(-self.experts // self.top_k), UBATCH)
        tokens = max(longest + options["max_width"], self.contexts[0] + touch_width)
        size = ContextSize(options["max_batch"] + 1, tokens, UBATCH)
        self.text = Text(own.text, self.model, longest)
        self.hook, self.plain = Hook(self.model, size), Context(self.model, size)
        checked = self.text.tokens[:CHECKED_TOKENS]
        self.can_cut = check_model(self.hook, checked, self.layers, self.experts)
        self.text.read_routes(self.hook, self.experts, longest)
        self.held: dict[tuple[Context, int], int] = {}
        self.fill_cache(longest)
        self.clock: ReferenceClock = self.make_clock()
        self.overheads = {1: 0.0}
        if self.can_cut or touch_width <= self.contexts[0]:
            self.fault_in_weights(touch_width)
        check_idle(self.clock)
        for width, pairs in ((options["max_width"], WIDE_PAIRS), (1, PAIRS)):
            self.overheads[width] = self.measure_overhead(width, pairs)
        self.fingerprint = self.describe(library_path, device)

    def make_clock(self) -> ReferenceClock:
        """CPU time of one thread; wall time of several, and of layers on a GPU."""
        wall = self.options.threads > 1 or self.options.gpu_layers > 0
        name = f"{'wall' if wall else 'process CPU'} time over a reference decode"
        return ReferenceClock(name, wall_now if wall else cpu_now, self.reference)

    def describe(self, path: Path, device: torch.device) -> Message:
        """The build, the file, and every option that changes a time."""
        options, digest = self.options, library.code_digest(path)
        return {
            **describe("llama_cpp", __file__, device),
            "engine_version": library.version(self.model.c, digest),
            "library_sha256": digest[:16],
            "system_info": self.model.c.llama_print_system_info().decode(),
            "layers": self.layers,
            "gguf": self.file.digest,
            "attention_backend": f"ggml flash-{options.flash_attention} "
            f"{options.cache_k}/{options.cache_v}",
            "moe_backend": f"ggml {self.file.types}"
            + " repack" * options.repack
            + f" {options.threads} threads"
            + f" ngl {options.gpu_layers}" * bool(options.gpu_layers)
            + "".join(f" {word}" for word in options.overrides),
            "graph_mode": "eager",
            "clock": self.clock.name,
            "threads": options.threads,
            "text": self.text.name,
        }

    def refusal(self, error: Exception) -> Exception:
        known = isinstance(error, ValueError)
        return Refusal("infeasible", str(error)) if known else error

    def prepare(self, cell: Message, layers: int, seed: int) -> Decode:
        """A verification; natural routes are read in another decode of it."""
        if cell["width"] * cell["batch"] > UBATCH:
            raise Refusal(
                "infeasible",
                f"llama.cpp splits more than {UBATCH} tokens into forwards",
            )
        window = self.text.draw(cell, seed)
        natural = cell["split"] == "natural"
        if natural or shape_of(cell) not in self.hook.places:
            routes = self.read_routes(cell, window)
        if natural:
            run, before = self.plain_run(cell, window)
        else:
            routes = window.with_most_used_experts(self.draw_routes(cell, seed), seed)
            run, before = self.forced_run(cell, window, routes)
        ran = unions(routes)
        return Decode(
            run,
            cell["width"],
            lambda: ran,
            before=before,
            overhead=0.0 if natural else self.overhead(cell),
        )

    def time(self, forward: Forward) -> Timing:
        """Time a decode after what runs before it, less the writing of its routes."""
        assert isinstance(forward, Decode)
        first_us = self.clock.time_reference()
        took_us = self.decode_us(forward.run, forward.before)
        reference_us = (first_us + self.clock.time_reference()) / 2.0
        return Timing(took_us - forward.overhead * reference_us, reference_us)

    def read_routes(self, cell: Message, window: DecodeWindow) -> Routes:
        """What the second step's tokens choose behind the first's."""
        context = self.hook.context
        self.warm_cache(context, cell, window)
        return self.hook.read(shape_of(cell), context.decode)

    def plain_run(self, cell: Message, window: DecodeWindow) -> tuple[Run, Run]:
        """A decode on the tokens' own routes, and what runs before it."""
        return self.plain.decode, lambda: self.warm_cache(self.plain, cell, window)

    def forced_run(
        self, cell: Message, window: DecodeWindow, routes: Routes
    ) -> tuple[Run, Run]:
        """A decode on given routes, and what runs before it; its shape was read."""
        context = self.hook.context

        def before() -> None:
            self.warm_cache(context, cell, window)
            self.hook.prepare(shape_of(cell), routes)

        return lambda: self.hook.write(context.decode), before

    def draw_routes(self, cell: Message, seed: int) -> Routes:
        """Routes of exactly the cell's union, in each layer others."""
        drawn = force_unions(cell, self.layers, self.top_k, self.experts, seed)
        return list(drawn.numpy().astype(np.int32))

    def set_sequences(
        self, where: Context, cell: Message, start: int, ids: Ids
    ) -> None:
        """Make the requests' sequences `start` tokens long, and fill the batch."""
        sequences = range(1, cell["batch"] + 1)
        for sequence in sequences:
            if not self.can_cut:
                self.restore(where, sequence, start)
                continue
            if self.held.get((where, sequence), -1) < start:
                where.copy(0, sequence)
            where.cut(sequence, start)
            self.held[where, sequence] = start
        where.fill(ids, start, sequences)

    def restore(self, where: Context, sequence: int, start: int) -> None:
        """Make a sequence the first `start` tokens of the text, in a recurrent state,
        whose end cannot be cut: the text is read again where it was read further."""
        if self.held.get((where, 0)) != start:
            where.cut(0, 0)
            where.prefill(self.text.tokens[:start], 0)
            self.held[where, 0] = start
        where.copy(0, sequence)

    def warm_cache(self, where: Context, cell: Message, window: DecodeWindow) -> None:
        """Decode the step before in the cell's shape; its tokens end the context.

        So the graph is built, copied sequences have moved, and caches hold what the
        step before leaves in them.
        """
        start = cell["context"] - cell["width"]
        if start < 0 and not self.can_cut:
            raise Refusal(
                "infeasible",
                "a recurrent state cannot be cut: choose contexts of at least the "
                f"width, not {cell['context']} with a width of {cell['width']}",
            )
        start = max(start, 0)
        self.set_sequences(where, cell, start, window.before)
        where.decode()
        sequences = range(1, cell["batch"] + 1)
        for sequence in sequences:
            where.cut(sequence, cell["context"])
        where.fill(window.own, cell["context"], sequences)

    def fill_cache(self, longest: int) -> None:
        for where in (self.plain, self.hook.context):
            where.cut(0, 0)
            where.prefill(self.text.tokens[:longest], 0)
        start = self.contexts[0]
        own = 0 if self.can_cut else 1
        size = ContextSize(1 + own, start + REFERENCE_WIDTH, REFERENCE_BATCH)
        self.reference_context = Context(self.model, size)
        self.reference_context.prefill(self.text.tokens[:start], 0)
        self.reference_context.fill(self.text.tokens[:REFERENCE_WIDTH], start, [own])

    def reference(self) -> None:
        """A decode of the same tokens each time, at the smallest context."""
        if not self.can_cut:
            self.reference_context.copy(0, 1)
        self.reference_context.decode()
        if self.can_cut:
            self.reference_context.cut(0, self.contexts[0])

    def fault_in_weights(self, width: int) -> None:
        """Read all experts once, in every layer: pages of the file are mapped then."""
        cell = {**self.one_token(), "width": width}
        cell |= {"union": self.experts, "split": "balanced"}
        self.sample(cell, self.layers, 0)

    def overhead(self, cell: Message) -> float:
        """What writing routes adds, over the reference: a line in the log of tokens."""
        widths = sorted(self.overheads)
        own = [self.overheads[width] for width in widths]
        tokens = np.log2(cell["width"] * cell["batch"])
        return float(np.interp(tokens, np.log2(widths), own))

    def measure_overhead(self, width: int, pairs: int) -> float:
        """The same of one request of `width` tokens: own routes against no hook.

        The two follow each other at once, and many times: what this is off by is taken
        off every forced cell, and most of all from the latency of one token.
        """
        extra_us, cell = [], {**self.one_token(), "width": width}
        for seed in range(pairs):
            window = self.text.draw(cell, seed)
            own = self.read_routes(cell, window)
            plain_us = self.decode_us(*self.plain_run(cell, window))
            extra_us.append(
                self.decode_us(*self.forced_run(cell, window, own)) - plain_us
            )
        return max(0.0, float(np.median(extra_us)) / self.clock.median_reference_us())

    def decode_us(self, run: Run, before: Run) -> float:
        """The time of one run, without what runs before it."""
        before()
        return self.clock.us(run)

    def one_token(self) -> Message:
        """A cell of plain decoding at the smallest context."""
        return {"width": 1, "batch": 1, "context": self.contexts[0]}


def shape_of(cell: Message) -> tuple[int, int]:
    """What a decode's graph depends on: tokens of a request, and requests."""
    return cell["width"], cell["batch"]


def read_file(path: Path, model: Message) -> Gguf:
    """The file's head, checked to be the model of the sweep."""
    if path.suffix != ".gguf":
        raise Refusal(
            "infeasible",
            f"'{path}' is no GGUF file: write the model's YAML from one with python -m "
            "examples.llama_cpp model M.gguf, or give one as 'engine: {model: ...}'",
        )
    try:
        file, found = read_gguf(path), gguf_mapping(path)
    except ConfigError as error:
        raise Refusal("infeasible", str(error)) from error
    has = {
        "layers": (model["num_layers"], found["num_layers"]),
        "dense layers": (model["dense_layers"], found["dense_layers"]),
        "experts": (model["moe"]["num_experts"], found["moe"]["num_experts"]),
        "top-k": (model["moe"]["top_k"], found["moe"]["top_k"]),
        "dtype": (model["dtype"], found["dtype"]),
    }
    fix = "write the model's YAML from this file, and leave --dtype away"
    check_shape(has, "infeasible", str(path), fix)
    return file
