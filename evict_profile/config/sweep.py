"""What to measure, and when a cell has been measured enough.

A sweep names no model: unions may be given as a count of points, spread evenly by
ratio from top-k to all experts of whichever model is swept.
"""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct, field

from evict_profile.config.model import ModelSpec
from evict_profile.io import named_file
from evict_profile.records import Amount, Count, parse, read_mapping

Levels = Annotated[tuple[Count, ...], Meta(min_length=1)]
FEWEST_SAMPLES = 6
"""Fewer give no 95 % interval of a median."""


class GridSpec(Struct, frozen=True):
    """Axes whose product is the grid of cells.

    Attributes:
        width: verify widths n.
        union: unions U, or how many of them to spread from top-k to all experts.
        context: tokens in the KV cache before the tree.
        batch: requests verified together.
        max_tokens: cells with n x batch above it are no part of the grid.
        split: how token slots fall on experts; more than one measures a nuisance.
        cells: forced cells to measure of the product, spread evenly; 0 for all.
        natural: also measure each (n, context, batch) with the router's own choice.
        validation: cells to validate between the levels; as many there are fitted.
    """

    width: Levels
    union: Levels | Annotated[int, Meta(ge=2)]
    context: Levels
    batch: Levels = (1,)
    max_tokens: int = 1024
    split: tuple[Literal["balanced", "skewed"], ...] = ("balanced",)
    cells: Amount = 0
    natural: bool = True
    validation: Amount = 0

    def __post_init__(self) -> None:
        for name in ("width", "union", "context", "batch"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(set(values)) < len(values):
                raise ValueError(f"{name} holds a value twice, got {values}")
        if "balanced" not in self.split:
            raise ValueError("split needs 'balanced', which is what the fit covers")
        if self.max_tokens < min(self.width) * min(self.batch):
            raise ValueError(f"max_tokens {self.max_tokens} leaves no cell")

    def unions_for(self, model: ModelSpec) -> tuple[int, ...]:
        """The unions to force on this model, increasing."""
        top_k, experts = model.moe.top_k, model.moe.num_experts
        if isinstance(self.union, int):
            points = np.geomspace(top_k, experts, self.union)
            return tuple(sorted({round(float(p)) for p in points}))
        outside = [u for u in self.union if not top_k <= u <= experts]
        if outside:
            raise ValueError(
                f"grid.union {outside[0]} cannot be: {model.name} runs top-{top_k} "
                f"of {experts} experts; choose {top_k}..{experts}, or a count of points"
            )
        return tuple(sorted(set(self.union)))


class StopSpec(Struct, frozen=True):
    """A cell is done when its median is known well enough, or at the most samples.

    Attributes:
        relative_half_width: of the 95 % interval of a cell's median.
    """

    relative_half_width: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.02
    min_samples: Annotated[int, Meta(ge=FEWEST_SAMPLES)] = FEWEST_SAMPLES
    max_samples: int = 30

    def __post_init__(self) -> None:
        if self.min_samples > self.max_samples:
            raise ValueError(
                f"min_samples {self.min_samples} exceeds max_samples {self.max_samples}"
            )


class SglangSpec(Struct, frozen=True):
    """What the runner "sglang_verify" loads, and how the server would draft.

    Attributes:
        model: folder of the target; "" takes the folder of the config.json that the
            model came from, or writes a config.json of its shape.
        draft: folder of the EAGLE-3 head; "" writes a config.json of a usual one.
        steps, topk: levels that are drafted, and children of each node; of at least
            two, since a chain has no tree to cut.
        attention_backend: SGLang's name for one; "" leaves the choice to SGLang.
    """

    model: str = ""
    draft: str = ""
    steps: Count = 5
    topk: Annotated[int, Meta(ge=2)] = 8
    attention_backend: str = ""


LLAMA_CPP = "llama_cpp"


class LlamaSpec(Struct, frozen=True):
    """What the runner `LLAMA_CPP` loads, and how the server decodes that is measured.

    Attributes:
        model: GGUF file; "" takes the one that the model's shape was read from.
        library: libllama.so; "" takes $EVICT_PROFILE_LIBLLAMA, else xllamacpp's.
        text: file whose tokens are decoded; "" takes a module of Python's library.
        threads: of llama.cpp. With more than one, wall time is read, on an idle
            machine alone.
        overrides: "PATTERN=CPU": tensors whose names match stay in CPU memory.
        repack: whether weights may be repacked for the kernels of this CPU.
    """

    model: str = ""
    library: str = ""
    text: str = ""
    threads: Count = 1
    gpu_layers: Amount = 0
    overrides: tuple[str, ...] = ()
    cache_k: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] = "f16"
    cache_v: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] = "f16"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    repack: bool = True


class SweepSpec(Struct, frozen=True):
    """A sweep: grid, stop rule, and how the engine is to be opened.

    Attributes:
        sessions: how many of the first rounds have a session of the runner of their
            own. Sessions differ as a whole; costs are the surer the more there are.
        layers: MoE layers to measure; "auto" takes all that fit on a GPU, two on a CPU.
        dtype: "auto" measures in the model's, where the device multiplies it itself.
        graphs: on a GPU, replay captured graphs, one a width, as servers do.
        gpu: the datasheet that the runner "roofline" computes with.
        world: the folder of trained weights that the runner "tree_decoding" opens.
        whole: cells time whole forwards, non-MoE layers included, where an engine
            cannot run its MoE layers apart.
    """

    name: str
    grid: GridSpec
    runner: str = "torch_moe"
    stop: StopSpec = field(default_factory=StopSpec)
    samples_per_round: Count = 1
    sessions: Count = 1
    layers: Literal["auto"] | Count = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    graphs: bool = True
    gpu: str = "h200-sxm"
    world: str = "worlds/stdlib"
    whole: bool = False
    sglang: SglangSpec = field(default_factory=SglangSpec)
    llama: LlamaSpec = field(default_factory=LlamaSpec)
    seed: int = 0


def load_sweep(name: str) -> SweepSpec:
    """Read a sweep by name or path."""
    path = named_file("sweeps", name)
    return parse(SweepSpec, read_mapping(path), str(path))
