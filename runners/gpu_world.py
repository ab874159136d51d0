"""The larger small world, and the full model driven by its trace: all that needs a GPU.

Trains the recipe `gpu`, sweeps the engine on it, records trees, calibrates on half the
prompts, replays the other half and checks that against the engine's own clock; then it
prices the full model and walks the same trace over its real kernels; and it draws the
front of expert budgets on the world. Each step runs in
a process of its own under its own limit; one whose result is there is skipped. So the
same command goes on where it stopped, and four calls of under ten minutes do it all:

    python runners/gpu_world.py --out runs/gpu-world      # on the machine with the GPU
    python runners/gpu_world.py --out runs/dry --recipe tiny    # a minute or two of CPU

`--only` runs the steps named. A step that fails costs itself and those that need what
it makes. Needs evict_profile importable, safetensors and tokenizers, and nothing of the
network. In the folder `--out`: results.tar.gz (tables, pages, numbers, logs; neither
weights nor the trace), traces.parquet, world/, summary.json. The exit code is 1 while a
result is missing.
"""

import argparse
import json
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evict_profile.config import SweepSpec, load_sweep
from evict_profile.config.gpu import GpuSpec
from runners.gpu_tables import ROOT, Outcome, Step, evict, run, write_sweep

WHOLE_LIMIT_S = 570.0
LEAST_S = 30.0
"""With less time left not even a step that can go on later is begun."""

LARGEST_RESULT = 8 << 20


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        minutes: of training.
        sweep: of the engine, over the world that is trained.
        sweep_minutes: of it, and of the full model's.
        recording: options of `evict-profile trace`.
        prompts: of each workload.
        batches: that are clocked, and replayed.
        model, model_sweep: the full model, and its sweep.
        budgets: options of `evict-profile trace-budgets`.
        budget: experts a layer that are timed beside truncation.
        routers: options of benchmarks/budget_overhead.py.
    """

    minutes: float
    sweep: SweepSpec
    sweep_minutes: float
    recording: tuple[str, ...]
    prompts: int
    batches: tuple[int, ...]
    model: str
    model_sweep: SweepSpec
    budgets: tuple[str, ...]
    budget: int
    routers: tuple[str, ...]


def served_trees(sweep: SweepSpec) -> SweepSpec:
    """A sweep that reaches whole trees of four requests, at contexts of a trace."""
    grid = replace(sweep.grid, context=(128, 512), max_tokens=256)
    return replace(sweep, name="gpu-world-model", grid=grid)


def few(*budgets: int) -> tuple[str, ...]:
    """Some budgets, as options."""
    return tuple(f"--budget={budget}" for budget in budgets)


SLOW = GpuSpec("slow", "made up, so that tiny models cost something", 1, 0.1, 1e-3, 1)


def on_paper(sweep: SweepSpec) -> SweepSpec:
    """A sweep priced from a datasheet: times of tiny models do not follow the union."""
    return replace(sweep, runner="roofline")


SCALES = {
    "gpu": Scale(
        minutes=7.0,
        sweep=load_sweep("small-world-gpu"),
        sweep_minutes=2.5,
        recording=("--tokens", "48"),
        prompts=16,
        batches=(1, 4),
        model="qwen3-30b-a3b",
        model_sweep=served_trees(load_sweep("demo")),
        budgets=("--prompts", "6", "--tokens", "48", *few(8, 16, 32)),
        budget=16,
        routers=("--layers", "8", "--tokens", "32", "--tokens", "64"),
    ),
    "tiny": Scale(
        minutes=0.2,
        sweep=on_paper(load_sweep("tiny")),
        sweep_minutes=0.3,
        recording=("--tokens", "6", "--depth", "3", "--fan", "4", "--nodes", "12"),
        prompts=10,
        batches=(1,),
        model="tiny",
        model_sweep=on_paper(load_sweep("tiny")),
        budgets=("--prompts", "5", "--tokens", "6", "--depth", "3", *few(4)),
        budget=4,
        routers=("--tokens", "5", "--context", "8"),
    ),
}


class Missing(Exception):
    """A step needs what no step has made yet."""


@dataclass(frozen=True)
class Task:
    """A step of the whole.

    Attributes:
        name: what `--only` calls it.
        limit_s: seconds that it may take.
        result: what it makes, as a pattern in the output folder.
        command: raises Missing.
        goes_on: whether, stopped, it continues next time; then any time will do.
    """

    name: str
    limit_s: float
    result: str
    command: Callable[[], tuple[str, ...]]
    goes_on: bool = False


BUDGETED = "budgets.parquet"
WORLD, TRACES = "world/model.yaml", "traces.parquet"
TABLE, CALIBRATED = "world-table/*/*/*/1.0.0.json", "world-table/*/*/*/1.0.1.json"
MODEL_TABLE = "model-table/*/*/*/1.0.0.json"


@dataclass(frozen=True)
class Whole:
    """Commands of all steps, over one output folder."""

    out: Path
    recipe: str
    scale: Scale

    def tasks(self) -> list[Task]:
        """The steps in order: calls end with training, replay, clock and budgets."""
        sweep_s = 60.0 * self.scale.sweep_minutes + 60.0
        return [
            Task("train", WHOLE_LIMIT_S, WORLD, self.train, goes_on=True),
            Task("sweep", sweep_s, TABLE, self.sweep, goes_on=True),
            Task("trace", 150.0, TRACES, self.trace, goes_on=True),
            Task("calibrate", 60.0, CALIBRATED, self.calibrate),
            Task("replay", 120.0, "replay.json", self.replay),
            Task("price", sweep_s, MODEL_TABLE, self.price, goes_on=True),
            Task("drive", 180.0, "trace_driven.json", self.drive),
            Task("clock", 180.0, "wall_clock.json", self.clock),
            Task("budgets", 330.0, BUDGETED, self.budgets, goes_on=True),
            Task("front", 40.0, "budget.json", self.front),
            Task("overhead", 60.0, "budget_overhead.json", self.overhead),
            Task("both", 240.0, "budgets_clock.json", self.both),
        ]

    def train(self) -> tuple[str, ...]:
        """The world."""
        words = ["--out", self._at("world"), "--recipe", self.recipe]
        words += ["--minutes", str(self.scale.minutes)]
        return script("runners", "train_small_world.py", *words)

    def sweep(self) -> tuple[str, ...]:
        """The engine's prices."""
        spec = replace(self.scale.sweep, world=self._at("world"))
        return self._profile(self._made(WORLD), spec, "world-table")

    def trace(self) -> tuple[str, ...]:
        """Trees, and times of drafting."""
        world = str(Path(self._made(WORLD)).parent)
        words = ["--out", self._at(TRACES), "--prompts", str(self.scale.prompts)]
        return evict("trace", world, *words, *self.scale.recording, *self._batches)

    def calibrate(self) -> tuple[str, ...]:
        """Acceptance, growth and drafting, from half the prompts."""
        page = self._at("calibration.html")
        return evict("calibrate", *self._half("1/2", TABLE), "--out", page)

    def replay(self) -> tuple[str, ...]:
        """The verdict on the other half."""
        words = ["--out", self._at("replay.html"), "--json", self._at("replay.json")]
        return evict("replay", *self._half("2/2", CALIBRATED), *self._batches, *words)

    def price(self) -> tuple[str, ...]:
        """The full model's prices."""
        return self._profile(self.scale.model, self.scale.model_sweep, "model-table")

    def drive(self) -> tuple[str, ...]:
        """The same trace over the full model's kernels."""
        words = [self._made(TRACES), "--model", self.scale.model, *self._batches]
        words += ["--table", self._made(MODEL_TABLE)]
        words += ["--world-table", self._made(CALIBRATED)]
        words += ["--out", self._at("trace_driven.json")]
        return script("benchmarks", "trace_driven.py", *words)

    def clock(self) -> tuple[str, ...]:
        """The replay against the engine's own clock."""
        words = [self._at("world"), *self._half("2/2", CALIBRATED)]
        words += ["--prompts", str(self.scale.prompts), "--workload", "mixed"]
        words += ["--out", self._at("wall_clock.json")]
        return script("benchmarks", "wall_clock.py", *words)

    def budgets(self) -> tuple[str, ...]:
        """Replies under expert budgets."""
        world = str(Path(self._made(WORLD)).parent)
        return evict(
            "trace-budgets", world, "--out", self._at(BUDGETED), *self.scale.budgets
        )

    def front(self) -> tuple[str, ...]:
        """What they cost in quality, and what they buy."""
        words = ["--table", self._made(CALIBRATED), "--out", self._at("budget.html")]
        words += ["--json", self._at("budget.json")]
        return evict("budget", self._made(BUDGETED), *words)

    def overhead(self) -> tuple[str, ...]:
        """What routing within a budget adds to the full model's forward."""
        words = ["--model", self.scale.model, *self.scale.routers]
        words += ["--out", self._at("budget_overhead.json")]
        return script("benchmarks", "budget_overhead.py", *words)

    def both(self) -> tuple[str, ...]:
        """Budgets and truncation, by the engine's clock."""
        words = [self._at("world"), *self._half("2/2", CALIBRATED)]
        words += ["--prompts", str(self.scale.prompts), "--workload", "mixed"]
        for rule in ("mass", "sqrt-path+top-k"):
            words += ["--budget", f"{rule} {self.scale.budget}"]
        words += ["--out", self._at("budgets_clock.json")]
        return script("benchmarks", "budgets_clock.py", *words)

    @property
    def _batches(self) -> tuple[str, ...]:
        return tuple(f"--batch={batch}" for batch in self.scale.batches)

    def _at(self, name: str) -> str:
        return str(self.out / name)

    def _made(self, pattern: str) -> str:
        found = sorted(self.out.glob(pattern))
        if not found:
            raise Missing(pattern)
        return str(found[-1])

    def _half(self, part: str, table: str) -> tuple[str, ...]:
        return self._made(TRACES), "--part", part, "--table", self._made(table)

    def _profile(self, model: str, spec: SweepSpec, name: str) -> tuple[str, ...]:
        if spec.runner == "roofline":
            slow = self.out / "slow.yaml"
            slow.write_text(json.dumps(asdict(SLOW)), encoding="utf-8")
            spec = replace(spec, gpu=str(slow))
        sweep = write_sweep(spec, self.out / f"{name}.json")
        words = ["--model", model, "--sweep", str(sweep)]
        words += ["--out", self._at(f"run-{name}"), "--tables", self._at(name)]
        words += ["--max-minutes", str(self.scale.sweep_minutes)]
        return evict("profile", *words)


def script(folder: str, name: str, *words: str) -> tuple[str, ...]:
    """A call of a script of this checkout."""
    return (sys.executable, str(ROOT / folder / name), *words)


def attempt(task: Task, out: Path, logs: Path, left_s: float) -> Outcome:
    """Run a step, if it is still to be run and can be."""
    if any(out.glob(task.result)):
        return Outcome(task.name, 0, 0.0, "there already")
    if left_s < (LEAST_S if task.goes_on else task.limit_s):
        return Outcome(task.name, 1, 0.0, "no time left: run the same command again")
    try:
        step = Step(task.name, task.command(), min(left_s, task.limit_s))
    except Missing as missing:
        return Outcome(task.name, 1, 0.0, f"needs {missing}, which no step has made")
    return run(step, logs)


def pack(out: Path) -> None:
    """All small files but the weights, in one archive that can be carried away."""
    archive = out / "results.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(out.rglob("*")):
            own = path.relative_to(out)
            small = path.is_file() and path.stat().st_size <= LARGEST_RESULT
            if small and path != archive and own.parts[0] != "world":
                tar.add(path, str(own))


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows; 1 while a result is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", choices=sorted(SCALES), default="gpu")
    parser.add_argument("--minutes", type=float, help="of training")
    parser.add_argument("--only", action="append", help="a step; repeatable")
    asked = parser.parse_args(arguments)
    out, scale = asked.out.resolve(), SCALES[asked.recipe]
    if asked.minutes:
        scale = replace(scale, minutes=asked.minutes)
    plan = Whole(out, asked.recipe, scale).tasks()
    names = [task.name for task in plan]
    if unknown := set(asked.only or ()) - set(names):
        parser.error(f"--only {min(unknown)}: the steps are {', '.join(names)}")
    return work(out, [t for t in plan if not asked.only or t.name in asked.only])


def work(out: Path, plan: Sequence[Task]) -> int:
    """Run the steps of one call; write summary.json and results.tar.gz."""
    out.mkdir(parents=True, exist_ok=True)
    summary = out / "summary.json"
    calls = json.loads(summary.read_text()) if summary.exists() else []
    logs = out / f"logs-{len(calls) + 1}"
    logs.mkdir(exist_ok=True)
    calls.append([])
    begun = time.monotonic()
    for task in plan:
        left_s = WHOLE_LIMIT_S - (time.monotonic() - begun)
        outcome = attempt(task, out, logs, left_s)
        calls[-1].append(asdict(outcome))
        summary.write_text(json.dumps(calls, indent=1), encoding="utf-8")
        print(
            f"{outcome.name}: {outcome.status}, {outcome.seconds} s, {outcome.result}",
            flush=True,
        )
    pack(out)
    missing = [task.name for task in plan if not any(out.glob(task.result))]
    print(f"missing: {', '.join(missing) or 'nothing'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
