"""Starts Ray, which places tasks and repeats those of lost nodes."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from evict_profile.errors import ConfigError
from evict_profile.fleet.spec import Device, Engine

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
MACHINE = "machine"
"""A resource of which each node offers 1: a task that takes 1 has the node alone."""

ENVIRONMENT_SHARE = 0.001
"""Share of an engine's resource that a task takes: many tasks may use one."""


@contextmanager
def ray_at(address: str) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--address needs Ray; in a checkout: pip install '.[fleet]', or run the "
            "lines of commands.txt without it"
        ) from error
    try:
        _check_reachable(address)
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


def _check_reachable(address: str) -> None:
    """Fail within seconds if nothing answers; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in host:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()


def task_options(device: Device, engine: Engine) -> dict[str, Any]:
    default = {} if device.gpus else {MACHINE: 1.0}
    resources = dict(default if device.resources is None else device.resources)
    if engine.resource:
        resources[engine.resource] = ENVIRONMENT_SHARE
    options: dict[str, Any] = {"num_cpus": device.cpus, "num_gpus": device.gpus}
    if device.accelerator:
        options["accelerator_type"] = device.accelerator
    return {**options, "resources": resources}


def task(function: Callable[..., T], *args: object) -> T:
    os.environ.pop("OMP_NUM_THREADS", None)
    return function(*args)
