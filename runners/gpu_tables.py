"""Cost tables on a GPU, and what they rest on: the most wanted first, in short calls.

    python runners/gpu_tables.py --out runs/gpu --traces FILE    # beside the GPU
    python runners/gpu_tables.py --out runs/dry --dry-run        # on a CPU, tiny models

Three models are swept under captured graphs, twice each with other seeds, which shows
how well a table repeats; then come the error of a profile with dummy tokens, a recorded
trace over the kernels of the first model, which experts run at a fixed union, unions
that live in the L2 cache, and captured against eager. FILE is a trace of worlds/stdlib,
which any CPU records beforehand:

    evict-profile trace worlds/stdlib --out FILE --prompts 16 --tokens 48

runners/gpu_session.py tells what lies in the folder `--out`; docs say more: On a GPU.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evict_profile.config import load_sweep
from evict_profile.records import replace
from runners.gpu_session import (
    ROOT,
    Step,
    on_paper,
    parser_of,
    run_script,
    sweep_steps,
    table_of,
)

MODELS = ("qwen3-30b-a3b", "olmoe-1b-7b", "mixtral-8x7b")
DRY_MODELS = ("tiny", "tiny-qwen3")
WORLD_TABLE = "cost_tables/*/small-world-9.04m/tree-decoding/1.0.1.json"
"""Of the world that is shipped: it tells what a draft level takes."""


def steps_of(dry: bool, traces: str) -> Iterator[Step]:
    """The steps in order; limits are estimates, since none was timed on a GPU."""
    (first, *others), minutes = (DRY_MODELS, 0.3) if dry else (MODELS, 2.4)
    plan = on_paper(load_sweep("tiny")) if dry else load_sweep("lease")
    few = load_sweep("tiny" if dry else "repeat")

    def swept(model: str, seed: int) -> tuple[Step, Step]:
        spec = replace(plan, name=f"{plan.name}-{seed}", seed=seed)
        return sweep_steps(f"{model}-{seed}", model, spec, minutes)

    def repeated(name: str, one: str, other: str) -> Step:
        return Step(name, 30.0, f"benchmarks/repeatability.py run-{one} run-{other}")

    def walked(batch: int) -> Step:
        world = next(iter(sorted(ROOT.glob(WORLD_TABLE))))
        command = (
            f"benchmarks/trace_driven.py {traces} --model {first} --batch {batch} "
            f"--table {table_of(f'{first}-0')} --world-table {shlex.quote(str(world))} "
            f"--out trace_driven-{batch}.json"
        )
        return Step(f"trace_driven-{batch}", 200.0, command)

    yield Step("doctor", 60.0, "evict-profile doctor")
    yield Step(
        "decision", 150.0, "evict-profile bench --only decision --out bench.json"
    )
    yield from swept(first, seed=0)
    dummy = f"benchmarks/start_up.py run-{first}-0 --out start_up.json"
    yield Step("start_up", 30.0, dummy)
    yield walked(1)
    yield from swept(first, seed=1)
    yield repeated(f"{first}-repeat", f"{first}-0", f"{first}-1")
    for model in others:
        yield from swept(model, seed=0)
    yield Step("nuisance", 120.0, f"benchmarks/nuisance.py --model {first}")
    cache = f"benchmarks/l2_residency.py --model {first} --out l2_residency.json"
    yield Step("l2_residency", 120.0, cache)
    for batch in (2,) if dry else (4, 16, 64):
        yield walked(batch)
    for model in others:
        yield from swept(model, seed=1)
        yield repeated(f"{model}-repeat", f"{model}-0", f"{model}-1")
    for name, graphs in (("captured", True), ("eager", False)):
        spec = replace(few, name=name, graphs=graphs)
        yield sweep_steps(name, first, spec, 0.5)[0]
    yield repeated("eager-over-captured", "captured", "eager")


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--traces", type=Path, help="trace of worlds/stdlib to walk")
    options = parser.parse_args(arguments)
    traces = options.traces.resolve() if options.traces else None
    if traces and not traces.is_file():
        parser.error(f"--traces {options.traces}: is no file; record one beforehand")
    trace = shlex.quote(str(traces)) if traces else "traces*.parquet"
    steps = list(steps_of(options.dry_run, trace))
    return run_script(options, "gpu_tables", steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
