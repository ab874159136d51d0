"""What to measure, and when a cell has enough samples. A sweep names no model."""

import runpy
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, field

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.io import data_root, named_file
from evict_profile.records import (
    Amount,
    Count,
    parse,
    read_mapping,
    replace,
    to_mapping,
)

AxisValues = Annotated[tuple[Count, ...], Meta(min_length=1)]
FEWEST_SAMPLES = 6
"""Fewer give no 95 % interval of a median."""
FORMER_SECTIONS = ("sglang", "gpu", "options", "llama", "world")
"""Where earlier versions had the options that are now under `engine`."""


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


class EngineOptions(Struct, frozen=True):
    """Keys of `engine:`: a runner's are `Options` in options.py beside its program."""

    def fault(self, widest: int) -> str:
        """What contradicts the largest width of a grid; "" if nothing does."""
        return ""


class SweepSpec(Struct, frozen=True):
    """A sweep: grid, stop rule, and options of the engine.

    Attributes:
        sessions: first rounds that each start the runner again.
        layers: MoE layers to measure; "auto" is all that fit on a GPU, two on a CPU.
        dtype: "auto" is the model's, if the device multiplies it natively; "fp8_block"
            is FP8 in blocks of 128 x 128, which the runner "sglang_verify" runs.
        graphs: on a GPU, replay captured graphs, one per width.
        whole: cells time whole forwards, non-MoE layers included.
        engine: options of the runner, which states them.
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
    whole: bool = False
    engine: dict[str, Any] = field(default_factory=dict)
    seed: Amount = 0


def runner_program(name: str) -> Path:
    """The program of a runner called by name, or by the path of a script.

    Raises:
        ConfigError: no such runner.
    """
    if name.endswith(".py") and Path(name).is_file():
        return Path(name)
    folder = data_root() / "runners"
    if (folder / name / "__main__.py").is_file():
        return folder / name / "__main__.py"
    names = ", ".join(sorted(p.parent.name for p in folder.glob("*/__main__.py")))
    raise ConfigError(
        f"runner '{name}' is unknown; give a script, such as "
        f"examples/llama_cpp/runner.py, or one of: {names}"
    )


def with_engine(spec: SweepSpec, source: str) -> SweepSpec:
    """The same with every option of its runner, those that `engine:` leaves out too.

    Raises:
        ConfigError: options that the runner does not have, or that cannot be.
    """
    path = runner_program(spec.runner).with_name("options.py")
    stated = runpy.run_path(str(path)) if path.is_file() else {}
    kind: type[EngineOptions] = stated.get("Options", EngineOptions)
    if spec.engine and not kind.__struct_fields__:
        raise ConfigError(
            f"{source}: the runner '{spec.runner}' has no options; remove 'engine:', "
            "or name the runner that reads it"
        )
    options = parse(kind, spec.engine, f"{source}: engine")
    if wrong := options.fault(max(spec.grid.width)):
        raise ConfigError(f"{source}: {wrong}")
    return replace(spec, engine=to_mapping(options))


def gather_engine(sweep: dict[str, Any]) -> None:
    """Put the options that an earlier version saved apart under `engine`."""
    apart = {name: sweep.pop(name, {}) for name in FORMER_SECTIONS}
    by_runner = {"sglang_verify": apart["sglang"], "roofline": {"gpu": apart["gpu"]}}
    own = by_runner.get(str(sweep.get("runner")), apart["options"])
    sweep.setdefault("engine", own)


def load_sweep(name: str) -> SweepSpec:
    """Read the plan of a sweep by name, or by the path of a YAML.

    Raises:
        ConfigError: no such plan, or one that cannot be read.
    """
    path = named_file("sweeps", name)
    content = read_mapping(path)
    if former := [name for name in FORMER_SECTIONS if name in content]:
        new = "engine: {gpu: ...}" if former == ["gpu"] else "engine:"
        raise ConfigError(f"{path}: write '{new}' in place of '{former[0]}:'")
    return with_engine(parse(SweepSpec, content, str(path)), str(path))
