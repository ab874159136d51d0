"""Reads a fleet and lists its jobs: models x sweeps x dtypes x runners x devices.

A sweep on a CPU takes the whole machine by default, since sweeps share its bandwidth.
"""

from itertools import product
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from evict_profile.config import ModelSpec, SweepSpec, load_model, load_sweep
from evict_profile.errors import ConfigError
from evict_profile.records import (
    Count,
    NotNegative,
    Positive,
    parse,
    read_mapping,
    replace,
)
from evict_profile.table import slug

AXES = ("model", "sweep", "dtype", "runner", "device")


class Engine(Struct, frozen=True):
    """A runner and the environment that it runs in.

    `python` is the engine's interpreter, "" the toolkit's own; `resource` is a Ray
    resource of nodes that have the environment, "" if all do.
    """

    runner: str
    python: str = ""
    env: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    resource: str = ""


class Device(Struct, frozen=True):
    cpus: NotNegative = 1.0
    gpus: NotNegative = 0.0
    accelerator: str = ""
    resources: dict[str, Positive] | None = None


class Fleet(Struct, frozen=True):
    """A fleet as its YAML states it.

    `exclude` leaves jobs out by axes; `tries` is of each job, of `minutes` at most.
    """

    name: str
    models: tuple[str, ...]
    sweeps: tuple[str, ...]
    runners: dict[str, Engine]
    devices: dict[str, Device]
    dtypes: tuple[Literal["auto", "bfloat16", "float32"], ...] = ("auto",)
    exclude: tuple[dict[str, str], ...] = ()
    tries: Count = 3
    minutes: Positive = 240.0

    def __post_init__(self) -> None:
        axes = (self.models, self.sweeps, self.runners, self.devices, self.dtypes)
        if not all(axes):
            raise ValueError("models, sweeps, runners, devices and dtypes: name each")
        for rule in self.exclude:
            if not rule or not rule.keys() <= set(AXES):
                raise ValueError(f"exclude names some of {', '.join(AXES)}: {rule}")


def load_fleet(path: Path) -> Fleet:
    return parse(Fleet, read_mapping(path), str(path))


class Job(Struct, frozen=True):
    name: str
    model: ModelSpec
    sweep: SweepSpec
    engine: Engine
    device: Device


def jobs_of(fleet: Fleet) -> list[Job]:
    models = {model.name: model for model in map(load_model, fleet.models)}
    sweeps = {sweep.name: sweep for sweep in map(load_sweep, fleet.sweeps)}
    axes = (models, sweeps, fleet.dtypes, fleet.runners, fleet.devices)
    every = [dict(zip(AXES, names, strict=True)) for names in product(*axes)]
    for rule in fleet.exclude:
        if not any(rule.items() <= names.items() for names in every):
            raise ConfigError(
                f"fleet '{fleet.name}': exclude {rule} leaves nothing out; fix its "
                "spelling or remove it"
            )
    kept = [n for n in every if not any(r.items() <= n.items() for r in fleet.exclude)]
    jobs = [_job(fleet, n, models[n["model"]], sweeps[n["sweep"]]) for n in kept]
    if len({job.name for job in jobs}) < len(jobs) or not jobs:
        fault = "two jobs share a name" if jobs else "no job"
        raise ConfigError(
            f"fleet '{fleet.name}': {fault}; fix its axes or its exclusions"
        )
    return jobs


def _job(
    fleet: Fleet, names: dict[str, str], model: ModelSpec, sweep: SweepSpec
) -> Job:
    engine, device = fleet.runners[names["runner"]], fleet.devices[names["device"]]
    script = Path(engine.runner)
    sweep = replace(
        sweep,
        runner=str(script.resolve()) if script.suffix == ".py" else engine.runner,
        whole=engine.whole,
        dtype=sweep.dtype if names["dtype"] == "auto" else names["dtype"],
        device="cuda" if device.gpus else "cpu",
    )
    name = "_".join(slug(names[axis]) for axis in AXES)
    return Job(name, model, sweep, engine, device)
