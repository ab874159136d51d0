"""Do the tables of a tree still hold, each on the machines that it names?

A table names its device. Nodes are asked what they have, a table is rechecked on one
that has it, and where the engine there is another, on the next. What no node has is
gone: the table is not wrong, but nobody can say that it is right.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from evict_profile.errors import StoreError
from evict_profile.fleet.cluster import alive, at_node
from evict_profile.fleet.spec import MACHINE, EngineEnvironment
from evict_profile.fleet.task import recheck
from evict_profile.sweep.machine import cpu_name, gpu_names
from evict_profile.table import (
    COMPOSED,
    DATASHEET,
    CostTable,
    files_of,
    measured,
    version_of,
)

ANOTHER = "not what the table was measured on"
PROBE_S = 60.0

Verdict = Literal["same", "drifted", "unclear", "gone"]


class Watched(Struct, frozen=True):
    """What a recheck said of a table, and on which machine."""

    path: Path
    verdict: Verdict
    words: str
    host: str = ""


class Node(NamedTuple):
    """A node of the cluster, and its devices as fingerprints begin."""

    node: str
    host: str
    offers: dict[str, float]
    devices: tuple[str, ...]

    def has(self, device: str) -> bool:
        """Whether a fingerprint's device is one of this node's."""
        return any(device.startswith(own) for own in self.devices)


def newest_tables(tree: Path) -> dict[Path, CostTable]:
    """The newest measured table of each key; those of a datasheet cannot drift.

    Raises:
        StoreError: none there.
    """
    newest: dict[object, tuple[Path, CostTable]] = {}
    for path in sorted(tree.glob("*/*/*/*.json"), key=lambda p: version_of(p.stem)):
        table = CostTable.load(path)
        if table.origin != COMPOSED and measured(table.provenance).clock != DATASHEET:
            newest[table.key] = (path, table)
    if not newest:
        raise StoreError(
            f"{tree}: holds no measured table; give a tree as 'export' writes it"
        )
    return dict(sorted(newest.values(), key=lambda found: found[0]))


def nodes_of(ray: Any) -> list[Node]:
    """Nodes that answer, with their devices."""
    found = []
    for node in alive(ray):
        at = at_node(node["NodeID"])
        probe = ray.remote(_devices).options(num_cpus=0, scheduling_strategy=at)
        try:
            devices = ray.get(probe.remote(), timeout=PROBE_S)
        except ray.exceptions.RayError:
            continue
        host = node["NodeManagerHostname"]
        found.append(Node(node["NodeID"], host, node["Resources"], devices))
    return found


def watch(
    ray: Any, tree: Path, engines: Iterable[EngineEnvironment], within_s: float
) -> Iterator[Watched]:
    """Recheck the tables of a tree; each as soon as its machines have answered.

    Args:
        engines: environments of runners; the toolkit's own where none is given.
        within_s: that a recheck may take, waiting for its machine included.

    Raises:
        StoreError: no measured table is there.
    """
    tables, nodes = newest_tables(tree), nodes_of(ray)
    known = {engine.runner: engine for engine in engines}
    asked = {}
    for path, table in tables.items():
        spec = measured(table.provenance).sweep
        engine = known.get(spec.runner, EngineEnvironment(spec.runner))
        own = [node for node in nodes if node.has(table.key.gpu)]
        tasks = [_start(ray, path, table, engine, node, within_s) for node in own[:1]]
        asked[path] = (engine, own, tasks)
    for path, (engine, own, tasks) in asked.items():
        yield _answer(ray, path, tables[path], engine, own, tasks, within_s)


def _answer(
    ray: Any,
    path: Path,
    table: CostTable,
    engine: EngineEnvironment,
    nodes: list[Node],
    tasks: list[Any],
    within_s: float,
) -> Watched:
    """The first answer of a machine that is the table's."""
    words, host = f"no node has {table.key.gpu}", ""
    for place, node in enumerate(nodes):
        if place == len(tasks):
            tasks.append(_start(ray, path, table, engine, node, within_s))
        host = node.host
        try:
            status, words = ray.get(tasks[place], timeout=within_s)
        except ray.exceptions.RayError as error:
            ray.cancel(tasks[place], force=True)
            return Watched(path, "unclear", f"no answer: {type(error).__name__}", host)
        if ANOTHER not in words:
            return Watched(path, verdict_of(status, words), words, host)
    return Watched(path, "gone", words, host)


def verdict_of(status: int, words: str) -> Verdict:
    """What the last line of `check --recheck` says."""
    told = words.rpartition(": ")[2]
    if status == 1 and told.startswith("drifted"):
        return "drifted"
    return "same" if status == 0 and told.startswith("same") else "unclear"


def _start(
    ray: Any,
    path: Path,
    table: CostTable,
    engine: EngineEnvironment,
    node: Node,
    within_s: float,
) -> Any:
    """A recheck on a node, alone on its device where nodes say so."""
    on_gpu = table.provenance.fingerprint["device_kind"] == "cuda"
    alone = MACHINE in node.offers and not on_gpu
    task = ray.remote(recheck).options(
        num_cpus=1,
        num_gpus=1 if on_gpu else 0,
        resources={MACHINE: 1} if alone else {},
        scheduling_strategy=at_node(node.node),
        max_retries=0,
    )
    content = (file.read_bytes() for file in files_of(path)[:2])
    return task.remote(*content, engine.python, engine.env, within_s)


def _devices() -> tuple[str, ...]:
    return (cpu_name(), *gpu_names())
