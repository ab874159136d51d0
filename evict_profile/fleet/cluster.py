"""Ray, and nothing of it elsewhere: nodes, tasks, and what they say.

A shard is a streaming task: each round is an object that leaves the node when the round
is stored there, so that a lost node costs one. Ray places tasks; what is tried again,
and when, is decided by the driver, since Ray would begin anew.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evict_profile.errors import ConfigError
from evict_profile.fleet.folder import Files
from evict_profile.fleet.plan import ShardJob
from evict_profile.fleet.spec import (
    ENVIRONMENT_SHARE,
    MACHINE,
    Device,
    EngineEnvironment,
)
from evict_profile.fleet.task import Event, ShardRequest, measure

KNOCK_S = 10.0
STORE_BYTES = 128 << 20
"""Of the embedded cluster's object store: rounds are some kilobytes each."""


@contextmanager
def connected(address: str | None, resources: Sequence[str] = ()) -> Iterator[Any]:
    """Ray, on the cluster at an address or on one of this machine alone.

    Args:
        resources: of environments, which this machine is taken to have.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "fleets run on Ray, which is not installed; pip install "
            '"evict-profile[fleet]", or run the lines of commands.txt without it'
        ) from error
    if ray.is_initialized():
        yield ray
        return
    _check_answers(address)
    options: dict[str, Any] = {"address": address or "local"}
    if address is None:
        options |= {
            "num_cpus": os.cpu_count(),
            "resources": {MACHINE: 1, **dict.fromkeys(resources, 1)},
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        }
    try:
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except Exception as error:  # Ray raises bare ones too
        ray.shutdown()
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"--address {address}: no Ray cluster answers ({reason}); start one with "
            "'ray start --head', or leave --address away for one of this machine"
            if address
            else f"Ray did not start ({reason}); run the same command again when this "
            "machine is less busy"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str | None) -> None:
    """Knock first: Ray tries for minutes to reach an address where nobody is."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), KNOCK_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--address {address}: no Ray cluster answers ({error}); start one with "
            "'ray start --head', or leave --address away for one of this machine"
        ) from error


def demand(device: Device, engine: EngineEnvironment) -> dict[str, Any]:
    """What a shard asks of a node, as options of a Ray task."""
    own = {} if device.gpus else {MACHINE: 1.0}
    resources = dict(own if device.resources is None else device.resources)
    if engine.resource:
        resources[engine.resource] = ENVIRONMENT_SHARE
    asked: dict[str, Any] = {"num_cpus": device.cpus, "num_gpus": device.gpus}
    if device.accelerator:
        asked["accelerator_type"] = device.accelerator
    return {**asked, "resources": resources}


def fits(asked: dict[str, Any], offered: dict[str, float]) -> bool:
    """Whether a node that offers so much, when it is free, can run a task."""
    wanted = {"CPU": asked["num_cpus"], "GPU": asked["num_gpus"], **asked["resources"]}
    if "accelerator_type" in asked:
        wanted[f"accelerator_type:{asked['accelerator_type']}"] = ENVIRONMENT_SHARE
    return all(offered.get(name, 0.0) >= amount for name, amount in wanted.items())


class RayCluster:
    """Nodes that measure: shards as streaming tasks."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        # Once: Ray stores a function anew each time that it is made a task.
        self._task = ray.remote(_measure)
        self._running: dict[Any, ShardJob] = {}
        self._where: dict[str, tuple[str, int]] = {}

    def start(
        self, job: ShardJob, request: ShardRequest, files: Files, avoid: Sequence[str]
    ) -> None:
        """Begin as soon as a node is free, on none of `avoid` if another will do."""
        options = {**demand(job.pair.device, job.pair.engine), "max_retries": 0}
        others = [node for node in self.homes(job) if node not in avoid]
        if avoid and others:
            options["scheduling_strategy"] = at_node(others[0], soft=True)
        task = self._task.options(num_returns="streaming", **options)
        self._where.pop(job.name, None)
        self._running[task.remote(request, files)] = job

    def events(self, wait_s: float) -> list[tuple[ShardJob, Event]]:
        """What tasks said, after `wait_s` seconds at the latest."""
        every = list(self._running)
        ready, _ = self._ray.wait(every, num_returns=len(every), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(every, num_returns=1, timeout=wait_s)
        return [(self._running[task], self._next(task)) for task in ready]

    def stop(self, job: ShardJob) -> None:
        """End a task whatever it does, and forget it."""
        for task in [
            t for t, running in self._running.items() if running.name == job.name
        ]:
            del self._running[task]
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(task, force=True)
        if job.name in self._where:
            # A worker that is stuck does not hear that it is cancelled.
            node, pid = self._where.pop(job.name)
            kill = self._ray.remote(_kill).options(
                num_cpus=0, scheduling_strategy=at_node(node)
            )
            kill.remote(pid)

    def homes(self, job: ShardJob) -> list[str]:
        """Nodes, free or not, that offer what a shard asks for."""
        asked = demand(job.pair.device, job.pair.engine)
        return [n["NodeID"] for n in self._nodes() if fits(asked, n["Resources"])]

    def offers(self) -> str:
        """What nodes offer, in words."""
        told = []
        for node in self._nodes():
            named = sorted(
                f"{name} {amount:g}"
                for name, amount in node["Resources"].items()
                if not name.startswith(("node:", "memory", "object_store"))
            )
            told.append(f"{node['NodeManagerHostname']}: {', '.join(named)}")
        return f"nodes offer {' | '.join(told) or 'nothing'}"

    def _next(self, task: Any) -> Event:
        """The next thing that a task said, its end, or what ended it."""
        job = self._running[task]
        try:
            event: Event = self._ray.get(next(task))
        except (StopIteration, self._ray.exceptions.RayError) as error:
            del self._running[task]
            return Event("ended", words=_sentence(error))
        if event.kind == "started":
            self._where[job.name] = (event.node, event.pid)
        if event.kind == "ended":
            del self._running[task]
        return event

    def _nodes(self) -> list[dict[str, Any]]:
        return alive(self._ray)


def alive(ray: Any) -> list[dict[str, Any]]:
    """Nodes of the cluster, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def at_node(node: str, soft: bool = False) -> Any:
    """The strategy that runs a task on a node; a soft one elsewhere if it is gone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


def _measure(request: ShardRequest, files: Files) -> Iterator[Event]:
    import ray

    yield from measure(request, files, ray.get_runtime_context().get_node_id())


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _sentence(error: Exception) -> str:
    """What ended a task, in the first line of what Ray says."""
    if isinstance(error, StopIteration):
        return "its task ended without a word"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
    return f"{type(error).__name__}: {told}"[:300]
