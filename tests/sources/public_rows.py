"""Writes configs/public_rows.yaml, of the newest release of each data type's rows."""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import yaml

from evict_profile.config import ModelSpec
from evict_profile.config.load import known_models, load_model
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.asked import ENGINES, NEAR, Deployment, check_fit
from evict_profile.sources.compose import composer_of, row_gates
from evict_profile.sources.composer import CONTEXTS
from evict_profile.sources.pairs import BYTES_PER_VALUE, kernels_of, pairs
from evict_profile.table.search import DTYPES

HEADER = """\
# What can be estimated of public rows: for each model, GPU, engine and data type, the
# tensor-parallel sizes whose rows pass their gates and whose weights fit. "near": the
# experts' cost is that of layers near by. Models without rows of their layer are listed
# on four GPUs under two engines, in formats that are served.
# Written by: python -m tests.sources.public_rows WHEEL > configs/public_rows.yaml"""
SHARDINGS = (1, 2, 4, 8)
NEAR_GPUS = ("b200_sxm", "h100_sxm", "h200_sxm", "rtx_pro_6000_server")
NEAR_ENGINES, NEAR_DTYPES = ("sglang", "vllm"), ("fp8_block", "nvfp4")
Tree = dict[str, dict[str, dict[str, list[int | str]]]]


def tree_of(source: Source, model: ModelSpec, gpus: Sequence[str] = ()) -> Tree:
    """Sizes by GPU, engine and data type of all that can be composed of one model."""
    tree: Tree = {}
    for gpu, engine, dtype in product(gpus or source.gpus, ENGINES, BYTES_PER_VALUE):
        places = [Deployment(gpu, engine, dtype, tp) for tp in SHARDINGS]
        listed = (_listed(source, model, place) for place in places)
        if sizes := [size for size in listed if size]:
            tree.setdefault(gpu, {}).setdefault(engine, {})[dtype] = sizes
    return tree


def _on_gpu(wheel: Path, gpu: str) -> dict[str, Tree]:
    """All models on one GPU, in a process that reads its rows alone."""
    source = open_source(wheel)
    found = {}
    for model in _models():
        found[model.name] = tree_of(source, model, [gpu])
        print(gpu, model.name, file=sys.stderr, flush=True)
    return found


def _models() -> list[ModelSpec]:
    return [load_model(name) for name in sorted(path.stem for path in known_models())]


def _listed(source: Source, model: ModelSpec, place: Deployment) -> int | str | None:
    """The size, and whether its experts are of layers near by; None is refused."""
    if not (_has_rows(source, model, place) or _is_offered(model, place)):
        return None
    try:
        check_fit(model, place)
        kernels = kernels_of(source, model, *place[:4])
        composer = composer_of(source, kernels, model)
        gates = row_gates(composer, CONTEXTS)
    except ConfigError:
        return None
    if not all(gate.passed for gate in gates):
        return None
    return f"{NEAR}{place.tp}" if composer.experts.nearest else place.tp


def _has_rows(source: Source, model: ModelSpec, place: Deployment) -> bool:
    try:
        own = pairs(source, place.gpu, place.engine, model)
    except ConfigError:
        return False
    return any(pair.dtype == place.dtype for pair in own)


def _is_offered(model: ModelSpec, place: Deployment) -> bool:
    stored = DTYPES.get(model.checkpoint_dtype, model.checkpoint_dtype)
    served = place.gpu in NEAR_GPUS and place.engine in NEAR_ENGINES
    return served and place.dtype in (stored, *NEAR_DTYPES)


def as_text(name: str, tree: Tree) -> str:
    """A line for each GPU."""
    words = {
        gpu: yaml.safe_dump(engines, default_flow_style=True, width=1000).strip()
        for gpu, engines in tree.items()
    }
    return "\n".join([f"{name}:", *(f"  {gpu}: {line}" for gpu, line in words.items())])


if __name__ == "__main__":
    wheel = Path(sys.argv[1])
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(_on_gpu, wheel), open_source(wheel).gpus))
    print(HEADER)
    for model in _models():
        tree = {gpu: own for each in found for gpu, own in each[model.name].items()}
        if tree:
            print(as_text(model.name, tree), flush=True)
