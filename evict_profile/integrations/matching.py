"""The table of a running server, matched by key and model shape, or a refusal."""

import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace, to_mapping
from evict_profile.table import COMPOSED, CostTable

logger = logging.getLogger(__name__)

KNOWN_OF_COMPOSED = ("gpu", "dtype", "engine", "tp", "ep")
"""Fields of a server's key that composed tables have; kernels and graphs are unknown,
and the version is at best near."""

FORMATS = {"modelopt_fp4": "nvfp4", "gpt_oss_mxfp4": "mxfp4"}
"""Tables' names of formats that engines call by their loader."""


def installed_version(
    engine: str, packages: Sequence[str], supported: Sequence[str], how: str = ""
) -> str:
    """The version of an engine in this environment, if the plug-in was tested on it."""
    for package in packages:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if (plain := version.partition("+")[0]) in supported:
            return plain
        raise ConfigError(
            f"{engine} {version} is not supported; install one of "
            f"{', '.join(supported)}"
        )
    raise ConfigError(f"{engine} is not installed in {sys.executable}{how}")


def load_matching_table(
    path: Path,
    observed: Mapping[str, Any],
    shape: Mapping[str, int],
    allow: str,
    fix: str,
) -> CostTable:
    """The table, if it is of this very server; its caveats are logged.

    `observed` are fields of the server's key, `shape` as by `shape_of`. "composed" in
    `allow` takes composed tables; `fix` says how to make the right one.
    """
    table = CostTable.load(path)
    for what, covered in shape_of(table).items():
        if covered != shape[what]:
            raise DataError(
                f"{path}: is of a model with {what} {covered}, and the server's has "
                f"{shape[what]}; {fix}"
            )
    if table.origin == COMPOSED:
        if allow != COMPOSED:
            raise DataError(
                f"{path}: was composed from public rows, and this server was never "
                "measured; set EVICT_PROFILE_ALLOW=composed to decide by it all the "
                f"same, or {fix}"
            )
        table = _composed_for(observed, table, fix)
    else:
        table = CostTable.load(path, {**to_mapping(table.key), **observed}, fix)
    if table.caveats:
        logger.warning("evict-profile: %s: %s", path, "; ".join(table.caveats))
    return table


def _composed_for(observed: Mapping[str, Any], table: CostTable, fix: str) -> CostTable:
    key, version = table.key, observed["engine_version"]
    own = {name: observed[name] for name in KNOWN_OF_COMPOSED}
    own["dtype"] = FORMATS.get(own["dtype"], own["dtype"])
    # SGLang's format says whether its scales are of blocks; vLLM's "fp8" is either.
    is_known = key.engine == "sglang" and key.dtype.endswith("_block")
    if own["dtype"] in key.dtype.split("_") and not is_known:
        own["dtype"] = key.dtype
    table = CostTable.load(table.path, {**to_mapping(key), **own}, fix)
    if version == key.engine_version:
        return table
    marked = (
        f"estimated for {key.engine} {key.engine_version}, and this server runs "
        f"{version}"
    )
    return replace(table, caveats=(marked, *table.caveats))


def shape_of(table: CostTable) -> dict[str, int]:
    """The sizes of the table's model on which time depends."""
    model, moe = table.model, table.model.moe
    return {
        "hidden size": model.hidden_size,
        "layers": model.num_layers,
        "vocabulary": model.vocab_size,
        "experts": moe.num_experts,
        "top-k": moe.top_k,
    }
