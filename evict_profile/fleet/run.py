"""Runs a fleet in a folder that all its machines share, and resumes it.

FLEET/fleet.json                the plan: all jobs
FLEET/commands.txt              one command per job, for Slurm or Kubernetes
FLEET/outcomes.json             the table of each job, or why there is none
FLEET/JOB/{model,sweep}.json    the inputs of the job's sweeps
FLEET/JOB/run/                  the run of the job
FLEET/JOB/tables/               the table that its sweep made
"""

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from evict_profile.cells import with_latency
from evict_profile.config.sweep import with_engine
from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.fit.export import export_copy, export_table
from evict_profile.fit.fitted import fit_run, fitted_of_table
from evict_profile.fleet.child import run_command
from evict_profile.fleet.cluster import ray_at, task, task_options
from evict_profile.fleet.spec import Fleet, Job
from evict_profile.io import as_json, say, write_json, write_text
from evict_profile.records import to_mapping
from evict_profile.report.cost_page import write_report
from evict_profile.run_folder import RunFolder
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.engine import is_finished
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.store import Store
from evict_profile.table.search import tables_below

USER_ERROR = 2
"""The exit code of a command that ends with one sentence."""


class JobRun(NamedTuple):
    job: Job
    home: Path

    @property
    def store(self) -> Store:
        return Store(self.home / "run")

    @property
    def tables(self) -> Path:
        """What the sweep exports by itself, until the fleet publishes it."""
        return self.home / "tables"

    @property
    def argv(self) -> list[str]:
        python = self.job.engine.python
        options: dict[str, object] = {
            "--plan": self.home / "sweep.json",
            "--out": self.store.folder,
            "--tables": self.tables,
        } | ({"--python": python} if python else {})
        given = (str(word) for option in options.items() for word in option)
        return ["sweep", str(self.home / "model.json"), *given]

    @property
    def shell_command(self) -> str:
        env = [f"{name}={value}" for name, value in self.job.engine.env.items()]
        return shlex.join(["env", *env, "evict-profile", *self.argv])

    @property
    def done(self) -> bool:
        if not is_finished(self.store):
            return False
        return not self.store.header().opened.get("clocks") or bool(self.store.clocks())


class FleetFolder(RunFolder):
    header_name, noun = "fleet.json", "sweeps"

    def write_plan(self, jobs: Sequence[Job]) -> None:
        _check_measurable(jobs)
        plan = json.loads(as_json({job.name: to_mapping(job) for job in jobs}))
        if self.exists():
            frozen = self.read_header()
            both = plan.keys() & frozen.keys()
            mine, theirs = (
                {"jobs": ", ".join(p), **dict(_flatten({n: p[n] for n in both}))}
                for p in (plan, frozen)
            )
            self.check_same(mine, theirs)
            return
        for job in jobs:
            write_json(to_mapping(job.model), self.folder / job.name / "model.json")
            write_json(to_mapping(job.sweep), self.folder / job.name / "sweep.json")
        lines = [self.run(job).shell_command for job in jobs]
        write_text("\n".join(lines) + "\n", self.folder / "commands.txt")
        # The header comes last: without it, the plan is written again.
        self.write_header(plan)

    def run(self, job: Job) -> JobRun:
        return JobRun(job, self.folder.resolve() / job.name)

    def outcomes(self) -> dict[str, dict[str, str]]:
        """Of each job its "table", or "why" there is none."""
        return dict(self.note("outcomes") or {})

    def table(self, job: Job) -> Path | None:
        path = Path(self.outcomes().get(job.name, {}).get("table", ""))
        return path if path.is_file() else None

    def record_outcome(self, job: Job, **outcome: str) -> None:
        self.add_note("outcomes", {**self.outcomes(), job.name: outcome})

    def publish(self, job: Job, tables: Path) -> None:
        path, page = self.table(job), self.folder / job.name / "report.html"
        if path and page.is_file():
            return
        if not path:
            path = self._export(self.run(job), tables).resolve()
            self.record_outcome(job, table=str(path))
        write_report(*fitted_of_table(path), page)

    def _export(self, run: JobRun, tables: Path) -> Path:
        """Publish what the sweep exported; fit the run where there is no such table, or
        where samples or clocks came later."""
        timed, clocks = len(with_latency(run.store.frame())), run.store.clocks()
        for table in filter(None, (found.table for found in tables_below(run.tables))):
            is_whole = table.provenance.samples == timed
            if is_whole and bool(table.drafting) == bool(clocks):
                return export_copy(table, tables)[1]
        return export_table(fit_run(run.store), tables)[1]


def _check_measurable(jobs: Sequence[Job]) -> None:
    for job in jobs:
        try:
            with_engine(job.sweep, f"sweep '{job.sweep.name}'")
            union_test_width(make_grid(job.sweep, job.model), job.model)
        except ConfigError as error:
            raise ConfigError(f"{job.name}: {error}; fix it or exclude it") from error


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def run_fleet(
    folder: FleetFolder,
    fleet: Fleet,
    jobs: Sequence[Job],
    address: str | None,
    tables: Path,
    console: Console,
) -> None:
    left = [run for run in map(folder.run, jobs) if not run.done]
    failed = {}
    ended = on_ray(left, fleet, address) if address else here(left, fleet)
    for count, (run, why) in enumerate(ended, 1):
        say(console, f"{count} of {len(left)}: {run.job.name}: {why or 'measured'}")
        if why:
            failed[run.job.name] = why
    for job in jobs:
        if job.name in failed:
            folder.record_outcome(job, why=failed[job.name])
            continue
        try:
            folder.publish(job, tables)
        except EvictProfileError as error:
            folder.record_outcome(job, why=str(error))


def here(runs: Sequence[JobRun], fleet: Fleet) -> Iterator[tuple[JobRun, str]]:
    for run in runs:
        yield run, measure(run, fleet.tries, fleet.minutes)


def on_ray(
    runs: Sequence[JobRun], fleet: Fleet, address: str
) -> Iterator[tuple[JobRun, str]]:
    with ray_at(address) as ray:
        remote, running = ray.remote(task), {}
        for run in runs:
            options = task_options(run.job.device, run.job.engine)
            placed = remote.options(**options, max_retries=fleet.tries)
            running[placed.remote(measure, run, fleet.tries, fleet.minutes)] = run
        while running:
            [done], _ = ray.wait(list(running))
            try:
                why = ray.get(done)
            except ray.exceptions.RayError as error:
                why = str(error).splitlines()[0]
            yield running.pop(done), why


def measure(run: JobRun, tries: int, minutes: float) -> str:
    """Run the sweep of a job until it is done; the reason if it is not, or ""."""
    log, why = run.home / "run.log", ""
    words = [*run.argv, "--max-minutes", f"{minutes:g}"]
    for _ in range(tries):
        ends = time.monotonic() + 60.0 * minutes
        status, line = run_command(words, run.job.engine.env, log, minutes)
        if run.done:
            return ""
        # What a sweep that was stopped has is too little for its own fit.
        is_open = not status or (status == USER_ERROR and time.monotonic() >= ends)
        why = f"open after {minutes:g} min" if is_open else line.removeprefix("error: ")
    return f"{why}; tried {tries} times, see {log}"
