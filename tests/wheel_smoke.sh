#!/usr/bin/env bash
# Builds the wheel, installs it outside the checkout beside the libraries of the given
# Python, and runs it from an empty folder: configs and runners must travel with it.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --no-isolation --outdir "$work/dist" . >/dev/null
"$python" -m pip install --quiet --no-deps --target "$work/site" "$work"/dist/*.whl
cd "$work"
# -P keeps the checkout off the path; PYTHONPATH puts the wheel before the editable one.
run() { PYTHONPATH="$work/site" "$python" -P -m evict_profile "$@"; }

run --version
where=$(PYTHONPATH="$work/site" "$python" -P -c 'import evict_profile; print(evict_profile.__file__)')
case $where in "$work"/site/*) ;; *) echo "not the wheel: $where"; exit 1 ;; esac
run doctor
run profile --model tiny --sweep tiny --max-minutes 1.5 --tables "$work/tables"
run show "$work"/tables/*/tiny/torch-moe/1.0.0.json
test -s runs/tiny/tiny/report.html
echo "wheel smoke test passed"
