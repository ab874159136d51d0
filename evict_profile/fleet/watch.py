"""Do the tables of a tree still hold, each on the machines that it names?

A table names its device. Nodes are asked what they have, a table is rechecked on one
that has it, and where the engine there is another, on the next. What no node has is
gone: the table is not wrong, but nobody can say that it is right.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    tables_below,
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
    """The newest measured table of each key; those of a datasheet cannot drift."""
    newest: dict[object, tuple[Path, CostTable]] = {}
    read = [(found.path, found.table) for found in tables_below(tree) if found.table]
    for path, table in sorted(read, key=lambda each: version_of(each[1].version)):
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
    ray: Any,
    tables: Mapping[Path, CostTable],
    engines: Iterable[EngineEnvironment],
    within_s: float,
) -> Iterator[Watched]:
    """Recheck tables; each as soon as its machines have answered.

    Args:
        engines: environments of runners; the toolkit's own where none is given.
        within_s: that a recheck may take, waiting for its machine included.
    """
    nodes = nodes_of(ray)
    known = {engine.runner: engine for engine in engines}
    asked = []
    for path, table in tables.items():
        runner = measured(table.provenance).sweep.runner
        engine = known.get(runner, EngineEnvironment(runner))
        own = [node for node in nodes if node.has(table.key.gpu)]
        asked.append(TableRecheck(ray, path, table, engine, own, within_s))
    for each in asked:
        each.start()
    for each in asked:
        yield each.answer()


@dataclass
class TableRecheck:
    """A table to recheck on the first of some nodes whose machine is the table's."""

    ray: Any
    path: Path
    table: CostTable
    engine: EngineEnvironment
    nodes: list[Node]
    within_s: float
    _task: Any = None

    def start(self) -> None:
        """Recheck on the first node, alone on its device where nodes say so."""
        if not self.nodes:
            return
        node = self.nodes[0]
        on_gpu = self.table.provenance.fingerprint["device_kind"] == "cuda"
        task = self.ray.remote(recheck).options(
            num_cpus=1,
            num_gpus=1 if on_gpu else 0,
            resources={MACHINE: 1} if MACHINE in node.offers and not on_gpu else {},
            scheduling_strategy=at_node(node.node),
            max_retries=0,
        )
        content = (file.read_bytes() for file in files_of(self.path))
        engine = self.engine
        self._task = task.remote(*content, engine.python, engine.env, self.within_s)

    def answer(self) -> Watched:
        """What the first machine says that is the table's."""
        words, host = f"no node has {self.table.key.gpu}", ""
        while self.nodes:
            host = self.nodes.pop(0).host
            try:
                status, words = self.ray.get(self._task, timeout=self.within_s)
            except self.ray.exceptions.RayError as error:
                self.ray.cancel(self._task, force=True)
                words = f"no answer: {type(error).__name__}"
                return Watched(self.path, "unclear", words, host)
            if ANOTHER not in words:
                return Watched(self.path, verdict_of(status, words), words, host)
            self.start()
        return Watched(self.path, "gone", words, host)


def verdict_of(status: int, words: str) -> Verdict:
    """What the last line of `check --recheck` says."""
    told = words.rpartition(": ")[2]
    if status == 1 and told.startswith("drifted"):
        return "drifted"
    return "same" if status == 0 and told.startswith("same") else "unclear"


def _devices() -> tuple[str, ...]:
    return (cpu_name(), *gpu_names())
