"""A larger small world on a GPU, and the full model driven by its trace.

    python runners/gpu_world.py --out runs/gpu-world            # beside the GPU
    python runners/gpu_world.py --out runs/dry --dry-run        # minutes of a CPU

Trains the recipe `gpu`, sweeps the engine on it, records trees, calibrates on half the
prompts, replays the other half and checks that against the engine's own clock; prices
the full model and walks the same trace over its kernels; draws the front of expert
budgets. Needs safetensors and tokenizers, and no network. `--minutes` is of training.

runners/gpu_session.py tells what lies in the folder `--out`. The folder OUT/world is
too large for the archive: where it is lost, `train` begins anew.
"""

import sys
from collections.abc import Iterator, Sequence

from evict_profile.config import SweepSpec, load_sweep
from evict_profile.records import replace
from runners.gpu_session import (
    CALL_S,
    WEIGHTS,
    Step,
    on_paper,
    parser_of,
    run_script,
    sweep_steps,
    table_of,
)

CALIBRATED = table_of("world", "1.0.1")


def steps_of(dry: bool, minutes: float) -> Iterator[Step]:
    """The steps in order; limits are estimates, since none was timed on a GPU."""
    if dry:
        sweep = model_sweep = on_paper(load_sweep("tiny"))
        model, recipe, sweep_minutes, prompts, batches = "tiny", "tiny", 0.3, 10, [1]
        recording = "--tokens 6 --depth 3 --topk 4 --nodes 12"
        budgets = "--prompts 5 --tokens 6 --depth 3 --budget 4"
        routers = "--tokens 5 --context 8"
    else:
        sweep, model_sweep = load_sweep("small-world-gpu"), served_trees()
        model, recipe, sweep_minutes, prompts = "qwen3-30b-a3b", "gpu", 2.5, 16
        batches = [1, 4]
        recording = "--tokens 48"
        budgets = "--prompts 6 --tokens 48 --budget 8 --budget 16 --budget 32"
        routers = "--layers 8 --tokens 32 --tokens 64"
    # Relative to OUT, so that the sweep goes on wherever that folder lies.
    sweep = replace(sweep, world=WEIGHTS)
    every_batch = " ".join(f"--batch {batch}" for batch in batches)
    judged = f"traces.parquet --part 2/2 --table {CALIBRATED}"
    yield Step(
        "train",
        CALL_S,
        f"runners/train_small_world/__main__.py --out {WEIGHTS} --recipe {recipe} "
        f"--minutes {minutes}",
        resumes=True,
    )
    yield from sweep_steps("world", f"{WEIGHTS}/model.yaml", sweep, sweep_minutes)
    yield Step(
        "trace",
        150.0,
        f"evict-profile trace {WEIGHTS} --out traces.parquet --prompts {prompts} "
        f"{recording} {every_batch}",
        resumes=True,
    )
    yield Step(
        "calibrate",
        60.0,
        f"evict-profile calibrate traces.parquet --part 1/2 "
        f"--table {table_of('world')} --out calibration.html",
    )
    yield Step(
        "replay",
        120.0,
        f"evict-profile replay {judged} {every_batch} --out replay.html "
        "--json replay.json",
    )
    yield from sweep_steps("price", model, model_sweep, sweep_minutes)
    for batch in batches:
        yield Step(
            f"drive-{batch}",
            200.0,
            f"benchmarks/trace_driven.py traces.parquet --model {model} "
            f"--batch {batch} --table {table_of('price')} "
            f"--world-table {CALIBRATED} --out trace_driven-{batch}.json",
        )
    yield Step(
        "clock",
        180.0,
        f"benchmarks/wall_clock.py {WEIGHTS} {judged} --prompts {prompts} "
        "--workload mixed --out wall_clock.json",
    )
    yield Step(
        "budgets",
        330.0,
        f"evict-profile trace-budgets {WEIGHTS} --out budgets.parquet {budgets}",
        resumes=True,
    )
    yield Step(
        "front",
        40.0,
        f"evict-profile budget budgets.parquet --table {CALIBRATED} "
        "--out budget.html --json budget.json",
    )
    yield Step(
        "overhead",
        120.0,
        f"benchmarks/budget_overhead.py --model {model} {routers} "
        "--out budget_overhead.json",
    )


def served_trees() -> SweepSpec:
    """A sweep that reaches whole trees of four requests, at contexts of a trace."""
    demo = load_sweep("demo")
    grid = replace(demo.grid, context=(128, 512), max_tokens=256)
    return replace(demo, name="gpu-world-model", grid=grid)


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, help="of training")
    options = parser.parse_args(arguments)
    minutes = options.minutes or (0.2 if options.dry_run else 7.0)
    steps = list(steps_of(options.dry_run, minutes))
    return run_script(options, "gpu_world", steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
