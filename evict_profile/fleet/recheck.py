"""Rechecks the tables of a folder whose device this machine has."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from evict_profile.errors import DataError
from evict_profile.fleet.child import run_command
from evict_profile.sweep.machine import cpu_name, gpu_names
from evict_profile.table import (
    COMPOSED,
    DATASHEET,
    CostTable,
    Found,
    measured,
    version_of,
)

MINUTES = 60.0
ELSEWHERE = -1
"""In place of an exit status: this machine has not the table's device."""

Answers = dict[Path, tuple[int, str]]
"""Exit status and last line of `check --recheck`, by table."""


def newest_tables(found: tuple[Found, ...]) -> dict[Path, CostTable]:
    """The newest measured table of each key, without tables of a datasheet."""
    newest: dict[object, tuple[Path, CostTable]] = {}
    read = [(each.path, each.table) for each in found if each.table]
    for path, table in sorted(read, key=lambda each: version_of(each[1].version)):
        if table.origin != COMPOSED and measured(table.provenance).clock != DATASHEET:
            newest[table.key] = (path.resolve(), table)
    if not newest:
        raise DataError(
            "the tree holds no measured table; give one as 'export' writes it"
        )
    return dict(sorted(newest.values(), key=lambda each: each[0]))


def recheck_tree(tables: Mapping[Path, CostTable], python: str | None) -> Answers:
    gpus, cpu, answers = gpu_names(), cpu_name(), {}
    with TemporaryDirectory() as folder:
        for path, table in tables.items():
            device = table.key.gpu
            # A CPU's fingerprint also names its instructions.
            if device in gpus or device == cpu or device.startswith(f"{cpu} "):
                words = ["check", str(path), "--recheck"]
                words += ["--python", python] if python else []
                log = Path(folder) / "log"
                answers[path] = run_command(words, {}, log, MINUTES)
            else:
                answers[path] = (ELSEWHERE, f"this machine has no {device}")
    return answers
