"""Rechecks the tables of a folder, each on a machine that has its device."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from evict_profile.errors import DataError
from evict_profile.fleet.child import run_command
from evict_profile.fleet.cluster import MACHINE, ray_at, task
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
"""In place of an exit status: no machine here has the table's device."""

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


def recheck_tree(
    tables: Mapping[Path, CostTable], python: str | None, address: str | None
) -> Answers:
    """Recheck tables on this machine, or each on the first node with its device."""
    left = {path: table.key.gpu for path, table in tables.items()}
    answers = {
        path: (ELSEWHERE, f"no machine here has {gpu}") for path, gpu in left.items()
    }
    places = _nodes(address, left, python) if address else [recheck_here(left, python)]
    for found in places:
        answers |= found
        for path in [path for path, (status, _) in found.items() if status < 2]:
            del left[path]
    return answers


def recheck_here(devices: Mapping[Path, str], python: str | None) -> Answers:
    gpus, cpu, answers = gpu_names(), cpu_name(), {}
    with TemporaryDirectory() as folder:
        for path, device in devices.items():
            # A CPU's fingerprint also names its instructions.
            if device in gpus or device == cpu or device.startswith(f"{cpu} "):
                words = ["check", str(path), "--recheck"]
                words += ["--python", python] if python else []
                log = Path(folder) / "log"
                answers[path] = run_command(words, {}, log, MINUTES)
    return answers


def _nodes(
    address: str, devices: Mapping[Path, str], python: str | None
) -> Iterator[Answers]:
    """Recheck on one node after another; each recheck has its node alone."""
    with ray_at(address) as ray:
        for node in (node for node in ray.nodes() if node["Alive"]):
            offers = node["Resources"]
            placed = ray.remote(task).options(
                num_gpus=min(1, offers.get("GPU", 0)),
                resources={MACHINE: 1} if MACHINE in offers else {},
                label_selector={"ray.io/node-id": node["NodeID"]},
            )
            with suppress(ray.exceptions.RayError):
                yield ray.get(placed.remote(recheck_here, dict(devices), python))
