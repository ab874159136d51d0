"""Finding the table of a running engine: exact on the key, and helpful when it fails.

A table of another engine version, kernel or device is not a worse answer but a wrong
one: between releases of one engine on one GPU, a third to a half of all costs moved by
more than 10 %. So a near miss is refused with its difference named.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evict_profile.errors import EvictProfileError, TableError
from evict_profile.records import parse
from evict_profile.table.cost_table import CostTable
from evict_profile.table.document import read_document
from evict_profile.table.parts import Key
from evict_profile.table.reuse import Reuse, misses

NEAREST = 3


def find_table(folder: Path | str, running: Mapping[str, Any]) -> CostTable:
    """The newest table in a tree of tables whose key is exactly what runs.

    Args:
        folder: holds <gpu>/<model>/<engine>/<version>.json.
        running: the key of the engine that will use it.

    Raises:
        TableError: none; names the nearest, how they differ, and the command that
            would measure the wanted one.
    """
    missing = [name for name in Key.names() if name not in running]
    if missing:
        raise TableError(
            f"the running key lacks {', '.join(missing)}; give all of "
            f"{', '.join(Key.names())}"
        )
    missed = {
        path: _misses(path, running)
        for path in sorted(Path(folder).glob("*/*/*/*.json"))
    }
    exact = [path for path, why in missed.items() if not why]
    if exact:
        return CostTable.load(max(exact, key=_version), running)
    nearest = sorted(missed.items(), key=lambda pair: (len(pair[1]), pair[0]))
    lines = [f"{path} differs in {'; '.join(why)}" for path, why in nearest[:NEAREST]]
    told = f"nearest: {' | '.join(lines)}. " if lines else ""
    raise TableError(
        f"no table in {folder} for {running['model']} on {running['gpu']} "
        f"with {running['engine']} {running['engine_version']}; {told}measure one "
        f"with: evict-profile profile --model {running['model']}"
    )


def _misses(path: Path, running: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        document = read_document(path)
        key, stated = document.get("key"), document.get("reuse", [])
        own = parse(Key, key if isinstance(key, dict) else {}, str(path))
        reuse = [parse(Reuse, each, str(path)) for each in stated]
        return misses(own, reuse, running)[0]
    except EvictProfileError:
        return ("everything: it has no key",)


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in path.stem.split("."))
