#!/usr/bin/env bash
# SGLang on a GPU: its cost table, and tokens/s end to end with and without the plug-in.
#
#   OUT=runs/gpu-sglang SGLANG_PYTHON=/opt/sglang/bin/python bash scripts/gpu/sglang.sh
#
# Attention is Triton's in the sweep and in the server: with defaults, on Hopper, plain
# decoding and trees run other kernels, and a ratio of the two would compare kernels too.
# Limits are estimates: no step was timed on a GPU. docs/measure/gpu.md says more.
source "$(dirname "$0")/steps.sh"
MODEL=${MODEL:-qwen3-30b-a3b} SGLANG_PYTHON=${SGLANG_PYTHON:-$PYTHON}
SWEEP=${SWEEP:-$OUT/sglang-triton.yaml} MINUTES=${MINUTES:-4}

sed 's/^sglang:/sglang:\n  attention_backend: triton/' configs/sweeps/sglang.yaml \
  > "$OUT/sglang-triton.yaml"
profile sweep "$MODEL" "$SWEEP" "$MINUTES" --python "$SGLANG_PYTHON"
step serving 500 "$PYTHON" benchmarks/sglang_serving.py --model "$MODEL" --sweep "$SWEEP" \
  --table "$(table_of sweep)" --python "$SGLANG_PYTHON" --width 8 --width 24 \
  --minutes 6 --out "$OUT/serving"
exit $MISSING
