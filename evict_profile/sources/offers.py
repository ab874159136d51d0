"""What can be composed from a source: its pairs beside the models that have a file."""

from dataclasses import dataclass

import numpy as np

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source, version_order
from evict_profile.sources.experts import Pair, pairs_of

NEAREST = 3
ALIASES = {"bf16": "bfloat16", "mxfp4": "w4a16_mxfp4", "int4": "int4_wo"}
"""Other names of data types."""


@dataclass(frozen=True)
class Wanted:
    """What is to be composed; None where only one thing is there.

    Attributes:
        tp: GPUs in all.
        ep: groups of them that share out the experts; divides `tp`.
    """

    gpu: str
    engine: str
    version: str | None
    dtype: str
    tp: int = 1
    ep: int = 1
    kernel: str | None = None


def pairs(
    source: Source,
    gpu: str | None = None,
    engine: str | None = None,
    model: ModelSpec | None = None,
) -> list[Pair]:
    """All pairs, of one GPU, engine or model where they are named.

    Raises:
        ConfigError: none of that GPU or engine, or no rows of the model's shape; names
            the nearest shapes.
    """
    found: list[Pair] = []
    for name in [source.gpu(gpu)] if gpu else source.gpus:
        for own, version in source.engines(name, "moe"):
            if engine in (None, own):
                found += pairs_of(source, name, own, version)
    if not found:
        raise ConfigError(
            f"no rows of {gpu or 'any GPU'} under {engine} whose unions are known; see "
            "what there is with: evict-profile compose --list"
        )
    return found if model is None else _of_model(found, model)


def shape_of(model: ModelSpec) -> tuple[int, int, int, int]:
    """Hidden size, width of an expert, top-k and experts: what rows are keyed by."""
    moe = model.moe
    return model.hidden_size, moe.expert_width, moe.top_k, moe.num_experts


def the_pair(source: Source, model: ModelSpec, wanted: Wanted) -> Pair:
    """The one pair that is asked for.

    Raises:
        ConfigError: none or several; names what there is.
    """
    if wanted.tp % wanted.ep:
        raise ConfigError(f"--ep {wanted.ep}: must divide --tp {wanted.tp}, all GPUs")
    found = pairs(source, wanted.gpu, wanted.engine, model)
    found = _only(found, "dtype", ALIASES.get(wanted.dtype, wanted.dtype))
    newest = max((pair.version for pair in found), key=version_order)
    found = _only(found, "version", wanted.version or newest, "engine-version")
    if wanted.kernel:
        found = _only(found, "kernel", wanted.kernel)
    sharding = f"{wanted.tp // wanted.ep} x {wanted.ep}"
    found = _only(found, "sharding", sharding, "tp over --ep x --ep")
    if len(found) > 1:
        kernels = " | ".join(pair.kernel for pair in found)
        raise ConfigError(f"several kernels were measured; add --kernel: {kernels}")
    return found[0]


def _only(found: list[Pair], field: str, value: object, option: str = "") -> list[Pair]:
    own = [pair for pair in found if getattr(pair, field) == value]
    if own:
        return own
    there = sorted({getattr(pair, field) for pair in found})
    words = ", ".join(str(each) for each in there)
    raise ConfigError(
        f"--{option or field}: no rows of {value}, only of {words}; choose one of them"
    )


def _of_model(found: list[Pair], model: ModelSpec) -> list[Pair]:
    wanted = shape_of(model)
    own = [pair for pair in found if pair.shape == wanted]
    if own:
        return own

    def far(shape: tuple[int, ...]) -> float:
        return float(np.abs(np.log(np.divide(shape, wanted))).sum())

    near = sorted({pair.shape for pair in found}, key=far)[:NEAREST]
    raise ConfigError(
        f"no rows of {model.name}, whose MoE layer is {_words(wanted)}; the nearest "
        f"are {' | '.join(map(_words, near))}: see evict-profile compose --list"
    )


def _words(shape: tuple[int, ...]) -> str:
    hidden, width, top_k, experts = shape
    return f"hidden {hidden}, experts {experts} of width {width}, top-{top_k}"
