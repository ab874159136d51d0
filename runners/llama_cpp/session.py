"""One open GGUF in llama.cpp: what it is, and the measuring of its cells.

Forced cells run in a context whose routes are written, natural ones in a plain one;
what the writing itself costs is measured at open, in reference decodes, and taken off.
Written are the experts that the text itself wakes, as far as these reach, since caches
hold what the step before has read of them.
Sequence 0 of either holds a long text; those of the requests are copies of it, cut to
the context that a cell asks for.

llama.cpp builds its graph anew where a decode has another shape than the last one, as a
server's drafts have and its plain decoding has not. So the tokens that come before
those of the cell in the text are decoded first, in the cell's shape: the step before.
What a new graph costs is measured at open and told apart.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from evict_profile.config.gguf import Gguf, gguf_mapping, read_gguf
from evict_profile.errors import ConfigError
from runners.llama_cpp import library
from runners.llama_cpp.check import check_library, check_model
from runners.llama_cpp.clock import DecodeClock, Run
from runners.llama_cpp.engine import Context, Ids, Model, Options, Room
from runners.llama_cpp.hook import Hook, Routes, unions
from runners.llama_cpp.text import Steps, Text
from runners.measuring import check_shape, sample, source_digest
from runners.protocol import Message, Refusal
from runners.torch_moe.clocks import copy_bandwidth_gbps
from runners.torch_moe.device import describe, pick_device
from runners.torch_moe.routing import force_unions

UBATCH = 512
"""Tokens that llama-server computes at once, by default; more are several forwards."""
REFERENCE_WIDTH = 4
REFERENCE_BATCH = 32
"""Of the reference's context, which decodes nothing wider but its prompt."""
PAIRS, WIDE_PAIRS, GRAPHS = 40, 20, 15
"""Measured at open: with the hook and without, of one token and of the widest cell's;
and with a new graph."""
CHECKED_TOKENS = 3


class Session:
    """A model in memory, its contexts, and a clock."""

    def __init__(self, model: Message, options: Message) -> None:
        own = dict(options["llama"])
        self.path = Path(own.pop("model") or model["source"])
        self.library = library.find(own.pop("library"))
        text_path = own.pop("text")
        self.options = Options(**{**own, "overrides": tuple(own["overrides"])})
        self.file = read_file(self.path, model)
        device = pick_device("cpu")
        self.bandwidth_gbps = copy_bandwidth_gbps(device)
        self.facts = describe(device)
        check_library(self.library)
        self.model = Model(self.library, self.path, self.options)
        self.contexts = sorted({place[1] for place in options["places"]})
        self.batch, longest = options["max_batch"], options["max_context"]
        experts, top_k = map(self.file.size, ("expert_count", "expert_used_count"))
        self.touch_width = min(-(-experts // top_k), UBATCH)
        tokens = max(
            longest + options["max_width"], self.contexts[0] + self.touch_width
        )
        room = Room(self.batch + 1, tokens, UBATCH)
        self.text = Text(text_path, self.model, longest)
        self.hook, self.plain = Hook(self.model, room), Context(self.model, room)
        checked = self.text.tokens[:CHECKED_TOKENS]
        check_model(self.hook, checked, self.file.moe_layers, experts)
        self.text.read_routes(self.hook, experts, longest)
        self.held: dict[tuple[Context, int], int] = {}
        self.fill_cache(longest)
        wall = self.options.threads > 1 or self.options.gpu_layers > 0
        self.clock = DecodeClock(self.reference, wall)
        self.overheads = {1: 0.0}
        self.touch_experts(experts)
        self.clock.check_idle()
        for width, pairs in ((options["max_width"], WIDE_PAIRS), (1, PAIRS)):
            self.overheads[width] = self.measure_overhead(width, pairs)
        self.new_graph = self.measure_new_graph()

    def answer_open(self) -> Message:
        """The fingerprint, the measured copy bandwidth, and the bytes of an expert."""
        options, digest = self.options, library.code_digest(self.library)
        return {
            "fingerprint": {
                **self.facts,
                "engine": "llama_cpp",
                "engine_version": library.version(self.model.c, digest),
                "library_sha256": digest[:16],
                "runner_sha256": source_digest(__file__),
                "system_info": self.model.c.llama_print_system_info().decode(),
                "layers": self.file.moe_layers,
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
            },
            "ladder": [],
            "bandwidth_gbps": self.bandwidth_gbps,
            "bytes_per_expert": self.file.bytes_per_expert,
            "hook_overhead": self.overheads,
            "new_graph": self.new_graph,
            "whole": True,
            "proves_routing": True,
        }

    def measure(self, ask: Message) -> Message:
        """Time a cell once for each of the seeds."""
        cell, layers = ask["cell"], ask.get("layers") or self.file.moe_layers
        if cell["part"] != "layers" or layers != self.file.moe_layers:
            raise Refusal("infeasible", "llama.cpp runs whole forwards alone")
        if cell["width"] * cell["batch"] > UBATCH:
            raise Refusal(
                "infeasible",
                f"llama.cpp splits more than {UBATCH} tokens into forwards",
            )
        try:
            return {"samples": [self.sample(cell, seed) for seed in ask["seeds"]]}
        except ValueError as error:
            raise Refusal("infeasible", str(error)) from error

    def sample(self, cell: Message, seed: int) -> Message:
        """Time one verification; natural routes are read in another decode of it."""
        steps = self.text.draw(cell, seed)
        key = (cell["width"], cell["batch"])
        natural = cell["split"] == "natural"
        if natural or key not in self.hook.places:
            ran = self.read_routes(cell, steps)
        if natural:
            reading = self.clock.time(*self.plain_run(cell, steps))
        else:
            ran = steps.among_woken(self.draw_routes(cell, seed), seed)
            reading = self.clock.time(*self.forced_run(cell, steps, ran))
            hooked_us = self.overhead(cell) * reading.reference_us
            reading = replace(reading, clock_us=reading.clock_us - hooked_us)
        return sample(seed, reading, cell["width"], unions(ran), backend="ggml")

    def read_routes(self, cell: Message, steps: Steps) -> Routes:
        """What the second step's tokens choose behind the first's."""
        context = self.hook.context
        self.settle(context, cell, steps)
        return self.hook.read((cell["width"], cell["batch"]), context.decode)

    def plain_run(self, cell: Message, steps: Steps) -> tuple[Run, Run]:
        """A decode on the tokens' own routes, and what makes it ready."""
        return self.plain.decode, lambda: self.settle(self.plain, cell, steps)

    def forced_run(
        self, cell: Message, steps: Steps, routes: Routes
    ) -> tuple[Run, Run]:
        """A decode on given routes, and what makes it ready; its shape was read."""
        context = self.hook.context

        def ready() -> None:
            self.settle(context, cell, steps)
            self.hook.prepare((cell["width"], cell["batch"]), routes)

        return lambda: self.hook.write(context.decode), ready

    def draw_routes(self, cell: Message, seed: int) -> Routes:
        """Routes of exactly the cell's union, in each layer others."""
        top_k, experts = map(self.file.size, ("expert_used_count", "expert_count"))
        drawn = force_unions(cell, self.file.moe_layers, top_k, experts, seed)
        return list(drawn.numpy().astype(np.int32))

    def place(self, where: Context, cell: Message, start: int, ids: Ids) -> None:
        """Make the requests' sequences `start` tokens long, and fill the batch."""
        sequences = range(1, cell["batch"] + 1)
        for sequence in sequences:
            if self.held.get((where, sequence), -1) < start:
                where.copy(0, sequence)
            where.cut(sequence, start)
            self.held[where, sequence] = start
        where.fill(ids, start, sequences)

    def settle(self, where: Context, cell: Message, steps: Steps) -> None:
        """Decode the step before in the cell's shape; its tokens end the context.

        So the graph is built, copied sequences have moved, and caches hold what the
        step before leaves in them.
        """
        self.place(where, cell, max(cell["context"] - cell["width"], 0), steps.before)
        where.decode()
        sequences = range(1, cell["batch"] + 1)
        for sequence in sequences:
            where.cut(sequence, cell["context"])
        where.fill(steps.own, cell["context"], sequences)

    def fill_cache(self, longest: int) -> None:
        """Prefill the text, and the reference's."""
        for where in (self.plain, self.hook.context):
            where.cut(0, 0)
            where.prefill(self.text.tokens[:longest], 0)
        start = self.contexts[0]
        self.steady = Context(
            self.model, Room(1, start + REFERENCE_WIDTH, REFERENCE_BATCH)
        )
        self.steady.prefill(self.text.tokens[:start], 0)
        self.steady.fill(self.text.tokens[:REFERENCE_WIDTH], start, [0])

    def reference(self) -> None:
        """A decode of the same tokens each time, at the smallest context."""
        self.steady.decode()
        self.steady.cut(0, self.contexts[0])

    def touch_experts(self, experts: int) -> None:
        """Read all experts once, in every layer: pages of the file are mapped then."""
        cell = {**self.one_token(), "width": self.touch_width}
        self.sample({**cell, "union": experts, "split": "balanced"}, 0)

    def overhead(self, cell: Message) -> float:
        """What writing routes adds, over the reference: a line in the log of tokens."""
        tokens = np.log2(sorted(self.overheads))
        own = [self.overheads[width] for width in sorted(self.overheads)]
        return float(np.interp(np.log2(cell["width"] * cell["batch"]), tokens, own))

    def measure_overhead(self, width: int, pairs: int) -> float:
        """The same of one request of `width` tokens: own routes against no hook.

        The two follow each other at once, and many times: what this is off by is taken
        off every forced cell, and most of all from the price of one token.
        """
        extra_us, cell = [], {**self.one_token(), "width": width}
        for seed in range(pairs):
            steps = self.text.draw(cell, seed)
            own = self.read_routes(cell, steps)
            plain_us = self.clock.alone_us(*self.plain_run(cell, steps))
            hooked_us = self.clock.alone_us(*self.forced_run(cell, steps, own))
            extra_us.append(hooked_us - plain_us)
        return max(0.0, float(np.median(extra_us) / self.usual_reference_us()))

    def measure_new_graph(self) -> float:
        """What a decode of a new shape takes before its first node, over the reference.

        Less what one of the same shape takes: then the graph is the last one's.
        """
        one, context, taken = self.one_token(), self.hook.context, []
        for seed in range(GRAPHS):
            for cell in ({**one, "width": 2}, one, one):
                own = self.text.draw(cell, seed).own
                self.place(context, cell, self.contexts[0], own)
                taken.append(self.hook.start_us(context.decode))
        _, new, same = np.median(np.reshape(taken, (GRAPHS, 3)), axis=0)
        return max(0.0, float((new - same) / self.usual_reference_us()))

    def usual_reference_us(self) -> float:
        """The reference now, median of several."""
        return float(np.median([self.clock.time_reference() for _ in range(GRAPHS)]))

    def one_token(self) -> Message:
        """A cell of plain decoding at the smallest context."""
        return {"width": 1, "batch": 1, "context": self.contexts[0]}


def read_file(path: Path, model: Message) -> Gguf:
    """The file's head, checked to be the model of the sweep."""
    if path.suffix != ".gguf":
        raise Refusal(
            "infeasible", "llama_cpp loads a GGUF file: give it with --model M.gguf"
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
    fix = "give the GGUF as --model, and leave --dtype away"
    check_shape(has, "infeasible", str(path), fix)
    return file
