"""Which tables are there: folders in a search path, by what engines call a device.

`EVICT_PROFILE_TABLES` names folders, separated as in PATH; without it the shipped ones
are searched. vLLM's and SGLang's own tuned files call a device NVIDIA_H200, whitespace
and slashes made underscores, and so does the index here. A name that no table has
finds none: what is near is named, for a person to choose, and never taken.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from evict_profile.errors import EvictProfileError, TableError
from evict_profile.io import data_root
from evict_profile.table.cost_table import CostTable
from evict_profile.table.document import SCHEMA, read_document
from evict_profile.table.parts import Provenance

SEARCH_PATH = "EVICT_PROFILE_TABLES"


def search_path(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The folders that hold tables, those named first before those after."""
    named = environment.get(SEARCH_PATH, "").split(os.pathsep)
    folders = tuple(Path(each).expanduser() for each in named if each)
    return folders or (data_root() / "cost_tables",)


def device_name(gpu: str) -> str:
    """A device as engines write it in file names: "NVIDIA H200" is NVIDIA_H200."""
    return "_".join(gpu.replace("/", " ").split())


@dataclass(frozen=True)
class Found:
    """A file in the search path: a table, or the reason why it is none.

    Attributes:
        folder: of the search path, which it was found in.
    """

    path: Path
    folder: Path
    table: CostTable | None
    refused: str = ""

    @property
    def device(self) -> str:
        """What engines call its device; empty where there is no table."""
        return device_name(self.table.key.gpu) if self.table else ""

    def age_days(self, now: datetime | None = None) -> int | None:
        """Days since it was measured; None of a composed table."""
        if not self.table or not isinstance(self.table.provenance, Provenance):
            return None
        finished = datetime.fromisoformat(self.table.provenance.finished)
        if finished.tzinfo is None:
            finished = finished.replace(tzinfo=UTC)
        return max(((now or datetime.now(UTC)) - finished).days, 0)


def tables_in(folders: Sequence[Path]) -> tuple[Found, ...]:
    """Every table of the folders, folder by folder.

    Raises:
        TableError: a folder that is not there.
    """
    return tuple(found for folder in folders for found in _of_folder(folder))


def of_device(tables: Sequence[Found], device: str) -> tuple[Found, ...]:
    """Those of one device, by either name.

    Raises:
        TableError: none; what is near is named.
    """
    wanted = device_name(device)
    own = tuple(found for found in tables if found.device == wanted)
    if own:
        return own
    there = sorted({found.device for found in tables if found.device})
    near = get_close_matches(wanted, there, n=3, cutoff=0.5) or there
    told = f"; there are {', '.join(near)}, which are other devices" if near else ""
    raise TableError(
        f"no table is of {wanted}{told}; measure one with evict-profile profile, or "
        "compose one with evict-profile compose"
    )


def _of_folder(folder: Path) -> Iterator[Found]:
    if not folder.is_dir():
        raise TableError(
            f"{folder}: is no folder of tables; mend {SEARCH_PATH}, which separates "
            f"folders by '{os.pathsep}'"
        )
    for path in sorted(folder.rglob("*.json")):
        try:
            schema = str(read_document(path).get("schema", ""))
            if schema.partition("/")[0] == SCHEMA.partition("/")[0]:
                yield Found(path, folder, CostTable.load(path))
        except EvictProfileError as error:
            yield Found(path, folder, None, str(error))
