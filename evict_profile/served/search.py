"""Finding served tables: by their folder, and by the names that they were given.

They lie beside cost tables in the same trees, in folders that end in `-served`, so no
other file is opened. A name finds the same name alone, however it is spelled: a model
of another version is another model.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from evict_profile.errors import DataError, EvictProfileError
from evict_profile.records import replace
from evict_profile.served.table import SERVED, ServedTable
from evict_profile.table import CostTable, Key, search_path, version_of
from evict_profile.table.document import ForeignDocument
from evict_profile.table.search import words
from evict_profile.table.store import newest_of

MAKERS = {"nvidia", "geforce", "tesla", "amd", "instinct", "apple", "intel"}
"""Words of a GPU's name that people leave out."""


def load_any(path: Path) -> CostTable | ServedTable:
    """A table of either kind, by the schema that it states."""
    try:
        return CostTable.load(path)
    except ForeignDocument:
        return ServedTable.load(path)


def served_tables(folders: Sequence[Path]) -> Iterator[ServedTable]:
    """Every served table of trees; what is damaged or of another kind is left out."""
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            if not path.parent.resolve().name.endswith(f"-{SERVED}"):
                continue
            try:
                yield ServedTable.load(path)
            except EvictProfileError:
                continue


def versions_of(key: Key, home: Path) -> list[ServedTable]:
    """The versions of one deployment in a folder, the oldest first."""
    own = (table for table in served_tables([home]) if table.key == key)
    return sorted(own, key=lambda table: version_of(table.version))


def as_spelled(table: ServedTable, tables: Path) -> ServedTable:
    """The table under the names of its model and GPU that a tree already has."""
    own = table.key
    same = (
        replace(own, model=key.model, gpu=key.gpu)
        for key in (each.key for each in served_tables([tables]))
        if _name(key.model) == _name(own.model) and _gpu(key.gpu) == _gpu(own.gpu)
    )
    return replace(table, key=next(same, own))


def is_named(key: Key, model: str | None, gpu: str | None, engine: str | None) -> bool:
    """Whether a key has the names that are given; None is any."""
    return (
        (not model or _name(model) == _name(key.model))
        and (not gpu or _gpu(gpu) <= words(key.gpu))
        and (not engine or engine.lower() == key.engine.lower())
    )


def find_served(model: str, gpu: str, engine: str | None = None) -> ServedTable | None:
    """The newest version of the one served table of these names, of `search_path`.

    Raises:
        DataError: several deployments; their tables are listed.
    """
    tables = served_tables([path for path in search_path() if path.is_dir()])
    found = newest_of(t for t in tables if is_named(t.key, model, gpu, engine))
    if len(found) > 1:
        paths = " | ".join(str(table.path) for table in found.values())
        raise DataError(
            f"{len(found)} served tables are of {model} on {gpu}; give one of: {paths}"
        )
    return next(iter(found.values()), None)


def _name(model: str) -> str:
    return re.sub(r"[^\w.]|_", "", model.rpartition("/")[2].lower())


def _gpu(name: str) -> set[str]:
    """The words of a GPU's name without its maker, unless that is all."""
    return words(name) - MAKERS or words(name)
