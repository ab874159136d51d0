"""The larger small world, and the full model driven by its trace: all that needs a GPU.

Trains the recipe `gpu`, sweeps the engine on it, records trees, calibrates on half the
prompts, replays the other half and checks that against the engine's own clock; then it
prices the full model and walks the same trace over its real kernels; and it draws the
front of expert budgets on the world.

    python runners/gpu_world.py --out runs/gpu-world      # on the machine with the GPU
    python runners/gpu_world.py --out runs/dry --recipe tiny    # minutes of a CPU

A call ends within `--limit-s` seconds, skips what is there and goes on where the last
one stopped; runners/gpu_calls.py tells what lies in the folder `--out`, and the exit
codes. `--only` runs the steps named. A step that fails costs itself and those that need
what it makes. Needs evict_profile importable, safetensors and tokenizers, and nothing
of the network. The folder world/ is too large for results.tar.gz.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from evict_profile.config import SweepSpec, load_sweep
from runners.gpu_calls import CALL_S, LEFT_BEHIND, above_zero, go, parser_of
from runners.gpu_steps import Command, Step, evict, made, script
from runners.gpu_sweeps import Sweep, on_paper


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


BUDGETED = "budgets.parquet"
WORLD, TRACES = "world/model.yaml", "traces.parquet"
CALIBRATED = "sweep-table/*/*/*/1.0.1.json"


@dataclass(frozen=True)
class Whole:
    """Commands of all steps, over one output folder."""

    out: Path
    recipe: str
    scale: Scale

    def steps(self) -> list[Step]:
        """The steps in order."""
        return [
            Step("train", CALL_S, self.train, WORLD, goes_on=True),
            *self.swept.steps,
            Step("trace", 150.0, self.trace, TRACES, goes_on=True),
            Step("calibrate", 60.0, self.calibrate, CALIBRATED),
            Step("replay", 120.0, self.replay, "replay.json"),
            *self.priced.steps,
            *map(self.drive, self.scale.batches),
            Step("clock", 180.0, self.clock, "wall_clock.json"),
            Step("budgets", 330.0, self.budgets, BUDGETED, goes_on=True),
            Step("front", 40.0, self.front, "budget.json"),
            Step("overhead", 120.0, self.overhead, "budget_overhead.json"),
            Step("both", 240.0, self.both, "budgets_clock.json"),
        ]

    def train(self) -> Command:
        """The world."""
        words = ["--out", self._at("world"), "--recipe", self.recipe]
        words += ["--minutes", str(self.scale.minutes)]
        return script("runners", "train_small_world.py", *words)

    @property
    def swept(self) -> Sweep:
        """The engine's prices, over the world that was trained."""
        # As steps see it: a sweep goes on wherever the folder is.
        spec = replace(self.scale.sweep, world=LEFT_BEHIND)
        return self._sweep("sweep", spec, lambda: self._made(WORLD))

    @property
    def priced(self) -> Sweep:
        """The full model's prices."""
        model = self.scale.model
        return self._sweep("price", self.scale.model_sweep, lambda: model)

    def trace(self) -> Command:
        """Trees, and times of drafting."""
        world = str(Path(self._made(WORLD)).parent)
        words = ["--out", self._at(TRACES), "--prompts", str(self.scale.prompts)]
        return evict("trace", world, *words, *self.scale.recording, *self._batches)

    def calibrate(self) -> Command:
        """Acceptance, growth and drafting, from half the prompts."""
        page = self._at("calibration.html")
        return evict("calibrate", *self._half("1/2", self.swept.table), "--out", page)

    def replay(self) -> Command:
        """The verdict on the other half."""
        words = ["--out", self._at("replay.html"), "--json", self._at("replay.json")]
        return evict("replay", *self._half("2/2", CALIBRATED), *self._batches, *words)

    def drive(self, batch: int) -> Step:
        """The same trace over the full model's kernels."""
        name = f"drive-{batch}"
        answer = f"trace_driven-{batch}.json"
        return Step(name, 200.0, partial(self.walk, batch, answer), answer)

    def walk(self, batch: int, answer: str) -> Command:
        """It at one batch."""
        words = [self._made(TRACES), "--model", self.scale.model]
        words += ["--batch", str(batch), "--table", self._made(self.priced.table)]
        words += ["--world-table", self._made(CALIBRATED)]
        words += ["--out", self._at(answer)]
        return script("benchmarks", "trace_driven.py", *words)

    def clock(self) -> Command:
        """The replay against the engine's own clock."""
        words = [self._at("world"), *self._half("2/2", CALIBRATED)]
        words += ["--prompts", str(self.scale.prompts), "--workload", "mixed"]
        words += ["--out", self._at("wall_clock.json")]
        return script("benchmarks", "wall_clock.py", *words)

    def budgets(self) -> Command:
        """Replies under expert budgets."""
        world = str(Path(self._made(WORLD)).parent)
        return evict(
            "trace-budgets", world, "--out", self._at(BUDGETED), *self.scale.budgets
        )

    def front(self) -> Command:
        """What they cost in quality, and what they buy."""
        words = ["--table", self._made(CALIBRATED), "--out", self._at("budget.html")]
        words += ["--json", self._at("budget.json")]
        return evict("budget", self._made(BUDGETED), *words)

    def overhead(self) -> Command:
        """What routing within a budget adds to the full model's forward."""
        words = ["--model", self.scale.model, *self.scale.routers]
        words += ["--out", self._at("budget_overhead.json")]
        return script("benchmarks", "budget_overhead.py", *words)

    def both(self) -> Command:
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
        return str(made(self.out, pattern))

    def _half(self, part: str, table: str) -> Command:
        return self._made(TRACES), "--part", part, "--table", self._made(table)

    def _sweep(self, name: str, spec: SweepSpec, model: Callable[[], str]) -> Sweep:
        minutes = self.scale.sweep_minutes
        return Sweep(self.out, name, spec, minutes, 60.0 * minutes + 60.0, model)


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--recipe", choices=sorted(SCALES), default="gpu")
    parser.add_argument("--minutes", type=above_zero, help="of training")
    asked = parser.parse_args(arguments)
    scale = SCALES[asked.recipe]
    if asked.minutes is not None:
        scale = replace(scale, minutes=asked.minutes)
    plan = Whole(asked.out.resolve(), asked.recipe, scale).steps()
    kind = {"script": "gpu_world", "scale": asked.recipe}
    return go(parser, asked, kind, plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
