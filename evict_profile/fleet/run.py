"""Runs a fleet in a folder that all its machines share, and resumes it.

FLEET/fleet.json                the plan: all jobs
FLEET/commands.txt              one command per shard, for Slurm or Kubernetes
FLEET/outcomes.json             the table of each job, or why there is none
FLEET/JOB/{model,sweep}.json    the inputs of the job's sweeps
FLEET/JOB/1-of-1/               the run of a shard
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import fit_run
from evict_profile.fleet.child import run_command
from evict_profile.fleet.cluster import ray_at, task, task_options
from evict_profile.fleet.spec import Fleet, Job
from evict_profile.io import as_json, say, write_json, write_text
from evict_profile.records import to_mapping
from evict_profile.report.cost_page import write_report
from evict_profile.run_folder import RunFolder
from evict_profile.runner import runner_command
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.engine import is_finished
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.store import Store
from evict_profile.table import CostTable


class Shard(NamedTuple):
    job: Job
    number: int
    home: Path

    @property
    def store(self) -> Store:
        return Store(self.home / f"{self.number}-of-{self.job.shards}")

    @property
    def argv(self) -> list[str]:
        python = self.job.engine.python
        options: dict[str, object] = {
            "--plan": self.home / "sweep.json",
            "--shard": f"{self.number}/{self.job.shards}",
            "--out": self.store.folder,
        } | ({"--python": python} if python else {})
        given = (str(word) for option in options.items() for word in option)
        return ["sweep", str(self.home / "model.json"), *given]

    @property
    def shell_command(self) -> str:
        env = [f"{name}={value}" for name, value in self.job.engine.env.items()]
        return shlex.join(["env", *env, "evict-profile", *self.argv])

    @property
    def done(self) -> bool:
        """Whether all samples are stored and, if the runner drafts, all clocks."""
        if not is_finished(self.store):
            return False
        return not self.store.header().opened.get("clocks") or bool(self.store.clocks())


class FleetFolder(RunFolder):
    header_name, noun = "fleet.json", "sweeps"

    def write_plan(self, jobs: Sequence[Job]) -> None:
        """Write the jobs to the folder, or check that they equal the jobs in it."""
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
        lines = [shard.shell_command for job in jobs for shard in self.shards(job)]
        write_text("\n".join(lines) + "\n", self.folder / "commands.txt")
        # The header comes last: without it, the plan is written again.
        self.write_header(plan)

    def shards(self, job: Job) -> list[Shard]:
        home = self.folder.resolve() / job.name
        return [Shard(job, index, home) for index in range(1, job.shards + 1)]

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
        fitted = fit_run(*(shard.store for shard in self.shards(job)))
        if not path:
            path = export_table(fitted, tables)[1].resolve()
            self.record_outcome(job, table=str(path))
        write_report(fitted, CostTable.load(path), page)


def _check_measurable(jobs: Sequence[Job]) -> None:
    for job in jobs:
        try:
            runner_command(job.sweep.runner, None)
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
    left = [s for job in jobs for s in folder.shards(job) if not s.done]
    failed = {}
    ended = on_ray(left, fleet, address) if address else here(left, fleet)
    for count, (shard, why) in enumerate(ended, 1):
        name = f"{shard.job.name} {shard.number}/{shard.job.shards}"
        say(console, f"{count} of {len(left)}: {name}: {why or 'measured'}")
        if why:
            failed[shard.job.name] = why
    for job in jobs:
        if job.name in failed:
            folder.record_outcome(job, why=failed[job.name])
            continue
        try:
            folder.publish(job, tables)
        except EvictProfileError as error:
            folder.record_outcome(job, why=str(error))


def here(shards: Sequence[Shard], fleet: Fleet) -> Iterator[tuple[Shard, str]]:
    for shard in shards:
        yield shard, measure(shard, fleet.tries, fleet.minutes)


def on_ray(
    shards: Sequence[Shard], fleet: Fleet, address: str
) -> Iterator[tuple[Shard, str]]:
    """Measure shards as Ray tasks; a task whose worker or node is lost runs again."""
    with ray_at(address) as ray:
        remote, running = ray.remote(task), {}
        for shard in shards:
            asked = task_options(shard.job.device, shard.job.engine)
            placed = remote.options(**asked, max_retries=fleet.tries)
            running[placed.remote(measure, shard, fleet.tries, fleet.minutes)] = shard
        while running:
            [done], _ = ray.wait(list(running))
            try:
                why = ray.get(done)
            except ray.exceptions.RayError as error:
                why = str(error).splitlines()[0]
            yield running.pop(done), why


def measure(shard: Shard, tries: int, minutes: float) -> str:
    """Run the sweep of a shard until it is done; the reason if it is not, or ""."""
    log, why = shard.home / f"{shard.number}.log", ""
    words = [*shard.argv, "--max-minutes", f"{minutes:g}"]
    for _ in range(tries):
        status, said = run_command(words, shard.job.engine.env, log, minutes)
        if shard.done:
            return ""
        why = said.removeprefix("error: ") if status else f"open after {minutes:g} min"
    return f"{why}; tried {tries} times, see {log}"
