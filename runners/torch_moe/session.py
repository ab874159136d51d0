"""One open model: what it is, and the measuring of its cells."""

import time
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from runners.protocol import Message, Refusal
from runners.torch_moe.attention import fold
from runners.torch_moe.clocks import CpuClock, CudaClock, copy_bandwidth_gbps
from runners.torch_moe.device import describe, pick_device
from runners.torch_moe.noise import Noise
from runners.torch_moe.program import Program, Request
from runners.torch_moe.shape import read_shape
from runners.torch_moe.stack import Stack, fitting_layers

CPU_LAYERS = 2
"""Layers that `auto` measures on a CPU: time, not memory, is short there."""

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""What torch says when an allocation fails, on a GPU and on a CPU."""

SDPA_KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}


class Session:
    """A stack of layers in memory, its programs, and a clock."""

    def __init__(self, model: dict[str, Any], options: dict[str, Any]) -> None:
        self.device = pick_device(options["device"])
        self.graphs = bool(options["graphs"]) and self.device.type == "cuda"
        self.ladder: list[int] = sorted(options["ladder"]) if self.graphs else []
        seats = (options["max_batch"], options["max_context"] + options["max_width"])
        layers = pick_layers(model, options["layers"], seats, self.device)
        self.shape = read_shape(model, layers)
        noise = Noise(self.device, self.shape.dtype, options["seed"])
        self.bandwidth_gbps = copy_bandwidth_gbps(self.device)
        self.stack = Stack(self.shape, seats, noise)
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
                "threads": torch.get_num_threads(),
                "tp": 1,
                "ep": 1,
            },
            "ladder": self.ladder,
            "bandwidth_gbps": self.bandwidth_gbps,
            "bytes_per_expert": self.shape.expert_bytes,
        }

    def attention_backend(self) -> str:
        """The kernel that scaled_dot_product_attention picks for these shapes."""
        request = Request("layers", 4, 0, 16, 1, "natural", tier=4, layers=1)
        program = Program(self.stack, self.shape, request, self.device)
        attention = self.stack.moe[0].attention
        a, cache = self.shape.attention, attention.cache.tensors
        dim = cache[0].shape[-1]
        q = torch.zeros(4, a.num_heads, dim, dtype=self.shape.dtype, device=self.device)
        keys = cache[0][:1, :, :20]
        values = cache[1][:1, :, :20] if len(cache) > 1 else keys[..., : a.kv_lora_rank]
        query = fold(q, keys.shape[1], program.seat)
        choice = torch._fused_sdp_choice(query, keys, values, program.seat.mask)
        return f"sdpa-{SDPA_KERNELS.get(choice, choice)}"

    def measure(self, ask: Message) -> Message:
        """Time a cell once for each of the seeds."""
        layers = ask.get("layers") or self.shape.moe_layers
        tier = self.tier_of(ask["cell"]["width"])
        request = Request(**ask["cell"], tier=tier, layers=layers)
        try:
            program = self.program(request)
            return {"samples": [self.sample(program, request, s) for s in ask["seeds"]]}
        except ValueError as error:
            raise Refusal("infeasible", str(error)) from error
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            if not any(sign in first for sign in OUT_OF_MEMORY):
                raise
            torch.cuda.empty_cache()
            raise Refusal("oom", first) from error

    def tier_of(self, width: int) -> int:
        """The width that runs: the rung at or above, or the width itself."""
        if not self.ladder:
            return width
        rung = next((rung for rung in self.ladder if rung >= width), None)
        if rung is None:
            top = self.ladder[-1]
            raise Refusal("infeasible", f"width {width} is over the ladder's top {top}")
        return rung

    def program(self, request: Request) -> Program:
        """The program of a request, built and warmed up at its first use."""
        key = request.program_key
        if key not in self.programs:
            program = Program(self.stack, self.shape, request, self.device)
            program.load(request, seed=0)
            program.run()
            if self.graphs:
                self.pool = program.capture(self.pool)
            self.programs[key] = program
        return self.programs[key]

    def sample(self, program: Program, request: Request, seed: int) -> Message:
        """Time one forward; what ran is read back after the clock has stopped."""
        program.load(request, seed)
        self.warm_up(program)
        reading = self.clock.time(program.run)
        unions = program.unions()
        return {
            "seed": seed,
            "clock_us": reading.clock_us,
            "wall_us": reading.wall_us,
            "reference_us": reading.reference_us,
            "observed_width": request.tier,
            "observed_union": sum(unions) / len(unions) if unions else float("nan"),
            "union_low": min(unions, default=0),
            "union_high": max(unions, default=0),
            "tier": request.tier if self.graphs else 0,
            "backend": "graph" if self.graphs else "eager",
            "at_unix": time.time(),
        }

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
    model: dict[str, Any], asked: object, seats: tuple[int, int], device: torch.device
) -> int:
    """MoE layers to build.

    Raises:
        Refusal: more were asked for than fit or than the model has.
    """
    if not hasattr(F, "grouped_mm"):
        raise Refusal(
            "device",
            f"torch {torch.__version__} has no grouped_mm, the only experts kernel "
            "whose time follows the union; install torch 2.10 or newer",
        )
    most = model["num_layers"] - model["dense_layers"]
    fitting = fitting_layers(read_shape(model, 1), seats, device)
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
