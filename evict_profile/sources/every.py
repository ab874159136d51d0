"""Compose a table of every model on every GPU.

Each kernel's newest version, on as few GPUs as hold the weights. Outcomes are kept pair
by pair, so the command can be repeated.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from evict_profile import __version__
from evict_profile.config import ModelSpec
from evict_profile.config.load import known_models, load_model
from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.physics import common_weights, non_moe_weights
from evict_profile.run_folder import RunFolder
from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, Source
from evict_profile.sources.compose import compose, composer_of, export_composed
from evict_profile.sources.composer import sweep_of
from evict_profile.sources.pairs import KernelKey, pairs, shape_of

RELEASE = f"evict-profile {__version__}, {PACKAGE} {VERSION}"
SHARDINGS = (1, 2, 4, 8)
FILLED = 0.85
"""Share of GPU memory for weights; the rest is cache and workspace."""


class ComposedTree(RunFolder):
    """Composed tables, and why pairs have none."""

    header_name, noun = "composed.json", "composed tables"


def compose_all(
    source: Source, chosen: Iterable[tuple[ModelSpec, KernelKey]], tree: Path
) -> dict[str, dict[str, str]]:
    """Per pair the path of its "table", or "why" it has none."""
    folder = ComposedTree(tree)
    noted: dict[str, Any] = folder.read_header() if folder.exists() else {}
    outcomes = dict(noted["pairs"]) if noted.get("release") == RELEASE else {}
    with folder.locked():
        for model, pair in chosen:
            name = name_of(model, pair)
            done = outcomes.get(name, {})
            if "why" in done or Path(done.get("table", "")).is_file():
                continue
            try:
                composer = composer_of(source, [pair], model)
                table, cells = compose(composer, sweep_of())
                path = export_composed(table, cells, tree)
                outcomes[name] = {"table": str(path.resolve())}
            except MeasurementError as error:
                why = str(error).removeprefix("not composed, since ")
                outcomes[name] = {"why": why}
            except ConfigError as error:
                outcomes[name] = {"why": f"rows: {error}"}
            folder.write_header({"release": RELEASE, "pairs": outcomes})
    return outcomes


def name_of(model: ModelSpec, pair: KernelKey) -> str:
    where = (pair.gpu, pair.engine, pair.version, pair.kernel, pair.dtype)
    return " ".join((model.name, *where, f"tp {pair.tp}"))


def newest_pairs(source: Source) -> Iterator[tuple[ModelSpec, KernelKey]]:
    """Newest rows of every known model, at the smallest sharding that fits."""
    every = sorted(pairs(source), key=lambda pair: Version(pair.version))
    for model in (load_model(str(path)) for path in known_models()):
        newest = {
            (pair.gpu, pair.engine, pair.dtype, pair.kernel): (model, pair)
            for pair in every
            if (pair.shape, pair.ep) == (shape_of(model), 1)
            and pair.tp == _least_gpus(model, pair, source.facts(pair.gpu).memory_gb)
        }
        yield from newest.values()


def _least_gpus(model: ModelSpec, pair: KernelKey, memory_gb: float) -> int:
    """Experts in the pair's data type, the rest in bf16; 0 if none fits."""
    experts = model.moe_layers * model.moe.num_experts
    rest = model.moe_layers * common_weights(model) + non_moe_weights(model)
    weights_gb = (experts * pair.tp * pair.bytes_per_expert + 2 * rest) / 1e9
    return next((n for n in SHARDINGS if weights_gb <= n * FILLED * memory_gb), 0)
