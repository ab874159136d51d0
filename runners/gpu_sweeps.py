"""Sweeps, and tables of them, as steps of a long measurement.

A table is a step of its own: where its gates refuse it, the sweep is neither lost nor
done again, and what needs only the samples does not wait for it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evict_profile.config import SweepSpec
from evict_profile.config.gpu import GpuSpec
from runners.gpu_steps import Command, Step, evict, made

TABLE_S = 60.0
SLOW = GpuSpec("slow", "made up, so that tiny models cost something", 1, 0.1, 1e-3, 1)


def on_paper(sweep: SweepSpec) -> SweepSpec:
    """A sweep priced from a datasheet: times of tiny models do not follow the union."""
    return replace(sweep, runner="roofline")


@dataclass(frozen=True)
class Sweep:
    """A sweep in OUT/run-NAME, of whose table the tree is OUT/NAME-table.

    Attributes:
        name: of the step; that of the table's is NAME-table.
        limit_s: of the sweep, with the opening of the model.
        model: a model's name or file; raises Missing.
        more: options of `evict-profile sweep`.
    """

    out: Path
    name: str
    spec: SweepSpec
    minutes: float
    limit_s: float
    model: Callable[[], str]
    more: Command = ()

    @property
    def steps(self) -> tuple[Step, Step]:
        """To measure, and to make the table."""
        return self.measuring, self.exporting

    @property
    def measuring(self) -> Step:
        """To measure, until the plan is finished or its minutes are over."""
        return Step(self.name, self.limit_s, self.sweep, goes_on=True)

    @property
    def exporting(self) -> Step:
        """To make the table; needs no GPU."""
        return Step(f"{self.name}-table", TABLE_S, self.export, self.table)

    @property
    def table(self) -> str:
        """Where its table is, as a pattern in the output folder."""
        return f"{self.name}-table/*/*/*/1.0.0.json"

    def sweep(self) -> Command:
        """Its samples."""
        words = ["--model", self.model(), "--sweep", str(self._written())]
        words += ["--out", str(self.out / f"run-{self.name}")]
        words += ["--max-minutes", str(self.minutes)]
        return evict("sweep", *words, *self.more)

    def export(self) -> Command:
        """Its table, if the gates let it pass."""
        tables = str(self.out / f"{self.name}-table")
        return evict("export", self.measured(), "--tables", tables)

    def measured(self) -> str:
        """The folder of its samples, when they are all there.

        Raises:
            Missing: they are not.
        """
        made(self.out, f"done/{self.name}.json")
        return str(self.out / f"run-{self.name}")

    def _written(self) -> Path:
        spec = self.spec
        if spec.runner == "roofline":
            # From the folder that steps run in: a sweep goes on wherever that is.
            spec = replace(spec, gpu=write(SLOW, self.out / "slow.yaml").name)
        return write(spec, self.out / f"{self.name}.json")


def write(spec: SweepSpec | GpuSpec, path: Path) -> Path:
    """What a command is to read, as a file."""
    path.write_text(json.dumps(asdict(spec)), encoding="utf-8")
    return path
