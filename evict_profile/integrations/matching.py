"""The table of a running server, or the reason why there is none.

A third of all costs moves by more than 10 % between kernels, and a third to a half
between releases of an engine, so a table of anything else is a wrong one. What runs is
what a server was seen to run, not what it was asked for. It cannot know what a table
calls its model, which is compared by its shape.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError, TableError
from evict_profile.records import to_mapping
from evict_profile.table import COMPOSED, CostTable

KNOWN_OF_COMPOSED = ("gpu", "engine", "tp", "ep")
"""Fields of a server's key that a table without a measurement can share: it knows no
kernels, graphs or versions of it."""


def installed_version(
    engine: str, packages: Sequence[str], supported: Sequence[str], how: str = ""
) -> str:
    """The version of an engine in this environment.

    The plug-ins reach into names that engines change without notice, so a version that
    was not read and tried is refused: a server that decodes as if nothing were
    installed is better than one with half a hook.

    Raises:
        ConfigError: there is none, or it is one that was not tried.
    """
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
    raise ConfigError(f"{engine} is not installed here{how}")


def load_matching_table(
    path: Path,
    observed: Mapping[str, Any],
    shape: Mapping[str, int],
    allow: str,
    fix: str,
) -> CostTable:
    """The table, if it prices this very server.

    Args:
        observed: the fields of the key that the server tells.
        shape: of its model, by the names of `shape_of`.
        allow: "composed" takes a table that nobody measured.
        fix: how to come by the right one.

    Raises:
        TableError: unreadable, another model or engine, or composed and not allowed.
    """
    table = CostTable.load(path)
    for what, priced in shape_of(table).items():
        if priced != shape[what]:
            raise TableError(
                f"{path}: prices a model with {what} {priced}, and the server's has "
                f"{shape[what]}; {fix}"
            )
    if table.origin == COMPOSED:
        if allow != COMPOSED:
            raise TableError(
                f"{path}: was composed from public rows, and this server was never "
                "measured; set EVICT_PROFILE_ALLOW=composed to decide by it all the "
                f"same, or {fix}"
            )
        observed = {name: observed[name] for name in KNOWN_OF_COMPOSED}
    return CostTable.load(path, {**to_mapping(table.key), **observed})


def shape_of(table: CostTable) -> dict[str, int]:
    """What tells the table's model from another, as far as time depends on it."""
    model, moe = table.model, table.model.moe
    return {
        "hidden size": model.hidden_size,
        "layers": model.num_layers,
        "vocabulary": model.vocab_size,
        "experts": moe.num_experts,
        "top-k": moe.top_k,
    }
