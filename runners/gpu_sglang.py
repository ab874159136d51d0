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

runners/gpu_session.py tells what lies in the folder `--out`; docs say more: On a GPU.
"""

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evict_profile.config import load_sweep
from evict_profile.records import replace
from runners.gpu_session import (
    Step,
    parser_of,
    run_script,
    sweep_steps,
    table_of,
)

TABLE = f"--table {table_of('sweep')}"


def steps_of(dry: bool, python: str) -> Iterator[Step]:
    """The steps in order; serving needs a call nearly to itself."""
    sweep = load_sweep("sglang-tiny" if dry else "sglang")
    if not dry:
        triton = replace(sweep.sglang, attention_backend="triton")
        sweep = replace(sweep, sglang=triton)
    model, minutes = ("tiny-qwen3", 1.0) if dry else ("qwen3-30b-a3b", 4.0)
    replies = "--width 4 --tokens 24 --repeats 2" if dry else "--width 8 --width 24"
    has_sglang = f"--python {shlex.quote(python)}"
    yield Step(
        "kernels",
        400.0 if dry else 90.0,
        "benchmarks/sglang_kernels.py --out kernels.json",
        python=python,
    )
    # SGLang loads for minutes, and clocks its drafting.
    yield from sweep_steps("sweep", model, sweep, minutes, 170.0, has_sglang)
    dummy = "benchmarks/start_up.py run-sweep --out start_up.json"
    yield Step("start_up", 40.0, dummy)
    # The sweep's own file, so that the server is started as the runner was.
    yield Step(
        "serving",
        500.0,
        f"benchmarks/sglang_serving.py --model {model} --sweep sweep.json {TABLE} "
        f"{has_sglang} {replies} --minutes 6 --out serving",
        resumes=True,
    )
    batches = " ".join(f"--batch {batch}" for batch in sweep.grid.batch)
    yield Step(
        "decision",
        90.0,
        f"benchmarks/sglang_decision.py {TABLE} --out decision.json {batches} "
        f"--steps {sweep.sglang.steps} --topk {sweep.sglang.topk} "
        f"--draft-tokens {max(sweep.grid.width)} --context {min(sweep.grid.context)}",
        python=python,
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
    python = str(Path(found).absolute())
    steps = list(steps_of(options.dry_run, python))
    return run_script(options, "gpu_sglang", steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
