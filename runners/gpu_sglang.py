"""SGLang on a GPU: its cost table, tokens/s end to end, and what the plug-in costs.

    python runners/gpu_sglang.py --out runs/gpu-sglang --python SGLANG_PYTHON
    python runners/gpu_sglang.py --out runs/dry --python SGLANG_PYTHON --dry-run

    kernels    SGLang's tree kernels on cut trees against plain Python; versions
    sweep      the sweep `sglang` of Qwen3-30B-A3B, and its table
    start_up   the error of a profile with dummy tokens, as servers take at start
    serving    plain, whole trees, chosen and fixed widths; memory of each graph pair
    decision   what the choice of a width and its copy cost a step

SGLANG_PYTHON has SGLang; this script runs in the toolkit's. Attention is Triton's, in
the sweep and in the server: with defaults, plain decoding and trees run other kernels
on Hopper, so that every ratio of the two would compare kernels as well.

docs/how-to/gpu.md says more.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from evict_profile.config import SweepSpec, load_sweep
from evict_profile.records import replace
from runners.gpu_session import (
    ROOT,
    GpuStep,
    parser_of,
    run_script,
    steps_of,
    table_of,
)

# SGLang loads for minutes, and clocks its drafting. The server takes the sweep's own
# file, so that it starts as the runner did; serving needs a call nearly to itself.
STEPS = """
kernels {kernels_s} {python} {root}/benchmarks/sglang_kernels.py --out kernels.json
sweep {sweep_s}+ evict-profile sweep --model {model} --sweep sweep.json --out run-sweep
    --max-minutes {minutes} --python {python}
sweep-table 60 evict-profile export run-sweep --tables table-sweep
start_up 40 benchmarks/start_up.py run-sweep --out start_up.json
serving 500+ benchmarks/sglang_serving.py --model {model} --sweep sweep.json
    --table {table} --python {python} {replies} --minutes 6 --out serving
decision 90 {python} {root}/benchmarks/sglang_decision.py --table {table}
    --out decision.json {trees}
"""


def make_sweep(dry: bool) -> SweepSpec:
    """The sweep of SGLang's model runner."""
    if dry:
        return load_sweep("sglang-tiny")
    sweep = load_sweep("sglang")
    return replace(sweep, sglang=replace(sweep.sglang, attention_backend="triton"))


def make_steps(dry: bool, python: str, sweep: SweepSpec) -> list[GpuStep]:
    """The steps in order."""
    minutes = 1.0 if dry else 4.0
    trees = (
        f"--steps {sweep.sglang.steps} --topk {sweep.sglang.topk} "
        f"--draft-tokens {max(sweep.grid.width)} --context {min(sweep.grid.context)} "
    )
    return steps_of(
        STEPS,
        python=shlex.quote(python),
        root=shlex.quote(str(ROOT)),
        model="tiny-qwen3" if dry else "qwen3-30b-a3b",
        minutes=minutes,
        kernels_s=400 if dry else 90,
        sweep_s=60.0 * minutes + 170.0,
        table=table_of("sweep"),
        replies="--width 4 --tokens 24 --repeats 2" if dry else "--width 8 --width 24",
        trees=trees + " ".join(f"--batch {batch}" for batch in sweep.grid.batch),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--python", default=sys.executable, help="that has SGLang")
    options = parser.parse_args(arguments)
    if (found := shutil.which(options.python)) is None:
        parser.error(
            f"--python {options.python}: is no program; name one that has SGLang"
        )
    # Not `resolve`: behind its link, the Python of an environment knows no packages.
    python, sweep = str(Path(found).absolute()), make_sweep(options.dry_run)
    steps = make_steps(options.dry_run, python, sweep)
    return run_script(options, "gpu_sglang", steps, {"sweep": sweep})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
