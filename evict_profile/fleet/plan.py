"""The frozen plan of a fleet: which cells, of which model, by which runner, on what.

Frozen before anything is measured, so that tables of one fleet are of one plan. What
does not change what is measured, the budget above all, is no part of it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from evict_profile import __version__
from evict_profile.cells import Cell
from evict_profile.config import ModelSpec, SweepSpec, load_model, load_sweep
from evict_profile.errors import ConfigError
from evict_profile.fleet.spec import AXES, Device, EngineEnvironment, FleetSpec
from evict_profile.io import data_root
from evict_profile.physics import layer_work, non_moe_work
from evict_profile.records import differences, digest, replace, to_mapping
from evict_profile.runner import runner_command
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.table import slug

OPEN_S, SAMPLE_S, PASSES = 5.0, 0.04, 1.5
"""Of the estimate: to open a runner, to prepare a sample, and how often its bytes are
read, the reference work included. Of sweeps on this project's CPU."""

CPU_LAYERS = 2
"""That a sweep measures on a CPU where it is not told otherwise."""


class FleetPair(Struct, frozen=True):
    """One model measured by one sweep: what becomes one table.

    Attributes:
        names: of its place on each axis of the fleet.
        cells_sha256: digest of the cells that its sweep begins with.
        runner_sha256: digest of the runner's code.
        minutes: estimated device-minutes, at the fewest and the most samples.
    """

    names: dict[str, str]
    model: ModelSpec
    sweep: SweepSpec
    engine: EngineEnvironment
    device: Device
    shards: int
    cells: int
    cells_sha256: str
    runner_sha256: str
    minutes: tuple[float, float]

    @property
    def name(self) -> str:
        """Names its folder."""
        return "_".join(slug(self.names[axis]) for axis in AXES)

    @property
    def jobs(self) -> tuple["ShardJob", ...]:
        """One a shard."""
        count = self.shards
        return tuple(
            ShardJob(self, f"{index}/{count}") for index in range(1, count + 1)
        )


class ShardJob(NamedTuple):
    """One shard of a pair: what one task measures."""

    pair: FleetPair
    shard: str

    @property
    def name(self) -> str:
        """The pair's, with the shard where there are several."""
        own = self.pair.name
        return own if self.pair.shards == 1 else f"{own} {self.shard}"


class FleetPlan(Struct, frozen=True):
    """A frozen plan."""

    fleet: str
    evict_profile: str
    pairs: tuple[FleetPair, ...]

    @property
    def sha256(self) -> str:
        """Digest of all that it holds."""
        return digest(to_mapping(self))

    @property
    def minutes(self) -> tuple[float, float]:
        """Estimated device-minutes of all pairs."""
        low, high = zip(*(pair.minutes for pair in self.pairs), strict=True)
        return sum(low), sum(high)

    def changes(self, stored: "FleetPlan") -> list[str]:
        """One phrase for each thing that this plan says otherwise than a stored one."""
        return differences(_by_name(self), _by_name(stored))


def make_plan(spec: FleetSpec) -> FleetPlan:
    """Freeze a fleet."""
    models, sweeps = _named(spec.models, load_model), _named(spec.sweeps, load_sweep)
    axes = (models, sweeps, spec.dtypes, spec.runners, spec.devices)
    every = [dict(zip(AXES, names, strict=True)) for names in product(*axes)]
    for rule in spec.exclude:
        if not any(rule.items() <= names.items() for names in every):
            raise ConfigError(
                f"fleet '{spec.name}': exclude {rule} leaves nothing out; mend its "
                "spelling or remove it"
            )
    kept = [n for n in every if not any(r.items() <= n.items() for r in spec.exclude)]
    pairs = tuple(_pair(n, models[n["model"]], sweeps[n["sweep"]], spec) for n in kept)
    if len({pair.name for pair in pairs}) < len(pairs) or not pairs:
        raise ConfigError(
            f"fleet '{spec.name}': {'two pairs share a name' if pairs else 'no pair'}; "
            "mend its axes or its exclusions"
        )
    return FleetPlan(spec.name, __version__, pairs)


def _named(names: tuple[str, ...], load: Any) -> dict[str, Any]:
    loaded = [load(name) for name in names]
    return {each.name: each for each in loaded}


def _pair(
    names: dict[str, str], model: ModelSpec, sweep: SweepSpec, spec: FleetSpec
) -> FleetPair:
    device, engine = spec.devices[names["device"]], spec.runners[names["runner"]]
    if engine.runner.endswith(".py"):
        engine = replace(engine, runner=str(Path(engine.runner).resolve()))
    sweep = replace(
        sweep,
        runner=engine.runner,
        whole=engine.whole,
        dtype=sweep.dtype if names["dtype"] == "auto" else names["dtype"],
        device="cuda" if device.gpus else "cpu",
    )
    try:
        return make_pair(names, model, sweep, engine, device, spec.shards)
    except ConfigError as error:
        raise ConfigError(
            f"fleet '{spec.name}': {names}: {error}; mend it or exclude that"
        ) from error


def make_pair(
    names: dict[str, str],
    model: ModelSpec,
    sweep: SweepSpec,
    engine: EngineEnvironment,
    device: Device,
    shards: int,
) -> FleetPair:
    """A pair with what is known of it before it is measured."""
    grid = make_grid(sweep, model)
    union_test_width(grid, model)
    cells = [to_mapping(cell) for cell in grid.measured]
    return FleetPair(
        names,
        model,
        sweep,
        engine,
        device,
        shards,
        len(cells),
        digest({"cells": cells}),
        runner_sha256(engine.runner),
        estimated_minutes(sweep, model, grid, device),
    )


def runner_sha256(runner: str) -> str:
    """Digest of a runner's code."""
    runner_command(runner, None)
    own = Path(runner)
    folder = data_root() / "runners" / runner
    files = [own] if own.suffix == ".py" else sorted(folder.glob("*.py"))
    found = hashlib.sha256()
    for path in files:
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def estimated_minutes(
    sweep: SweepSpec, model: ModelSpec, grid: Grid, device: Device
) -> tuple[float, float]:
    """Device-minutes at the fewest and at the most samples, roughly.

    A forward takes as long as reading its weights; the sweep's own stop rule decides
    how often it is timed.
    """
    layers = sweep.layers
    if layers == "auto":
        layers = model.moe_layers if device.gpus else CPU_LAYERS

    def seconds(cell: Cell) -> float:
        if cell.part == "non_moe":
            moved = non_moe_work(model, cell).bytes_moved
        else:
            union = cell.union or model.uniform_union(cell.tokens)
            moved = layers * layer_work(model, cell, union).bytes_moved
        return SAMPLE_S + PASSES * moved / device.gbps / 1e9

    once = sum(map(seconds, grid.measured))
    opening = OPEN_S * sweep.openings
    low, high = (
        (opening + count * once) / 60.0
        for count in (sweep.stop.min_samples, sweep.stop.max_samples)
    )
    return round(low, 2), round(high, 2)


def _by_name(plan: FleetPlan) -> dict[str, Any]:
    """All leaves of a plan, by paths that name the pair; estimates left out."""
    pairs = {pair.name: to_mapping(replace(pair, minutes=())) for pair in plan.pairs}
    return dict(_leaves({**to_mapping(plan), "pairs": pairs}))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
