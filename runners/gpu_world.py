"""A larger small world on a GPU, and the full model driven by its trace.

    python runners/gpu_world.py --out runs/gpu-world            # beside the GPU
    python runners/gpu_world.py --out runs/dry --dry-run        # minutes of a CPU

Trains the recipe `gpu`, sweeps the engine on it, records trees, calibrates on half the
prompts, replays the other half and checks that against the engine's own clock; prices
the full model and drives it by the same trace; compares expert budgets. Needs
safetensors and tokenizers, and no network. `--minutes` is of training.

Limits are estimates: no step was timed on a GPU. docs/how-to/gpu.md says more. The
folder OUT/world is too large for the archive: where it is lost, `train` begins anew.
"""

import sys
from collections.abc import Sequence
from typing import Any

from evict_profile.config import SweepSpec, load_sweep
from evict_profile.records import replace
from runners.gpu_session import (
    WEIGHTS,
    GpuStep,
    on_paper,
    parser_of,
    run_script,
    steps_of,
    table_of,
)

GPU: dict[str, Any] = {
    "recipe": "gpu",
    "minutes": 7.0,
    "model": "qwen3-30b-a3b",
    "sweep_minutes": 2.5,
    "prompts": 16,
    "batches": (1, 4),
    "trace": "--tokens 48",
    "budgets": "--prompts 6 --tokens 48 --budget 8 --budget 16 --budget 32",
    "routers": "--layers 8 --tokens 32 --tokens 64",
}
DRY: dict[str, Any] = {
    "recipe": "tiny",
    "minutes": 0.2,
    "model": "tiny",
    "sweep_minutes": 0.3,
    "prompts": 10,
    "batches": (1,),
    "trace": "--tokens 6 --depth 3 --topk 4 --nodes 12",
    "budgets": "--prompts 5 --tokens 6 --depth 3 --budget 4",
    "routers": "--tokens 5 --context 8",
}
FIRST = """
train 570+ runners/train_small_world/__main__.py --out world --recipe {recipe}
    --minutes {minutes}
world {limit_s}+ evict-profile sweep --model world/model.yaml --sweep world.json
    --out run-world --max-minutes {sweep_minutes}
world-table 60 evict-profile export run-world --tables table-world
trace 150+ evict-profile trace world --out traces.parquet --prompts {prompts} {trace}
    {every_batch}
calibrate 60 evict-profile calibrate traces.parquet --part 1/2 --table {table}
    --out calibration.html
replay 120 evict-profile replay traces.parquet --part 2/2 --table {calibrated}
    {every_batch} --out replay.html --json replay.json
price {limit_s}+ evict-profile sweep --model {model} --sweep price.json --out run-price
    --max-minutes {sweep_minutes}
price-table 60 evict-profile export run-price --tables table-price
"""
DRIVE = """
drive-{batch} 200 benchmarks/trace_driven.py traces.parquet --model {model}
    --batch {batch} --table {price} --world-table {calibrated}
    --out trace_driven-{batch}.json
"""
LAST = """
clock 180 benchmarks/wall_clock.py world traces.parquet --part 2/2 --table {calibrated}
    --prompts {prompts} --workload mixed --out wall_clock.json
budgets 330+ evict-profile trace-budgets world --out budgets.parquet {budgets}
front 40 evict-profile budget budgets.parquet --table {calibrated} --out budget.html
    --json budget.json
overhead 120 benchmarks/budget_overhead.py --model {model} {routers}
    --out budget_overhead.json
"""


def make_steps(dry: bool, minutes: float | None) -> list[GpuStep]:
    """The steps in order; `minutes` of training, if not the scale's own."""
    values = dict(DRY if dry else GPU)
    values["minutes"] = minutes or values["minutes"]
    values |= {
        "limit_s": 60.0 * values["sweep_minutes"] + 120.0,
        "every_batch": " ".join(f"--batch {batch}" for batch in values["batches"]),
        "table": table_of("world"),
        "calibrated": table_of("world", "1.0.1"),
        "price": table_of("price"),
    }
    steps = steps_of(FIRST, **values)
    for batch in values["batches"]:
        steps += steps_of(DRIVE, batch=batch, **values)
    return steps + steps_of(LAST, **values)


def make_sweeps(dry: bool) -> dict[str, SweepSpec]:
    """The sweeps of the trained world and of the full model."""
    if dry:
        sweep = model_sweep = on_paper(load_sweep("tiny"))
    else:
        sweep, demo = load_sweep("small-world-gpu"), load_sweep("demo")
        # Whole trees of four requests, at contexts of the trace.
        grid = replace(demo.grid, context=(128, 512), max_tokens=256)
        model_sweep = replace(demo, name="gpu-world-model", grid=grid, openings=1)
    # A relative path, so that the sweep goes on wherever OUT lies.
    return {"world": replace(sweep, world=WEIGHTS), "price": model_sweep}


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, help="of training")
    options = parser.parse_args(arguments)
    steps = make_steps(options.dry_run, options.minutes)
    return run_script(options, "gpu_world", steps, make_sweeps(options.dry_run))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
