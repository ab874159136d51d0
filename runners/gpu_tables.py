"""Everything that needs a GPU, in one call of under ten minutes.

Makes the published tables and the numbers of docs/measurements.md: the full model
under captured graphs, captured against eager, two sweeps against each other, layer
scaling, the nuisance of which experts run, and the time of a decision eager, captured
and fused, each checked against the CPU's. Each step runs in a process of its own
under its own time limit, most wanted first, and a step that fails costs only itself.

    python runners/gpu_tables.py --out gpu-out           # on the machine with the GPU
    python runners/gpu_tables.py --out dry --dry-run     # on a CPU, with a tiny model

Needs evict_profile importable, and nothing of the network. In the folder `--out`:
tables.tar.gz (to unpack over cost_tables/), reports, one log a step, summary.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evict_profile.config import SweepSpec, load_sweep

ROOT = Path(__file__).resolve().parent.parent
WHOLE_LIMIT_S = 570.0


@dataclass(frozen=True)
class Step:
    """One command, and the seconds it may take."""

    name: str
    command: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class Outcome:
    """How a step ended; `result` is the JSON it printed last, if it did."""

    name: str
    status: int
    seconds: float
    result: object


def steps(out: Path, dry: bool) -> Iterator[Step]:
    """The steps, most wanted first."""
    models = ("tiny", "tiny") if dry else ("qwen3-30b-a3b", "olmoe-1b-7b")
    sweeps = ("tiny", "tiny") if dry else ("full", "full")
    minutes = (0.5, 0.5) if dry else (3.5, 1.2)
    yield Step("doctor", evict("doctor"), 60.0)
    yield profile(out, models[0], sweeps[0], minutes[0], "first")
    bench = evict("bench", "--only", "decision", "--out", str(out / "bench.json"))
    yield Step("decision time", bench, 150.0)
    for graphs in (True, False):
        yield graph_sweep(out, models[0], graphs, dry)
    for name in ("repeatability", "nuisance", "layer_scaling"):
        yield benchmark(name, models[0])
    yield profile(out, models[1], sweeps[1], minutes[1], "second")


def evict(*words: str) -> tuple[str, ...]:
    """A call of the toolkit."""
    return (sys.executable, "-m", "evict_profile", *words)


def profile(out: Path, model: str, sweep: str, minutes: float, name: str) -> Step:
    """Sweep, fit, export and report one model."""
    words = ["profile", "--model", model, "--sweep", sweep]
    words += ["--out", str(out / f"run-{name}"), "--tables", str(out / "tables")]
    words += ["--max-minutes", str(minutes)]
    return Step(f"{name} table: {model}", evict(*words), 60.0 * minutes + 60.0)


def graph_sweep(out: Path, model: str, graphs: bool, dry: bool) -> Step:
    """The same few cells, under captured graphs or eager."""
    name = "captured" if graphs else "eager"
    spec = replace(load_sweep("tiny" if dry else "repeat"), name=name, graphs=graphs)
    path = write_sweep(spec, out / f"{name}.json")
    words = ["sweep", "--model", model, "--sweep", str(path)]
    words += ["--out", str(out / f"run-{name}"), "--max-minutes", "0.5"]
    return Step(f"{name} sweep", evict(*words), 80.0)


def write_sweep(spec: SweepSpec, path: Path) -> Path:
    """A sweep as a file that the command can read."""
    path.write_text(json.dumps(asdict(spec)), encoding="utf-8")
    return path


def benchmark(name: str, model: str) -> Step:
    """One script of benchmarks/."""
    script = str(ROOT / "benchmarks" / f"{name}.py")
    command = (sys.executable, script, "--model", model, "--sweep", "repeat")
    return Step(name, command, 90.0)


def run(step: Step, out: Path) -> Outcome:
    """Run a step, its output to a log; a step past its limit is ended."""
    start = time.monotonic()
    log = out / f"{step.name.replace(':', '').replace(' ', '-')}.log"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with log.open("w") as stream:
        try:
            status = subprocess.run(
                step.command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=step.limit_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
    seconds = round(time.monotonic() - start, 1)
    return Outcome(step.name, status, seconds, last_json(log))


def last_json(log: Path) -> object:
    """The last line of a log, if it is JSON."""
    lines = log.read_text(errors="replace").strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return lines[-1]


def captured_over_eager(out: Path) -> dict[str, float]:
    """Eager over captured median latency of every cell that both sweeps have."""
    from evict_profile.stats import median_interval
    from evict_profile.sweep.store import Store, history

    stores = [Store(out / f"run-{name}") for name in ("captured", "eager")]
    if not all(store.exists() for store in stores):
        return {}
    captured, eager = (history(store.frame()) for store in stores)
    return {
        str(cell): round(
            median_interval(eager[cell]).median / median_interval(times).median, 3
        )
        for cell, times in captured.items()
        if times and eager.get(cell)
    }


def main() -> None:
    """Run the steps that the time allows and write summary.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    start, outcomes = time.monotonic(), []
    for step in steps(out, asked.dry_run):
        left = WHOLE_LIMIT_S - (time.monotonic() - start)
        if left < 20.0:
            print(f"{step.name}: no time left", flush=True)
            continue
        outcome = run(replace(step, limit_s=min(left, step.limit_s)), out)
        outcomes.append(outcome)
        print(f"{outcome.name}: {outcome.status}, {outcome.seconds} s", flush=True)
    summary = {
        "dry_run": asked.dry_run,
        "steps": [asdict(outcome) for outcome in outcomes],
        "eager_over_captured": captured_over_eager(out),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    if (out / "tables").is_dir():
        shutil.make_archive(str(out / "tables"), "gztar", out, "tables")
    print(json.dumps(summary)[:6000])


if __name__ == "__main__":
    main()
