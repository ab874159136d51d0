"""Finding a table: by the key of a running engine, or by what engines call a device.

Lookup by key is exact; the refusal names the nearest tables and their differences.
`EVICT_PROFILE_TABLES` names folders as PATH does; else `./cost_tables` comes before the
shipped one. Devices also go by their file names in vLLM and SGLang: NVIDIA_H200.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from evict_profile.config.names import model_named
from evict_profile.errors import DataError, EvictProfileError
from evict_profile.io import data_root, nearest
from evict_profile.table.cost_table import CostTable
from evict_profile.table.document import ForeignDocument, version_of
from evict_profile.table.key import Key
from evict_profile.table.provenance import MEASURED, measured
from evict_profile.table.store import newest_of

SEARCH_PATH = "EVICT_PROFILE_TABLES"
NEAREST = 3
DTYPES = {"bf16": "bfloat16", "mxfp4": "w4a16_mxfp4", "int4": "int4_wo"}


def find_table(folder: Path | str, running: Mapping[str, Any]) -> CostTable:
    """The newest table in a tree of tables whose key is exactly `running`.

    Raises:
        DataError: no table matches; the message names the nearest ones.
    """
    missing = [name for name in Key.names() if name not in running]
    if missing:
        raise DataError(
            f"the running key lacks {', '.join(missing)}; give all of "
            f"{', '.join(Key.names())}"
        )
    tables = [entry.table for entry in tables_below(Path(folder)) if entry.table]
    missed = {
        table.path: table.key.mismatches(running)
        for table in tables
        if _is_near(table.key, running["model"], running["gpu"])
    }
    if exact := [path for path in missed if not missed[path]]:
        newest = max(exact, key=lambda path: version_of(path.stem))
        return CostTable.load(newest, running)
    near = sorted(missed, key=lambda path: len(missed[path]))[:NEAREST]
    lines = [f"{path} differs in {'; '.join(missed[path])}" for path in near]
    hint = f"nearest: {' | '.join(lines)}. " if lines else ""
    raise DataError(
        f"no table in {folder} for {running['model']} on {running['gpu']} "
        f"with {running['engine']} {running['engine_version']}; {hint}measure one "
        f"with: evict-profile sweep {running['model']}"
    )


def search_path(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    named = environment.get(SEARCH_PATH, "").split(os.pathsep)
    folders = tuple(Path(name).expanduser() for name in named if name)
    local, shipped = Path("cost_tables"), data_root() / "cost_tables"
    is_other = local.is_dir() and local.resolve() != shipped.resolve()
    return folders or ((local, shipped) if is_other else (shipped,))


def device_name(gpu: str) -> str:
    """A device in engines' file names: "NVIDIA H200" is NVIDIA_H200."""
    return "_".join(gpu.replace("/", " ").split())


@dataclass(frozen=True)
class Found:
    path: Path
    table: CostTable | None
    refused: str = ""

    @property
    def device(self) -> str:
        return device_name(self.table.key.gpu) if self.table else ""

    def age_days(self, now: datetime | None = None) -> int | None:
        """Days since it was measured; None if no sweep measured it."""
        if not self.table or self.table.origin != MEASURED:
            return None
        finished = datetime.fromisoformat(measured(self.table.provenance).finished)
        if finished.tzinfo is None:
            finished = finished.replace(tzinfo=UTC)
        return max(((now or datetime.now(UTC)) - finished).days, 0)


def tables_in(folders: Sequence[Path]) -> tuple[Found, ...]:
    for folder in folders:
        if not folder.is_dir():
            raise DataError(
                f"{folder}: is no folder of tables; name another, or fix "
                f"{SEARCH_PATH}, which separates folders by '{os.pathsep}'"
            )
    return tuple(entry for folder in folders for entry in tables_below(folder))


def of_names(
    tables: Sequence[Found], model: str | None, gpu: str | None, engine: str | None
) -> tuple[Found, ...]:
    return tuple(
        entry
        for entry in tables
        if (table := entry.table)
        and (not model or model_named(model, [table.key.model]))
        and (not gpu or words(gpu) <= words(table.key.gpu))
        and (not engine or engine.lower() == table.key.engine.lower())
    )


def no_table(tables: Sequence[Found], names: Mapping[str, str | None]) -> DataError:
    keys = [entry.table.key for entry in tables if entry.table]
    terms = {w for key in keys for w in (key.model, _short_name(key.gpu), key.engine)}
    given = {f"--{name} {quote(word)}": word for name, word in names.items() if word}
    near = (nearest(w, sorted(terms)) for w in given.values() if w.lower() not in terms)
    return DataError(
        f"no table is of {' '.join(given)}{''.join(near)}; list all with: "
        "evict-profile show"
    )


def by_name(
    tables: Sequence[Found],
    model: str,
    gpu: str,
    engine: str,
    tp: int | None = None,
    dtype: str | None = None,
) -> CostTable | None:
    """The newest version of the one table of these names; None where there is none.

    `gpu` may be "h200"; `dtype` is of the experts, and also goes by bf16, mxfp4 or
    int4.

    Raises:
        DataError: several; they are listed.
    """
    chosen = (entry.table for entry in of_names(tables, model, gpu, engine))
    by_key = newest_of(
        table
        for table in filter(None, chosen)
        if tp in (None, table.key.tp)
        and (
            dtype in (None, table.key.dtype)
            or DTYPES.get(str(dtype)) == table.key.dtype
            or f"_{dtype}" in table.key.dtype  # mxfp4 is also w4a8_mxfp4_mxfp8.
        )
    )
    if len(by_key) > 1:
        words = [f"--tp {key.tp} --dtype {quote(key.dtype)}" for key in by_key]
        same = len(set(words)) < len(words)
        either = map(str, (table.path for table in by_key.values())) if same else words
        raise DataError(
            f"{len(by_key)} tables are of {model} on {gpu} under {engine}; give "
            f"{'one of' if same else 'also'}: {' | '.join(either)}"
        )
    return next(iter(by_key.values()), None)


def nearest_named(
    tables: Sequence[Found], model: str | None, gpu: str | None, engine: str | None
) -> list[str]:
    keys = {entry.table.key for entry in tables if entry.table}
    near = [key for key in keys if _is_near(key, model, gpu)]

    def apart(key: Key) -> tuple[bool | int, ...]:
        other_gpu = bool(gpu) and not words(str(gpu)) <= words(key.gpu)
        return other_gpu, engine not in (None, key.engine), key.tp

    return [
        f"--model {quote(key.model)} --gpu {quote(_short_name(key.gpu))} --engine "
        f"{key.engine} --tp {key.tp} --dtype {quote(key.dtype)}"
        for key in sorted(near, key=apart)[:NEAREST]
        if model or gpu or engine
    ]


def _is_near(key: Key, model: str | None, gpu: str | None) -> bool:
    """Without a model, a CPU's table says nothing of a GPU."""
    if model and not model_named(model, [key.model]):
        return False
    same_kind = bool(model and gpu) and _is_cpu(str(gpu)) == _is_cpu(key.gpu)
    return not gpu or words(gpu) <= words(key.gpu) or same_kind


def _is_cpu(device: str) -> bool:
    return bool(words(device) & {"cpu", "processor", "xeon", "epyc"})


def _short_name(gpu: str) -> str:
    device = device_name(gpu).lower()
    match = re.search(r"(?<![a-z])[a-z]{1,2}\d{3}(?![a-z0-9])", device)
    return match[0] if match else device


def words(gpu: str) -> set[str]:
    """The words and numbers of a GPU's name: RTX 4090 is rtx-4090 and rtx4090."""
    return set(re.findall(r"[a-z]+|\d+", gpu.lower()))


def tables_below(folder: Path) -> Iterator[Found]:
    for path in sorted(filter(Path.is_file, folder.rglob("*.json"))):
        try:
            yield Found(path, CostTable.load(path))
        except ForeignDocument:
            continue
        except EvictProfileError as error:
            yield Found(path, None, str(error))
