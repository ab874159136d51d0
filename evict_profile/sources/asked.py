"""What can be estimated, known before rows are read or downloaded."""

from functools import cache
from itertools import count
from typing import Any, NamedTuple

from evict_profile.config.load import known_models
from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.io import data_root, nearest
from evict_profile.physics import parameters
from evict_profile.records import read_mapping
from evict_profile.sources.pairs import BYTES_PER_VALUE, GPUS
from evict_profile.table.search import DTYPES, NEAREST

ENGINES = ("sglang", "trtllm", "vllm")
NEAR = "near "
"""Before tensor-parallel sizes in the list whose experts are of layers near by."""


class Deployment(NamedTuple):
    gpu: str
    engine: str
    dtype: str
    tp: int
    near: bool = False
    """Whether the experts' cost is that of layers near by."""

    @property
    def options(self) -> str:
        gpu = self.gpu.removesuffix("_sxm")
        return f"--gpu {gpu} --engine {self.engine} --dtype {self.dtype} --tp {self.tp}"


@cache
def deployments_of(model: str) -> tuple[Deployment, ...]:
    """Those of a shipped model whose rows pass their gates and whose weights fit."""
    return tuple(
        Deployment(gpu, engine, dtype, int(str(size).removeprefix(NEAR)), near)
        for gpu, engines in _listed().get(model, {}).items()
        for engine, dtypes in engines.items()
        for dtype, sizes in dtypes.items()
        for size in sizes
        for near in [str(size).startswith(NEAR)]
    )


def offered(
    model: ModelSpec | None, gpu: str | None, engine: str | None
) -> dict[str, list[Deployment]]:
    """What can be estimated of each shipped model, or of one.

    Raises:
        ConfigError: nothing can.
    """
    name = gpu and gpu_named(gpu)
    if engine:
        _check_engine(engine)
    found = {
        each: [
            own
            for own in deployments_of(each)
            if name in (None, own.gpu) and engine in (None, own.engine)
        ]
        for each in ([model.name] if model else _listed())
    }
    if any(found.values()):
        return found
    raise ConfigError(
        "--list names shipped models that can be estimated, and not "
        f"{model and model.name} on {name or 'any GPU'} under {engine or 'any engine'}"
        "; the reason is said by: evict-profile estimate --model MODEL --gpu GPU "
        "--engine ENGINE"
    )


@cache
def _listed() -> dict[str, Any]:
    return read_mapping(data_root() / "configs" / "public_rows.yaml")


def deployment_of(
    model: ModelSpec, gpu: str, engine: str, dtype: str | None, tp: int | None
) -> Deployment:
    """The one asked for; by default as published, on few GPUs, where that has rows.

    Raises:
        ConfigError: it cannot be, or has no usable rows; the nearest that has is named.
    """
    wanted = DTYPES.get(dtype or "", dtype)
    name = check_names(gpu, engine, dtype)
    stored = model.checkpoint_dtype
    asked = Deployment(name, engine, wanted or DTYPES.get(stored, stored), tp or 1)

    def apart(other: Deployment) -> tuple[bool | int, ...]:
        return (
            other.engine != engine,
            other.gpu != asked.gpu,
            wanted not in (None, other.dtype),
            tp not in (None, other.tp),
            stored not in other.dtype,  # mxfp4 is in w4a16_mxfp4
            other.near,
            other.dtype != "bfloat16",
            other.tp,
        )

    near = sorted(deployments_of(model.name), key=apart)
    if near and not any(apart(near[0])[:4]):
        return near[0]
    unlisted = not near and model.name not in (path.stem for path in known_models())
    if tp or unlisted:
        check_fit(model, asked)
    if unlisted:
        return asked
    given = f" in {dtype}" * bool(dtype) + f" on {tp} GPUs" * bool(tp)
    where = f"on {name} under {engine}{given}" if near else "on any GPU and engine"
    there = " | ".join(each.options for each in near[:NEAREST])
    raise ConfigError(
        f"no usable public rows are of {model.name} {where}; "
        f"measure your server with: evict-profile probe URL --out runs.jsonl, and: "
        f"evict-profile import runs.jsonl --model {model.name} --gpu {gpu}"
        f"; the reason is said by: evict-profile estimate --model {model.name} "
        f"{asked.options}" + f"; there are rows of: {there}" * bool(there)
    )


def assumption(model: ModelSpec, asked: Deployment) -> str:
    """What is said of a data type that was not given."""
    stored, used = model.checkpoint_dtype, f"experts are taken as {asked.dtype}"
    if stored in asked.dtype:
        return f"{used}, as {model.name} is published; --dtype names another format"
    return f"{used}, since no usable rows are of {stored}, as {model.name} is published"


def check_names(gpu: str, engine: str, dtype: str | None) -> str:
    """The GPU as in the rows; refuses names that no row has."""
    name = gpu_named(gpu)
    _check_engine(engine)
    known = [*DTYPES, *BYTES_PER_VALUE]
    if dtype and dtype not in known:
        raise ConfigError(
            f"--dtype {dtype}: is unknown; choose one of {', '.join(known)}"
        )
    return name


def gpu_named(asked: str) -> str:
    """Resolve a prefix: "h200" is "h200_sxm"."""
    wanted = asked.lower().replace("-", "_")
    found = [name for name in GPUS if f"{name}_".startswith(f"{wanted}_")]
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else found[0]
    raise ConfigError(
        f"--gpu {asked}: there are rows of {', '.join(GPUS)}{nearest(wanted, [*GPUS])}"
        "; name one of them"
    )


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise ConfigError(
            f"--engine {engine}: there are rows of {', '.join(ENGINES)}"
            f"{nearest(engine, ENGINES)}; name one of them"
        )


def check_fit(model: ModelSpec, asked: Deployment) -> None:
    """Refuse ranks that do not divide the heads, or cannot hold the weights."""
    heads = model.attention.num_heads
    if heads % asked.tp:
        raise ConfigError(
            f"--tp {asked.tp}: does not divide the {heads} attention heads of "
            f"{model.name}; give a number that does"
        )
    memory_gb = read_mapping(data_root() / "configs" / "gpu_memory.yaml").get(asked.gpu)
    value_bytes = BYTES_PER_VALUE.get(DTYPES.get(asked.dtype, asked.dtype))
    if not memory_gb or not value_bytes:
        return
    weights_gb = parameters(model, model.moe.num_experts) * value_bytes / 2**30
    if weights_gb > asked.tp * memory_gb:
        fewest = next(2**i for i in count() if weights_gb <= 2**i * memory_gb)
        raise ConfigError(
            f"{model.name} in {asked.dtype} does not fit on {asked.tp} {asked.gpu}: "
            f"its weights alone take {weights_gb:,.0f} GB, without cache and "
            f"activations, and each GPU has {memory_gb} GB; give --tp {fewest} or "
            "more, or a smaller --dtype"
        )
