#!/usr/bin/env bash
# Measures SGLang on a GPU; docs/gpu-sglang.md says what, and what it proves.
#   runners/gpu_sglang.sh OUT [PYTHON]     the same command again goes on where it stopped
# PYTHON has SGLang, TOOLKIT_PYTHON has evict-profile's dependencies: one may be both.
# DRY=1 goes through all steps with a tiny model. STEPS="kernels sweep" runs those.
# LIMIT_S=400 ends the call within so many seconds, in place of 570.
set -euo pipefail
out=$(realpath -m "${1:?usage: runners/gpu_sglang.sh OUT [PYTHON]}")
python=$(command -v "${2:-python3}")
toolkit=$(command -v "${TOOLKIT_PYTHON:-$python}")
cd "$(dirname "$0")/.."
words=(--out "$out" --python "$(realpath -s "$python")")
[[ -z "${DRY:-}" ]] || words+=(--dry-run)
[[ -z "${LIMIT_S:-}" ]] || words+=(--limit-s "$LIMIT_S")
for step in ${STEPS:-}; do words+=(--only "$step"); done
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec \
    "$(realpath -s "$toolkit")" -m runners.gpu_sglang "${words[@]}"
