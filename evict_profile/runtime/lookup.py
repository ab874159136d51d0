"""Finding the table of a running engine: exact on the key, and helpful when it fails.

A table of another engine version, kernel or device is not a worse answer but a wrong
one: between releases of one engine on one GPU, a third to a half of all costs moved
by more than 10 %. So a near miss is refused with its difference named.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evict_profile.errors import TableError
from evict_profile.runtime.table import KEY, CostTable, key_misses
from evict_profile.signed import read_document

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
    missing = [name for name in KEY if name not in running]
    if missing:
        raise TableError(
            f"the running key lacks {', '.join(missing)}; give all of {', '.join(KEY)}"
        )
    keys = {path: _key(path) for path in sorted(Path(folder).glob("*/*/*/*.json"))}
    missed = {path: _misses(running, key) for path, key in keys.items()}
    exact = [path for path, why in missed.items() if not why]
    if exact:
        return CostTable.load(max(exact, key=_version), running)
    raise TableError(
        f"no table in {folder} for {running.get('model')} on {running.get('gpu')} "
        f"with {running.get('engine')} {running.get('engine_version')}; "
        f"{_nearest(missed)}measure one with: evict-profile profile "
        f"--model {running.get('model')}"
    )


def _key(path: Path) -> dict[str, Any]:
    """A table's key; empty where there is none to read, which matches nothing."""
    try:
        key = read_document(path).get("key")
    except TableError:
        return {}
    return key if isinstance(key, dict) else {}


def _misses(running: Mapping[str, Any], key: Mapping[str, Any]) -> tuple[str, ...]:
    return key_misses(running, key) if key else ("everything: it has no key",)


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in path.stem.split("."))


def _nearest(missed: Mapping[Path, tuple[str, ...]]) -> str:
    nearest = sorted(missed.items(), key=lambda pair: (len(pair[1]), pair[0]))
    lines = [f"{path} differs in {'; '.join(why)}" for path, why in nearest[:NEAREST]]
    return f"nearest: {' | '.join(lines)}. " if lines else ""
