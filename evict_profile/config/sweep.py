"""What to measure, and when a cell has enough samples. A sweep names no model."""

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, field

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.io import named_file
from evict_profile.records import Amount, Count, parse, read_mapping

AxisValues = Annotated[tuple[Count, ...], Meta(min_length=1)]
FEWEST_SAMPLES = 6
"""Fewer give no 95 % interval of a median."""


class GridSpec(Struct, frozen=True):
    """Axes whose product is the grid of cells.

    Attributes:
        width: verify widths n.
        union: unions U, or their number, spaced by ratio from top-k to all experts.
        context: tokens in the KV cache before the tree.
        max_tokens: limit of n x batch.
        cells: forced cells to measure, spread evenly; 0 for all.
        natural: also measure each (n, context, batch) under natural routing.
        validation: cells between the levels to validate; as many more are fitted.
    """

    width: AxisValues
    union: AxisValues | Annotated[int, Meta(ge=2)]
    context: AxisValues
    batch: AxisValues = (1,)
    max_tokens: int = 1024
    cells: Amount = 0
    natural: bool = True
    validation: Amount = 0

    def __post_init__(self) -> None:
        for name in ("width", "union", "context", "batch"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(set(values)) < len(values):
                raise ValueError(f"{name} holds a value twice, got {values}")
        if self.max_tokens < min(self.width) * min(self.batch):
            raise ValueError(f"max_tokens {self.max_tokens} leaves no cell")

    def unions_for(self, model: ModelSpec) -> tuple[int, ...]:
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
    """`relative_half_width` is of the 95 % interval of a cell's median."""

    relative_half_width: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.02
    min_samples: Annotated[int, Meta(ge=FEWEST_SAMPLES)] = FEWEST_SAMPLES
    max_samples: int = 30

    def __post_init__(self) -> None:
        if self.min_samples > self.max_samples:
            raise ValueError(
                f"min_samples {self.min_samples} exceeds max_samples {self.max_samples}"
            )


class SglangSpec(Struct, frozen=True):
    """Options of the runner "sglang_verify".

    Attributes:
        model: folder of the target; "" is the folder of the model's config.json, or a
            config.json written from its shape.
        draft: folder of the EAGLE-3 head; "" writes a usual config.json.
        steps, topk: levels drafted, and children of each node; 1 drafts chains.
    """

    model: str = ""
    draft: str = ""
    steps: Count = 5
    topk: Count = 8
    attention_backend: str = ""
    tp: Count = 1


class SweepSpec(Struct, frozen=True):
    """A sweep: grid, stop rule, and options of the engine.

    Attributes:
        sessions: first rounds that each start the runner again.
        layers: MoE layers to measure; "auto" is all that fit on a GPU, two on a CPU.
        dtype: "auto" is the model's, if the device multiplies it natively; "fp8_block"
            is FP8 in blocks of 128 x 128, which the runner "sglang_verify" runs.
        graphs: on a GPU, replay captured graphs, one per width.
        gpu: datasheet for the runner "roofline".
        options: for a runner of your own, a script; its `open` gets them as "own".
        whole: cells time whole forwards, non-MoE layers included.
    """

    name: str
    grid: GridSpec
    runner: str = "torch_moe"
    stop: StopSpec = field(default_factory=StopSpec)
    samples_per_round: Count = 1
    sessions: Count = 1
    layers: Literal["auto"] | Count = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "bfloat16", "float32", "fp8_block"] = "auto"
    graphs: bool = True
    gpu: str = "h200-sxm"
    whole: bool = False
    sglang: SglangSpec = field(default_factory=SglangSpec)
    options: dict[str, Any] = field(default_factory=dict)
    seed: Amount = 0

    def __post_init__(self) -> None:
        if self.options and not self.runner.endswith(".py"):
            raise ValueError(
                f"options are for a runner of your own, and '{self.runner}' reads none;"
                " remove them, or name the script that reads them as runner"
            )
        chain, widest = self.sglang.steps + 1, max(self.grid.width)
        if self.sglang.topk == 1 and widest != chain:
            raise ValueError(
                f"sglang.topk 1 drafts chains of {chain} tokens with the root, and the "
                f"largest width is {widest}; end grid.width with {chain}, or change "
                "sglang.steps"
            )


def load_sweep(name: str) -> SweepSpec:
    """Read the plan of a sweep by name, or by the path of a YAML.

    Raises:
        ConfigError: no such plan, or one that cannot be read.
    """
    path = named_file("sweeps", name)
    content = read_mapping(path)
    if content.get("runner") == "llama_cpp":
        raise ConfigError(
            f"{path}: llama.cpp's runner is a script of the checkout: write 'runner: "
            "examples/llama_cpp/runner.py', and 'options:' in place of 'llama:'"
        )
    return parse(SweepSpec, content, str(path))
