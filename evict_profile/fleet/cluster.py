"""What a fleet needs of Ray, which places tasks and runs those of lost nodes again."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from evict_profile.errors import ConfigError
from evict_profile.fleet.spec import Device, Engine

T = TypeVar("T")

KNOCK_S = 10.0
MACHINE = "machine"
"""The resource of which a node offers 1, for whoever needs it to itself."""

ENVIRONMENT_SHARE = 0.001
"""Of the resource that stands for an engine's environment, which many tasks may use."""


@contextmanager
def ray_at(address: str) -> Iterator[Any]:
    """Ray, on the cluster at an address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--address needs Ray; in a checkout: pip install '.[fleet]', or run the "
            "lines of commands.txt without it"
        ) from error
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # Ray raises bare ones too
        ray.shutdown()
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"--address {address}: no Ray cluster answers ({reason}); start one with "
            "'ray start --head', or leave --address out"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Where nobody answers, Ray tries for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in host:
        socket.create_connection((host, int(port)), KNOCK_S).close()


def demand(device: Device, engine: Engine) -> dict[str, Any]:
    """What a sweep asks of a node, as options of a Ray task."""
    own = {} if device.gpus else {MACHINE: 1.0}
    resources = dict(own if device.resources is None else device.resources)
    if engine.resource:
        resources[engine.resource] = ENVIRONMENT_SHARE
    asked: dict[str, Any] = {"num_cpus": device.cpus, "num_gpus": device.gpus}
    if device.accelerator:
        asked["accelerator_type"] = device.accelerator
    return {**asked, "resources": resources}


def task(function: Callable[..., T], *args: object) -> T:
    """What a node runs. Ray limits threads to `num_cpus`, which would be measured."""
    os.environ.pop("OMP_NUM_THREADS", None)
    return function(*args)
