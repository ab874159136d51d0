"""A runner opened on a model: fingerprint checked, union test passed, restartable."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.config.sweep import with_engine
from evict_profile.deadline import Deadline
from evict_profile.errors import MeasurementError
from evict_profile.records import (
    Count,
    Facts,
    Positive,
    differences,
    digest,
    replace,
    to_mapping,
)
from evict_profile.runner import Runner, Show
from evict_profile.sweep.checks import (
    ScalingTest,
    UnionTest,
    remedy,
    run_scaling_test,
    run_union_test,
)
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.machine import UNKNOWN_CPU


class _Facts(Struct):
    """A table's key, less the model and its dtype, and what its fit needs."""

    engine: str
    engine_version: str
    device: str
    device_kind: str
    layers: Count
    attention_backend: str
    moe_backend: str
    graph_mode: str
    clock: str
    tp: int
    ep: int


class Opened(Struct, frozen=True):
    fingerprint: _Facts
    capture_sizes: list[Count]
    bandwidth_gbps: Positive
    bytes_per_expert: Positive


class OpenRunner:
    def __init__(
        self,
        spec: SweepSpec,
        model: ModelSpec,
        grid: Grid,
        log: Path,
        python: str | None = None,
        show: Show = lambda words: None,
        deadline: Deadline | None = None,
    ) -> None:
        self.spec = with_engine(spec, f"sweep '{spec.name}'")
        self.grid = grid
        self.model = model if spec.dtype == "auto" else replace(model, dtype=spec.dtype)
        self._python = python
        self._log, self._show, self._deadline = log, show, deadline
        self.runner, self.opened = self._start()
        # Only who sees the device knows in which dtype it is best measured.
        measured_in = self.opened.pop("dtype", self.model.dtype)
        self.model = replace(self.model, dtype=measured_in)
        self.facts: Facts = fingerprint(self.opened.pop("fingerprint"), self.model)

    def __enter__(self) -> "OpenRunner":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.runner.close(kind)

    @property
    def layers(self) -> int:
        return int(self.facts["layers"])

    def restart(self) -> None:
        self.runner.close()
        self.runner, opened = self._start()
        now = fingerprint(opened.pop("fingerprint"), self.model)
        if changed := differences(now, self.facts):
            raise MeasurementError(
                f"the runner came back different ({'; '.join(changed)}); fix that and "
                "run the same command again: all finished rounds are kept"
            )

    def union_test(self) -> UnionTest:
        test = run_union_test(
            self.runner, self.grid, self.model, self.opened, self.layers
        )
        if not test.passed:
            why = test.sentence() + remedy(to_mapping(test), self.facts)
            raise MeasurementError(f"union test failed: {why}")
        return test

    def scaling_test(self) -> ScalingTest | None:
        if not 1 < self.layers < self.model.moe_layers:
            return None
        return run_scaling_test(self.runner, self.grid.anchor, self.layers)

    def _start(self) -> tuple[Runner, dict[str, Any]]:
        runner = Runner(
            self.spec.runner, self._python, self._log, self._show, self._deadline
        )
        try:
            opened = runner.open(self.model, self._options())
            runner.read(Opened, opened)
            _check_named(opened["fingerprint"]["device"])
            _check_parts(opened, self.spec, self.model)
            return runner, opened
        except BaseException as error:
            runner.close(type(error))
            raise

    def _options(self) -> dict[str, Any]:
        grid = make_grid(self.spec, self.model)
        cells, widths = grid.measured, {c.width for c in grid.cells}
        passed_on = ("device", "dtype", "layers", "graphs", "engine", "seed")
        return {
            **{name: getattr(self.spec, name) for name in passed_on},
            "capture_sizes": sorted(widths),
            "max_width": max(widths),
            "max_context": max(c.context for c in cells),
            "max_batch": max(c.batch for c in cells),
            "batches": sorted({c.batch for c in cells}),
            "places": sorted({(c.width, c.context, c.batch) for c in cells}),
        }


def _check_named(device: str) -> None:
    """Tables of machines without a name would have equal keys."""
    if device.startswith(UNKNOWN_CPU):
        raise MeasurementError(
            "the system does not name its CPU, so that its tables would pass for those "
            "of any other; measure where /proc/cpuinfo has a model name or, on Arm, "
            "the numbers of the cores"
        )


def _check_parts(opened: dict[str, Any], spec: SweepSpec, model: ModelSpec) -> None:
    whole, layers = opened.get("whole", False), opened["fingerprint"]["layers"]
    if whole != spec.whole:
        times = "whole forwards" if whole else "MoE layers and the rest apart"
        raise MeasurementError(
            f"the runner '{spec.runner}' times {times}; set 'whole: "
            f"{str(whole).lower()}' in the sweep '{spec.name}'"
        )
    if whole and layers != model.moe_layers:
        raise MeasurementError(
            f"whole forwards hold all {model.moe_layers} MoE layers, and the runner "
            f"opened {layers}; leave --layers away"
        )


def fingerprint(runner_facts: Facts, model: ModelSpec) -> Facts:
    """The runner's facts with the model's name, dtype and the digest of its shape."""
    shape = {k: v for k, v in to_mapping(model).items() if k not in {"name", "source"}}
    return {
        **runner_facts,
        "model": model.name,
        "dtype": model.dtype,
        "model_sha256": digest(shape)[:16],
    }
