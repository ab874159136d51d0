"""Writes configs/public_rows.yaml, of the newest release of each data type's rows."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import yaml
from packaging.version import Version

from evict_profile.config import ModelSpec
from evict_profile.config.load import known_models, load_model
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.asked import Deployment, check_fit
from evict_profile.sources.compose import composer_of, row_gates
from evict_profile.sources.composer import CONTEXTS
from evict_profile.sources.every import SHARDINGS
from evict_profile.sources.pairs import KernelKey, pairs

HEADER = """\
# What can be estimated of public rows: for each model, GPU, engine and data type, the
# tensor-parallel sizes whose rows pass their gates and whose weights fit.
# Written by: python -m tests.sources.public_rows WHEEL > configs/public_rows.yaml"""
Tree = dict[str, dict[str, dict[str, list[int]]]]


def tree_of(source: Source, model: ModelSpec) -> Tree:
    """Sizes by GPU, engine and data type of all that can be composed of one model."""
    tree: Tree = {}
    try:
        every = [pair for pair in pairs(source, model=model) if pair.ep == 1]
    except ConfigError:
        return tree
    for place, own in groupby(sorted(every, key=_place), key=_place):
        kernels = list(own)
        newest = max((pair.version for pair in kernels), key=Version)
        kernels = [pair for pair in kernels if pair.version == newest]
        sizes = sorted({pair.tp for pair in kernels}.intersection(SHARDINGS))
        gpu, engine, dtype = place
        passing = [tp for tp in sizes if _passes(source, model, kernels, tp)]
        if passing:
            tree.setdefault(gpu, {}).setdefault(engine, {})[dtype] = passing
    return tree


def _place(pair: KernelKey) -> tuple[str, str, str]:
    return pair.gpu, pair.engine, pair.dtype


def _passes(
    source: Source, model: ModelSpec, kernels: Sequence[KernelKey], tp: int
) -> bool:
    own = [pair for pair in kernels if pair.tp == tp]
    try:
        check_fit(model, Deployment(*_place(own[0]), tp))
        gates = row_gates(composer_of(source, own, model), CONTEXTS)
    except ConfigError:
        return False
    return all(gate.passed for gate in gates)


def as_text(name: str, tree: Tree) -> str:
    """A line for each GPU."""
    words = {
        gpu: yaml.safe_dump(engines, default_flow_style=True, width=1000).strip()
        for gpu, engines in tree.items()
    }
    return "\n".join([f"{name}:", *(f"  {gpu}: {line}" for gpu, line in words.items())])


if __name__ == "__main__":
    wheel = open_source(Path(sys.argv[1]))
    print(HEADER)
    for model in map(load_model, sorted(path.stem for path in known_models())):
        if found := tree_of(wheel, model):
            print(as_text(model.name, found), flush=True)
