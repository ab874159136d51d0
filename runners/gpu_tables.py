"""Cost tables on a GPU, and what they rest on: the most wanted first, in short calls.

    python runners/gpu_tables.py --out runs/gpu --traces FILE    # beside the GPU
    python runners/gpu_tables.py --out runs/dry --dry-run        # on a CPU, tiny models

Three models are swept under captured graphs, twice each with other seeds, which shows
how well a table repeats; then come the error of a profile with dummy tokens, a recorded
trace over the kernels of the first model, which experts run at a fixed union, unions
that live in the L2 cache, and captured against eager. FILE is a trace of worlds/stdlib,
which any CPU records beforehand:

    evict-profile trace worlds/stdlib --out FILE --prompts 16 --tokens 48

Limits are estimates: no step was timed on a GPU. docs/how-to/gpu.md says more.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from evict_profile.config import SweepSpec, load_sweep
from evict_profile.records import replace
from runners.gpu_session import (
    ROOT,
    GpuStep,
    on_paper,
    parser_of,
    run_script,
    steps_of,
    table_of,
)

MODELS = ("qwen3-30b-a3b", "olmoe-1b-7b", "mixtral-8x7b")
DRY_MODELS = ("tiny", "tiny-qwen3")
WORLD_TABLE = (
    "cost_tables/intel-xeon-processor-amx-bf16/small-world-9.04m/tree-decoding/"
    "1.0.3.json"
)
"""Of the shipped small world: it tells what a draft level takes."""

FIRST = """
doctor 60 evict-profile doctor
decision 150 benchmarks/decision_time.py --out decision_time.json
"""
SWEEP = """
{model}-{seed} {limit_s}+ evict-profile sweep --model {model} --sweep seed-{seed}.json
    --out run-{model}-{seed} --max-minutes {minutes}
{model}-{seed}-table 60 evict-profile export run-{model}-{seed}
    --tables table-{model}-{seed}
"""
REPEAT = """
{model}-repeat 30 benchmarks/repeatability.py run-{model}-0 run-{model}-1
"""
START_UP = """
start_up 30 benchmarks/start_up.py run-{model}-0 --out start_up.json
"""
TRACE = """
trace_driven-{batch} 200 benchmarks/trace_driven.py {traces} --model {model}
    --batch {batch} --table {table} --world-table {world}
    --out trace_driven-{batch}.json
"""
CACHES = """
nuisance 120 benchmarks/nuisance.py --model {model}
l2_residency 120 benchmarks/l2_residency.py --model {model} --out l2_residency.json
"""
EAGER = """
captured 150+ evict-profile sweep --model {model} --sweep captured.json
    --out run-captured --max-minutes 0.5
eager 150+ evict-profile sweep --model {model} --sweep eager.json
    --out run-eager --max-minutes 0.5
eager-over-captured 30 benchmarks/repeatability.py run-captured run-eager
"""


def make_steps(dry: bool, traces: str) -> list[GpuStep]:
    """The steps in order."""
    first, *others = DRY_MODELS if dry else MODELS
    minutes = 0.3 if dry else 2.4
    sweep = {"minutes": minutes, "limit_s": 60.0 * minutes + 120.0}
    drive = {
        "traces": traces,
        "model": first,
        "world": shlex.quote(str(ROOT / WORLD_TABLE)),
    }
    drive["table"] = table_of(f"{first}-0")
    steps = steps_of(FIRST + SWEEP + START_UP, model=first, seed=0, **sweep)
    steps += steps_of(TRACE, batch=1, **drive)
    steps += steps_of(SWEEP + REPEAT, model=first, seed=1, **sweep)
    for model in others:
        steps += steps_of(SWEEP, model=model, seed=0, **sweep)
    steps += steps_of(CACHES, model=first)
    for batch in (2,) if dry else (4, 16, 64):
        steps += steps_of(TRACE, batch=batch, **drive)
    for model in others:
        steps += steps_of(SWEEP + REPEAT, model=model, seed=1, **sweep)
    return steps + steps_of(EAGER, model=first)


def make_sweeps(dry: bool) -> dict[str, SweepSpec]:
    """The sweeps by the names that steps give them."""
    plan = on_paper(load_sweep("tiny")) if dry else load_sweep("lease")
    few = load_sweep("tiny" if dry else "repeat")
    graphs = {"captured": True, "eager": False}
    return {
        f"seed-{seed}": replace(plan, name=f"{plan.name}-{seed}", seed=seed)
        for seed in (0, 1)
    } | {name: replace(few, name=name, graphs=on) for name, on in graphs.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--traces", type=Path, help="trace of worlds/stdlib")
    options = parser.parse_args(arguments)
    traces = options.traces.resolve() if options.traces else None
    if traces and not traces.is_file():
        parser.error(f"--traces {options.traces}: is no file; record one beforehand")
    trace = shlex.quote(str(traces)) if traces else "traces*.parquet"
    steps, sweeps = make_steps(options.dry_run, trace), make_sweeps(options.dry_run)
    return run_script(options, "gpu_tables", steps, sweeps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
