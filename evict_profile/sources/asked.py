"""The deployment that a user names, checked before rows are read or downloaded."""

import re
from typing import NamedTuple

from evict_profile.config.model import BYTES_PER_VALUE as STORED
from evict_profile.config.model import ModelSpec
from evict_profile.config.weights import UNKNOWN
from evict_profile.errors import ConfigError
from evict_profile.io import data_root, nearest
from evict_profile.physics import seen_context
from evict_profile.records import read_mapping
from evict_profile.sources.pairs import BYTES_PER_VALUE, GPUS
from evict_profile.table.search import DTYPES

ENGINES = ("sglang", "trtllm", "vllm")
BATCHES, CONTEXTS = (1, 4, 16, 64, 128, 256), (512, 2048)
"""Of every estimate."""
RANKS = [1 << i for i in range(20)]


class Placement(NamedTuple):
    gpu: str
    engine: str
    dtype: str
    tp: int

    @property
    def options(self) -> str:
        gpu = self.gpu.removesuffix("_sxm")
        return f"--gpu {gpu} --engine {self.engine} --dtype {self.dtype} --tp {self.tp}"


def placement_of(
    model: ModelSpec,
    gpu: str,
    engine: str,
    dtype: str | None = None,
    tp: int | None = None,
) -> Placement:
    """The named placement; by default on as few GPUs as hold weights and cache.

    Raises:
        ConfigError: a name is unknown, or the weights do not fit.
    """
    name, engine = gpu_named(gpu), engine.lower()
    if engine not in ENGINES:
        raise ConfigError(
            f"--engine {engine}: there are rows of {', '.join(ENGINES)}"
            f"{nearest(engine, ENGINES)}; name one of them"
        )
    dtypes = [*DTYPES, *BYTES_PER_VALUE]
    if dtype and dtype not in dtypes:
        raise ConfigError(
            f"--dtype {dtype}: is unknown; choose one of {', '.join(dtypes)}"
        )
    dtype = dtype or row_dtype(model)
    fewest = _fewest(model, name, dtype, BATCHES[-1])
    asked = Placement(name, engine, dtype, tp or fewest)
    _check_ranks(model, asked, _fewest(model, name, dtype))
    return asked


def assumption(model: ModelSpec) -> str:
    is_known = not any(note.startswith(UNKNOWN) for note in model.notes)
    return (
        f"experts are taken as {model.checkpoint_dtype}"
        f"{f', as {model.name} is published' * is_known}; --dtype names another format"
    )


def row_dtype(model: ModelSpec) -> str:
    """The type of the experts as published, as public rows name it."""
    return re.sub(r"^u?int4(_g\d+)?$", "int4", model.checkpoint_dtype)


def has_rows(gpu: str, engine: str) -> bool:
    return engine in ENGINES and bool(_named(gpu))


def _named(asked: str) -> str:
    wanted = _in_rows(asked)
    names = [name for name in GPUS if f"{name}_".startswith(f"{wanted}_")]
    if wanted in names:
        return wanted
    return names[0] if len(names) == 1 else ""


def _in_rows(gpu: str) -> str:
    return re.sub("[^a-z0-9]+", "_", gpu.lower()).removeprefix("nvidia_")


def gpu_named(asked: str) -> str:
    """Resolve a prefix: "h200" and "NVIDIA H200" are "h200_sxm"."""
    if name := _named(asked):
        return name
    raise ConfigError(
        f"--gpu {asked}: there are rows of {', '.join(GPUS)}"
        f"{nearest(_in_rows(asked), [*GPUS])}; name one of them"
    )


def _fewest(model: ModelSpec, gpu: str, dtype: str, batch: int = 0) -> int:
    """Ranks that hold the weights, and a cache at the shortest context of a table."""
    each_gib = read_mapping(data_root() / "configs" / "gpu_memory.yaml")[gpu]
    weights_gib, own = _weights_gib(model, dtype), model.attention
    tokens = batch * model.num_layers * seen_context(model, CONTEXTS[0])
    cache_gib = 2 * tokens * own.cache_values_per_token / 2**30
    heads = 1 if own.kind == "mla" else own.num_kv_heads
    # As copies a cache may fit on no number.
    held_gib = {n: weights_gib / n + cache_gib / min(n, heads) for n in RANKS}
    return next((n for n in RANKS if held_gib[n] <= each_gib), RANKS[-1])


def _weights_gib(model: ModelSpec, dtype: str) -> float:
    value_bytes = (STORED | BYTES_PER_VALUE)[DTYPES.get(dtype, dtype)]
    return model.total_parameters * value_bytes / 2**30


def _check_ranks(model: ModelSpec, asked: Placement, fewest: int) -> None:
    if asked.tp < fewest:
        raise ConfigError(
            f"{model.name} in {asked.dtype} does not fit on {asked.tp} {asked.gpu}: "
            f"its weights alone take {_weights_gib(model, asked.dtype):,.0f} GiB, "
            f"without cache and activations; give --tp {fewest} or more, or a "
            "smaller --dtype"
        )
    heads = model.attention.num_heads
    if heads % asked.tp:
        raise ConfigError(
            f"--tp {asked.tp}: does not divide the {heads} attention heads of "
            f"{model.name}; give a number that does"
        )
