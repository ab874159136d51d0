"""What a GPU alone can tell of the engine, the most wanted first, in short calls.

Sweeps three models under captured graphs, twice each with other seeds, so that it is
seen how well a table repeats; tells the error of a profile with dummy tokens, which is
what servers take at start; walks a recorded trace over the kernels of the first model;
then the nuisance of which experts run, weights in the L2 cache, captured against eager,
and layers scaled. Kernels of attention and the time of a decision come first: they are
quick, and what a first call of attention takes says what the rest will.

    python runners/gpu_tables.py --out runs/gpu --traces FILE   # beside the GPU
    python runners/gpu_tables.py --out runs/dry --dry-run       # on a CPU, tiny models

FILE is a trace of worlds/stdlib, which any CPU records beforehand:

    evict-profile trace worlds/stdlib --out FILE --prompts 16 --tokens 48

A call ends within `--limit-s` seconds, skips what is there and goes on where the last
one stopped; runners/gpu_calls.py tells what lies in the folder `--out`, and the exit
codes. `--only` runs the steps named. Needs evict_profile importable, and no network.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from evict_profile.config import SweepSpec, load_sweep
from runners.gpu_calls import go, parser_of
from runners.gpu_steps import ROOT, Command, Missing, Step, evict, made, script
from runners.gpu_sweeps import Sweep, on_paper

WORLD_TABLE = "cost_tables/*/small-world-9.04m/tree-decoding/1.0.1.json"
"""Of the world that is shipped: it tells what a draft level takes."""

# Estimates: none of this was timed on a GPU.
OPENING_S, BENCHMARK_S, DRIVE_S = 120.0, 120.0, 200.0
REPEAT_MINUTES = 0.5


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        models: the most wanted first.
        first_sweep, sweep: of the first model, and of the others.
        first_minutes, minutes: of the first sweep, and of each other.
        repeat: the sweep of a few cells, captured and eager.
        benchmark: model of the scripts in benchmarks/, which want many experts.
        seats: the sweep at whose places the kernels of attention are compared.
        batches: at which the trace is walked, a run each.
    """

    models: tuple[str, ...]
    sweep: SweepSpec
    first_sweep: SweepSpec
    first_minutes: float
    minutes: float
    repeat: SweepSpec
    benchmark: str
    seats: str
    batches: tuple[int, ...]


GPU = Scale(
    models=("qwen3-30b-a3b", "olmoe-1b-7b", "mixtral-8x7b"),
    sweep=load_sweep("lease"),
    first_sweep=load_sweep("lease"),
    first_minutes=3.0,
    minutes=2.4,
    repeat=load_sweep("repeat"),
    benchmark="qwen3-30b-a3b",
    seats="lease",
    batches=(1, 4, 16, 64),
)
DRY = Scale(
    models=("tiny", "tiny-qwen3"),
    sweep=load_sweep("tiny"),
    first_sweep=on_paper(load_sweep("tiny")),
    first_minutes=0.3,
    minutes=0.3,
    repeat=load_sweep("tiny"),
    benchmark="tiny",
    seats="tiny",
    batches=(1, 2),
)


@dataclass(frozen=True)
class Whole:
    """Commands of all steps, over one output folder."""

    out: Path
    scale: Scale
    traces: Path | None

    def steps(self) -> list[Step]:
        """The steps, most wanted first; tables that nothing waits for come last."""
        first, *others = (self.swept(model, seed=0) for model in self.scale.models)
        again, *others_again = (
            self.swept(model, seed=1) for model in self.scale.models
        )
        wanted, rest = self.scale.batches[:2], self.scale.batches[2:]
        return [
            Step("doctor", 60.0, partial(evict, "doctor")),
            self.written("attention_backend", "--sweep", self.scale.seats),
            Step("decision", 150.0, self.decision, "bench.json"),
            *first.steps,
            Step("dummy", 30.0, partial(self.dummy, first), "dummy.json"),
            *(sweep.measuring for sweep in others),
            *again.steps,
            repeated(first, again),
            *map(self.drive, wanted),
            self.printed("nuisance"),
            self.written("l2_residency"),
            *(sweep.measuring for sweep in others_again),
            *map(repeated, others, others_again),
            *self.captured_and_eager(),
            self.printed("layer_scaling"),
            *map(self.drive, rest),
            *(sweep.exporting for sweep in (*others, *others_again)),
        ]

    def swept(self, model: str, seed: int) -> Sweep:
        """A sweep of a model."""
        is_first = model == self.scale.models[0]
        spec = self.scale.first_sweep if is_first else self.scale.sweep
        longest = is_first and seed == 0
        minutes = self.scale.first_minutes if longest else self.scale.minutes
        spec = replace(spec, name=f"{spec.name}-{seed}", seed=seed)
        return self._sweep(f"{model}-{seed}", spec, minutes, model)

    def captured_and_eager(self) -> Iterator[Step]:
        """The same few cells, under captured graphs and eager."""
        captured, eager = (
            self._sweep(
                name,
                replace(self.scale.repeat, name=name, graphs=graphs),
                REPEAT_MINUTES,
                self.scale.models[0],
            )
            for name, graphs in (("captured", True), ("eager", False))
        )
        yield from (captured.measuring, eager.measuring)
        yield compared("eager-over-captured", captured, eager)

    def decision(self) -> Command:
        """The time of a choice: eager, captured, fused; checked against the CPU's."""
        return evict("bench", "--only", "decision", "--out", self._at("bench.json"))

    def dummy(self, sweep: Sweep) -> Command:
        """The error of a profile with dummy tokens, from a sweep's samples."""
        words = (sweep.measured(), "--out", self._at("dummy.json"))
        return script("benchmarks", "sglang_start_up.py", *words)

    def drive(self, batch: int) -> Step:
        """The trace over the first model's kernels."""
        name = f"trace_driven-{batch}"
        command = partial(self.walk, batch, f"{name}.json")
        return Step(name, DRIVE_S, command, f"{name}.json")

    def walk(self, batch: int, answer: str) -> Command:
        """It at one batch; the table is of either sweep."""
        model = self.scale.models[0]
        table = str(made(self.out, f"{model}-[01]-table/*/*/*/1.0.0.json"))
        if not self.traces:
            raise Missing(
                "--traces FILE, a trace recorded beforehand on any CPU: evict-profile "
                "trace worlds/stdlib --out FILE --prompts 16 --tokens 48"
            )
        world = next(iter(sorted(ROOT.glob(WORLD_TABLE))))
        words = [str(self.traces), "--model", model, "--batch", str(batch)]
        words += ["--table", table, "--world-table", str(world)]
        return script(
            "benchmarks", "trace_driven.py", *words, "--out", self._at(answer)
        )

    def printed(self, name: str) -> Step:
        """One script of benchmarks/ that prints what it found."""
        return Step(name, BENCHMARK_S, partial(self._benchmark, name))

    def written(self, name: str, *words: str) -> Step:
        """One that writes it."""
        answer = f"{name}.json"
        command = partial(self._benchmark, name, *words, "--out", self._at(answer))
        return Step(name, BENCHMARK_S, command, answer)

    def _benchmark(self, name: str, *words: str) -> Command:
        own = ("--model", self.scale.benchmark, *words)
        return script("benchmarks", f"{name}.py", *own)

    def _sweep(self, name: str, spec: SweepSpec, minutes: float, model: str) -> Sweep:
        limit_s = 60.0 * minutes + OPENING_S
        return Sweep(self.out, name, spec, minutes, limit_s, lambda: model)

    def _at(self, name: str) -> str:
        return str(self.out / name)


def repeated(first: Sweep, again: Sweep) -> Step:
    """How far two sweeps of one plan are apart."""
    return compared(f"{first.name.removesuffix('-0')}-repeat", first, again)


def compared(name: str, first: Sweep, second: Sweep) -> Step:
    """The second of two sweeps over the first, cell by cell."""

    def command() -> Command:
        runs = (first.measured(), second.measured())
        return script("benchmarks", "between_runs.py", *runs)

    return Step(name, 30.0, command)


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--traces", type=Path, help="trace of worlds/stdlib to walk")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, on a CPU")
    asked = parser.parse_args(arguments)
    traces = asked.traces.resolve() if asked.traces else None
    if traces and not traces.is_file():
        parser.error(f"--traces {asked.traces}: is no file; record one beforehand")
    scale = DRY if asked.dry_run else GPU
    kind = {"script": "gpu_tables", "scale": "dry" if asked.dry_run else "gpu"}
    return go(parser, asked, kind, Whole(asked.out.resolve(), scale, traces).steps())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
