"""One open model: what it is, and the measuring of its cells."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from runners.clock import copy_bandwidth_gbps, pick_clock
from runners.device import (
    describe,
    device_lost,
    first_line,
    out_of_memory,
    pick_device,
    pick_dtype,
)
from runners.protocol import Message, Refusal, tell
from runners.session import Forward, MeasureSession
from runners.torch_moe.attention import kernel_of, make_metadata
from runners.torch_moe.program import CellRequest, Program, kept_bytes
from runners.torch_moe.shape import RandomWeights, StackShape, not_built, read_shape
from runners.torch_moe.stack import (
    Stack,
    fitting_layers,
    free_bytes,
    layer_bytes,
    non_moe_bytes,
)

CPU_LAYERS = 2
"""Layers that `auto` measures on a CPU: time, not memory, is short there."""


class Session(MeasureSession):
    def __init__(self, model: Message, options: Message) -> None:
        super().__init__()
        self.device = pick_device(options["device"])
        asked = str(options.get("dtype", model["dtype"]))
        self.dtype, self.dtype_reason = pick_dtype(model, asked, self.device)
        model = {**model, "dtype": self.dtype}
        self.graphs = bool(options["graphs"]) and self.device.type == "cuda"
        self.capture_sizes: list[int] = (
            sorted(options["capture_sizes"]) if self.graphs else []
        )
        slots = (options["max_batch"], options["max_context"] + options["max_width"])
        self.places: list[tuple[int, int, int]] = options["places"]
        layers = options["layers"]
        self.layers = pick_layers(model, layers, slots, self.device, self.places)
        self.shape = read_shape(model, self.layers)
        tell({"progress": held(self.shape, slots, self.device)})
        noise = RandomWeights(self.device, self.shape.dtype, options["seed"])
        self.bandwidth_gbps = copy_bandwidth_gbps(self.device)
        self.bytes_per_expert = self.shape.expert_bytes
        self.stack = Stack(self.shape, slots, noise)
        self.clock = pick_clock(self.device, noise)
        self.programs: dict[object, Program] = {}
        self.pool: Any = None
        self.fingerprint = {
            **describe("torch_moe", __file__, self.device),
            "layers": self.layers,
            "attention_backend": self.attention_backend(),
            "moe_backend": "torch.grouped_mm",
            "graph_mode": "cuda-graph" if self.graphs else "eager",
            "clock": self.clock.name,
        }

    def answer_open(self) -> Message:
        """The dtype as well, and why."""
        dtype = {"dtype": self.dtype, "dtype_reason": self.dtype_reason}
        return super().answer_open() | dtype

    def attention_backend(self) -> str:
        """Every kernel that attention takes in any layer at the sizes of the sweep."""
        attentions = [layer.attention for layer in self.stack.moe]
        attentions += [layer.attention for layer in self.stack.dense]
        windows = {attention.window: attention for attention in attentions}
        sizes = {(b, self.tier_of(n), context) for n, context, b in self.places}
        taken = {
            kernel_of(attention, make_metadata(self.shape, *size, self.device))
            for size in sizes
            for attention in windows.values()
        }
        return f"sdpa-{'+'.join(sorted(taken))}"

    def prepare(self, cell: Message, layers: int, seed: int) -> Forward:
        request = CellRequest(**cell, tier=self.tier_of(cell["width"]), layers=layers)
        program = self.program(request)
        program.load(request, seed)
        sizes = set() if self.graphs else program.row_counts()
        return Forward(program.run, request.tier, program.unions, sizes=sizes)

    def refusal(self, error: Exception) -> Exception:
        if says := out_of_memory(error):
            torch.cuda.empty_cache()
            return Refusal("oom", says)
        if isinstance(error, torch.AcceleratorError) or device_lost(self.device):
            return error
        return Refusal("failed", first_line(error))

    def tier_of(self, width: int) -> int:
        """The width that runs: the size at or above, or the width itself."""
        if not self.capture_sizes:
            return width
        size = next((size for size in self.capture_sizes if size >= width), None)
        if size is None:
            top = self.capture_sizes[-1]
            raise Refusal(
                "infeasible", f"width {width} is over the largest captured size, {top}"
            )
        return size

    def program(self, request: CellRequest) -> Program:
        key = request.program_key
        if key not in self.programs:
            program = Program(self.stack, request, self.device)
            program.load(request, seed=0)
            program.run()
            if self.graphs:
                self.pool = program.capture(self.capture_stream, self.pool)
            self.programs[key] = program
        return self.programs[key]

    @cached_property
    def capture_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()


def held(shape: StackShape, slots: tuple[int, int], device: torch.device) -> str:
    """What the weights and caches to be allocated take, beside what is free."""
    taken = non_moe_bytes(shape, slots) + shape.moe_layers * layer_bytes(shape, slots)
    return (
        f"MoE layers: {shape.moe_layers}, with embedding and head {taken / 1e9:.1f} GB "
        f"of the {free_bytes(device) / 1e9:.1f} GB that are free on {device}"
    )


def pick_layers(
    model: Message,
    asked: object,
    slots: tuple[int, int],
    device: torch.device,
    places: Sequence[tuple[int, int, int]] = (),
) -> int:
    if odd := not_built(model):
        raise Refusal(
            "infeasible",
            f"model '{model['name']}' has {', '.join(odd)}, which this runner cannot "
            "build; estimate its table (evict-profile estimate), or measure it in an "
            "engine that serves it (--plan sglang or examples/llama_cpp/sweep.yaml)",
        )
    if not hasattr(F, "grouped_mm"):
        raise Refusal(
            "device",
            f"torch {torch.__version__} has no grouped_mm, the only experts kernel "
            "whose time follows the union; install torch 2.10 or newer",
        )
    most = model["num_layers"] - model["dense_layers"]
    shape = read_shape(model, 1)
    fitting = fitting_layers(shape, slots, device, kept_bytes(shape, most, places))
    attention = model["attention"]
    period = attention["sliding_every"] if attention["sliding_window"] else 1
    if asked == "auto":
        layers = min(most, fitting, CPU_LAYERS if device.type == "cpu" else most)
        return max(1, layers - layers % period)
    layers = int(str(asked))
    if layers % period:
        raise Refusal(
            "infeasible",
            f"{layers} layers would not hold windowed and full attention in the "
            f"model's shares; ask for a multiple of {period}",
        )
    if layers > min(most, fitting):
        why = "fit in memory" if fitting < most else "exist in the model"
        raise Refusal(
            "memory",
            f"{layers} layers were asked for and {min(most, fitting)} {why}; pass "
            f"--layers {min(most, fitting)} or less",
        )
    return layers
