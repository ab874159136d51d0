#!/usr/bin/env bash
# Builds the wheel, installs it outside the checkout beside the libraries of the given
# Python, and runs it from an empty folder: configs and runners must travel with it.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without a compiler first: a wheel for every machine, which decides in numpy.
CC=false "$python" -m build --wheel --no-isolation --outdir "$work/plain" . >/dev/null 2>&1
"$python" -m build --wheel --no-isolation --outdir "$work/dist" . >/dev/null
"$python" -m pip install --quiet --no-deps --target "$work/plain" "$work"/plain/*-none-any.whl
"$python" -m pip install --quiet --no-deps --target "$work/site" "$work"/dist/*-abi3-*.whl
cd "$work"
# -P keeps the checkout off the path; PYTHONPATH puts the wheel before the editable one.
run() { PYTHONPATH="$work/site" "$python" -P -m evict_profile "$@"; }

run --version
where=$(PYTHONPATH="$work/site" "$python" -P -c 'import evict_profile; print(evict_profile.__file__)')
case $where in "$work"/site/*) ;; *) echo "not the wheel: $where"; exit 1 ;; esac
runners() { ls "$1" | grep -v __pycache__; }
shipped="$work/site/evict_profile/data/runners"
diff <(runners "$checkout/runners") <(runners "$shipped")
run doctor
decides='
import numpy, torch
from evict_profile.runtime import select_widths
from evict_profile.runtime.decision import COMPILED
path_prob = torch.tensor([[0.9, 0.5, 0.4], [0.8, 0.7, 0.1]])
print(COMPILED, select_widths(path_prob, 100 + 9.0 * numpy.arange(9)).tolist())'
compiled=$(PYTHONPATH="$work/site" "$python" -P -c "$decides")
plain=$(PYTHONPATH="$work/plain" "$python" -P -c "$decides")
test "$compiled" = "True [4, 3]" && test "$plain" = "False [4, 3]" ||
    { echo "compiled: $compiled; without a compiler: $plain"; exit 1; }
# A datasheet's clock: a measured one can fail a gate, as it should, on a busy machine.
run sweep tiny --plan roofline --tables "$work/tables"
run show "$work"/tables/*/tiny/roofline/1.0.0.json
test -s runs/tiny/roofline/report.html
# The engine that measures came along as well: one cell of it, and no gate.
PYTHONPATH="$work/site" "$python" -P - <<'END'
from pathlib import Path

from evict_profile.cells import Cell
from evict_profile.config import load_model, load_sweep
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.session import OpenRunner

model, spec = load_model("tiny"), load_sweep("tiny")
with OpenRunner(spec, model, make_grid(spec, model), Path("runner.log")) as session:
    cell = Cell("layers", 4, 8, 64, 1, "balanced")
    (sample,) = session.runner.measure(cell, [1])
assert sample.observed_union == 8.0, sample
assert sample.clock_us > 0.0, sample
print("torch_moe measured one cell")
END
echo "wheel smoke test passed"
