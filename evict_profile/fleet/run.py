"""Runs a fleet in a folder that all its machines see; the same command continues it.

FLEET/fleet.json                 the frozen pairs
FLEET/commands.txt               a line a shard, for Slurm or Kubernetes
FLEET/outcomes.json              each pair's table, or why there is none
FLEET/PAIR/{model,sweep}.json    what its sweeps are given
FLEET/PAIR/1-of-1/               the run of a shard
"""

import json
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import fit_run
from evict_profile.fleet.child import run_command
from evict_profile.fleet.cluster import demand, ray_at, task
from evict_profile.fleet.spec import Fleet, Pair
from evict_profile.io import as_json, say, write_json, write_text
from evict_profile.records import to_mapping
from evict_profile.report.cost_page import write_report
from evict_profile.run_folder import RunFolder
from evict_profile.runner import runner_command
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.engine import is_finished
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.merge import merge
from evict_profile.sweep.store import Store
from evict_profile.table import CostTable


class Shard(NamedTuple):
    """One shard of a pair, and the folder of the pair."""

    pair: Pair
    number: int
    home: Path

    @property
    def store(self) -> Store:
        """The run of the shard."""
        return Store(self.home / f"{self.number}-of-{self.pair.shards}")

    @property
    def words(self) -> list[str]:
        """The command that begins or continues it."""
        python = self.pair.engine.python
        options: dict[str, object] = {
            "--model": self.home / "model.json",
            "--sweep": self.home / "sweep.json",
            "--shard": f"{self.number}/{self.pair.shards}",
            "--out": self.store.folder,
        } | ({"--python": python} if python else {})
        return [
            "profile",
            *(str(word) for option in options.items() for word in option),
        ]

    @property
    def line(self) -> str:
        """The same for a shell."""
        env = [f"{name}={value}" for name, value in self.pair.engine.env.items()]
        return shlex.join(["env", *env, "evict-profile", *self.words])

    @property
    def done(self) -> bool:
        """Whether all its samples are there and, where they are due, its clocks."""
        if not is_finished(self.store):
            return False
        return not self.store.header().opened.get("clocks") or bool(self.store.clocks())


class FleetFolder(RunFolder):
    """The folder of a fleet."""

    header_name, noun = "fleet.json", "sweeps"

    def freeze(self, pairs: Sequence[Pair]) -> None:
        """Write what the fleet measures, or check that it is what was frozen."""
        _check_measurable(pairs)
        plan = json.loads(as_json({pair.name: to_mapping(pair) for pair in pairs}))
        if self.exists():
            frozen = self.read_header()
            both = plan.keys() & frozen.keys()
            mine, theirs = (
                {"pairs": ", ".join(p), **dict(_flatten({n: p[n] for n in both}))}
                for p in (plan, frozen)
            )
            self.check_same(mine, theirs)
            return
        for pair in pairs:
            write_json(to_mapping(pair.model), self.folder / pair.name / "model.json")
            write_json(to_mapping(pair.sweep), self.folder / pair.name / "sweep.json")
        lines = [shard.line for pair in pairs for shard in self.shards(pair)]
        write_text("\n".join(lines) + "\n", self.folder / "commands.txt")
        # Last, so that a plan is there whole or not at all.
        self.write_header(plan)

    def shards(self, pair: Pair) -> list[Shard]:
        """All shards of a pair."""
        home = self.folder.resolve() / pair.name
        return [Shard(pair, index, home) for index in range(1, pair.shards + 1)]

    def outcomes(self) -> dict[str, dict[str, str]]:
        """By pair its "table", or "why" there is none."""
        return dict(self.note("outcomes") or {})

    def table(self, pair: Pair) -> Path | None:
        """The table of a pair, if it is published."""
        path = Path(self.outcomes().get(pair.name, {}).get("table", ""))
        return path if path.is_file() else None

    def end(self, pair: Pair, **outcome: str) -> None:
        """Note what became of a pair."""
        self.add_note("outcomes", {**self.outcomes(), pair.name: outcome})

    def publish(self, pair: Pair, tables: Path) -> None:
        """Merge, fit and export a pair whose shards are whole, and write its report."""
        path, page = self.table(pair), self.folder / pair.name / "report.html"
        if path and page.is_file():
            return
        stores = [shard.store for shard in self.shards(pair)]
        whole = stores[0]
        if len(stores) > 1:
            whole = Store(self.folder / pair.name / "merged")
            # Of a merge that was killed, or of shards that were measured again since.
            shutil.rmtree(whole.folder, ignore_errors=True)
            merge(stores, whole)
        fitted = fit_run(whole)
        if not path:
            path = export_table(fitted, tables)[1].resolve()
            self.end(pair, table=str(path))
        write_report(fitted, CostTable.load(path), page)


def _check_measurable(pairs: Sequence[Pair]) -> None:
    """Refuse at planning, not after hours, what no sweep could measure."""
    for pair in pairs:
        try:
            runner_command(pair.sweep.runner, None)
            union_test_width(make_grid(pair.sweep, pair.model), pair.model)
        except ConfigError as error:
            raise ConfigError(f"{pair.name}: {error}; fix it or exclude it") from error


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def run_fleet(
    folder: FleetFolder,
    fleet: Fleet,
    pairs: Sequence[Pair],
    address: str | None,
    tables: Path,
    console: Console,
) -> None:
    """Measure what is not whole, then publish what is."""
    left = [s for pair in pairs for s in folder.shards(pair) if not s.done]
    failed = {}
    ended = on_ray(left, fleet, address) if address else here(left, fleet)
    for count, (shard, why) in enumerate(ended, 1):
        name = f"{shard.pair.name} {shard.number}/{shard.pair.shards}"
        say(console, f"{count} of {len(left)}: {name}: {why or 'measured'}")
        if why:
            failed[shard.pair.name] = why
    for pair in pairs:
        if pair.name in failed:
            folder.end(pair, why=failed[pair.name])
            continue
        try:
            folder.publish(pair, tables)
        except EvictProfileError as error:
            folder.end(pair, why=str(error))


def here(shards: Sequence[Shard], fleet: Fleet) -> Iterator[tuple[Shard, str]]:
    """One after the other on this machine."""
    for shard in shards:
        yield shard, measure(shard, fleet.tries, fleet.minutes)


def on_ray(
    shards: Sequence[Shard], fleet: Fleet, address: str
) -> Iterator[tuple[Shard, str]]:
    """As tasks of a Ray cluster; one whose worker or node is lost runs again."""
    with ray_at(address) as ray:
        remote, running = ray.remote(task), {}
        for shard in shards:
            asked = demand(shard.pair.device, shard.pair.engine)
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
    """Run the sweep of a shard until it is whole; why it is not, or ""."""
    log, why = shard.home / f"{shard.number}.log", ""
    words = [*shard.words, "--max-minutes", f"{minutes:g}"]
    for _ in range(tries):
        status, said = run_command(words, shard.pair.engine.env, log, minutes)
        if shard.done:
            return ""
        why = said.removeprefix("error: ") if status else f"open after {minutes:g} min"
    return f"{why}; tried {tries} times, see {log}"
