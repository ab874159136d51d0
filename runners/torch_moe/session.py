"""One open model: what it is, and the measuring of its cells."""

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from runners.measuring import sample
from runners.protocol import PARTS, Message, Refusal
from runners.torch_moe.attention import kernel_of, make_metadata
from runners.torch_moe.clocks import (
    CpuClock,
    CudaClock,
    Run,
    cache_bytes,
    copy_bandwidth_gbps,
)
from runners.torch_moe.device import (
    describe,
    device_lost,
    first_line,
    out_of_memory,
    pick_device,
    pick_dtype,
)
from runners.torch_moe.program import CellRequest, Program
from runners.torch_moe.shape import Noise, read_shape
from runners.torch_moe.stack import Stack, fitting_layers

CPU_LAYERS = 2
"""Layers that `auto` measures on a CPU: time, not memory, is short there."""


class Session:
    """A stack of layers in memory, its programs, and a clock."""

    def __init__(self, model: dict[str, Any], options: dict[str, Any]) -> None:
        self.device = pick_device(options["device"])
        asked = options.get("dtype", model["dtype"])
        self.dtype, self.dtype_reason = pick_dtype(model, asked, self.device)
        model = {**model, "dtype": self.dtype}
        self.graphs = bool(options["graphs"]) and self.device.type == "cuda"
        self.ladder: list[int] = sorted(options["ladder"]) if self.graphs else []
        slots = (options["max_batch"], options["max_context"] + options["max_width"])
        layers = pick_layers(model, options["layers"], slots, self.device)
        self.shape = read_shape(model, layers)
        noise = Noise(self.device, self.shape.dtype, options["seed"])
        self.places: list[list[int]] = options["places"]
        self.bandwidth_gbps = copy_bandwidth_gbps(self.device)
        self.stack = Stack(self.shape, slots, noise)
        on_cpu = self.device.type == "cpu"
        self.clock = CpuClock(noise) if on_cpu else CudaClock(self.device)
        self.programs: dict[object, Program] = {}
        self.pool: Any = None
        self.warm_rows: set[int] = set()

    def answer_open(self) -> Message:
        """The fingerprint, the ladder and the measured copy bandwidth."""
        return {
            "fingerprint": {
                **describe(self.device),
                "layers": self.shape.moe_layers,
                "attention_backend": self.attention_backend(),
                "moe_backend": "torch.grouped_mm",
                "graph_mode": "cuda-graph" if self.graphs else "eager",
                "clock": self.clock.name,
            },
            "dtype": self.dtype,
            "dtype_reason": self.dtype_reason,
            "parts": PARTS,
            "ladder": self.ladder,
            "bandwidth_gbps": self.bandwidth_gbps,
            "bytes_per_expert": self.shape.expert_bytes,
            "cache_bytes": cache_bytes(self.device),
        }

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

    def measure(self, ask: Message) -> Message:
        """Time a cell once for each of the seeds.

        What the cache holds is `ask["before"]`: "swept" as in a sweep, "read", when
        others' weights went through it, or "self", when the forward itself just ran.
        """
        layers = ask.get("layers") or self.shape.moe_layers
        tier = self.tier_of(ask["cell"]["width"])
        request = CellRequest(**ask["cell"], tier=tier, layers=layers)
        before = ask.get("before", "swept")
        try:
            program = self.program(request)
            samples = [self.sample(program, request, s, before) for s in ask["seeds"]]
            return {"samples": samples}
        except (RuntimeError, ValueError) as error:
            raise self.refusal(error) from error

    def refusal(self, error: RuntimeError | ValueError) -> Refusal:
        """The answer for a cell whose forward torch gave up."""
        if says := out_of_memory(error):
            torch.cuda.empty_cache()
            return Refusal("oom", says)
        if isinstance(error, torch.AcceleratorError) or device_lost(self.device):
            raise error
        return Refusal("failed", first_line(error))

    def tier_of(self, width: int) -> int:
        """The width that runs: the rung at or above, or the width itself."""
        if not self.ladder:
            return width
        rung = next((rung for rung in self.ladder if rung >= width), None)
        if rung is None:
            top = self.ladder[-1]
            raise Refusal("infeasible", f"width {width} is over the ladder's top {top}")
        return rung

    def program(self, request: CellRequest) -> Program:
        """The program of a request, built and warmed up at its first use."""
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
        """The side stream on which every graph of the session is captured."""
        return torch.cuda.Stream()

    def sample(
        self, program: Program, request: CellRequest, seed: int, before: str
    ) -> Message:
        """Time one forward; what ran is read back after the clock has stopped."""
        program.load(request, seed)
        self.warm_up(program)
        firsts: dict[str, Run | None] = {
            "swept": None,
            "read": self.clock.read,
            "self": program.run,
        }
        reading = self.clock.time(program.run, firsts[before])
        ran = (request.tier, "graph") if self.graphs else (0, "eager")
        return sample(seed, reading, request.tier, program.unions(), *ran)

    def warm_up(self, program: Program) -> None:
        """On a CPU, run once untimed where a product's size is new.

        The library compiles a kernel for each number of rows at its first use,
        which costs several times the product itself.
        """
        fresh = program.row_counts() - self.warm_rows if not self.graphs else set()
        if fresh:
            program.run()
            self.warm_rows |= fresh


def pick_layers(
    model: dict[str, Any], asked: object, slots: tuple[int, int], device: torch.device
) -> int:
    """MoE layers to build."""
    if not hasattr(F, "grouped_mm"):
        raise Refusal(
            "device",
            f"torch {torch.__version__} has no grouped_mm, the only experts kernel "
            "whose time follows the union; install torch 2.10 or newer",
        )
    most = model["num_layers"] - model["dense_layers"]
    fitting = fitting_layers(read_shape(model, 1), slots, device)
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
