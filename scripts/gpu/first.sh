#!/usr/bin/env bash
# The first thirty minutes on a GPU: what runs on CUDA alone, in the order of its risk.
#
#   OUT=runs/first SGLANG_PYTHON=/opt/sglang/bin/python bash scripts/gpu/first.sh
#   OUT=runs/first-cpu DEVICE=cpu LIMIT_S=7200 SGLANG_PYTHON=.venv-sglang/bin/python \
#     bash scripts/gpu/first.sh                # the same with a tiny model, no GPU
#
# OTHER_PYTHON may name the Python of a second version of SGLang. Limits are estimates: no
# step was timed on a GPU. README.md beside it says more.
source "$(dirname "$0")/steps.sh"
SGLANG_PYTHON=${SGLANG_PYTHON:-$PYTHON} OTHER_PYTHON=${OTHER_PYTHON:-}
if [ "${DEVICE:-cuda}" = cpu ]; then
  MODEL=tiny-qwen3 SLICE=tiny-qwen3 PLAN=$OUT/trees.yaml SLOW=${SLOW:-20}
  LAYERS_MODEL=tiny LAYERS_PLAN=tiny SHORT="--repeats 1 --tokens 16 --width 4"
  LONG=$SHORT FEW="s/^  union: .*/  union: 3/; s/^  batch: .*/  batch: [1]/"
else
  MODEL=qwen3-30b-a3b SLICE=$OUT/slice/config.json PLAN=sglang
  LAYERS_MODEL=$MODEL LAYERS_PLAN=lease
  SHORT="--repeats 67 --tokens 64 --width 4" LONG="--width 8 --width 24" FEW=
fi

plan() { # SWEEP NAME EDIT: a sweep's file, edited by sed
  sed -e "s/^name:.*/name: $2/" -e "$3" "configs/sweeps/$1.yaml" > "$OUT/$2.yaml"
}

measure() { # NAME SECONDS MODEL SWEEP PYTHON
  evict "$1" "$2" sweep "$3" --plan "$4" --python "$5" --out "$OUT/run-$1" \
    --tables "$OUT/tables-$1" --max-minutes "$(($2 * ${SLOW:-1} / 60))"
  grep -h "^SGLang, " "$OUT/run-$1/runner.log" 2> /dev/null
}

serve() { # NAME SECONDS MODEL SWEEP SWEPT PYTHON OPTION...: with the table of SWEPT
  local name=$1 limit_s=$2 model=$3 sweep=$4 swept=$5 python=$6 may_fail=
  shift 6
  if [ -z "$(table_of "$swept")" ]; then
    echo "$name: waits for the table of the step $swept"; MISSING=1; return
  fi
  if "$python" -c 'from importlib.metadata import version as v
import sys; sys.exit(v("sglang") != "0.5.16")'; then
    echo "$name: the plug-in refuses SGLang 0.5.16; plain decoding and whole trees run"
    may_fail="|| true"
  fi
  # Exit code 3 says that all modes ran and the chosen widths were slower: a result.
  step "$name" "$limit_s" bash -c "\"\$@\" || [ \$? -eq 3 ] $may_fail" serve \
    "$PYTHON" benchmarks/sglang_serving.py --model "$model" --sweep "$sweep" \
    --table "$(table_of "$swept")" --python "$python" --out "$OUT/$name" "$@"
}

# 1. Every CUDA path in a small model: union test, captures, clocks; trees, then chains.
plan sglang-tiny trees "$FEW"
plan sglang-tiny chains "$FEW; s/topk: .*/topk: 1/; s/^  width: .*/  width: [1, 2, 3, 4]/"
for shape in trees chains; do
  measure "$shape" 60 tiny-qwen3 "$OUT/$shape.yaml" "$SGLANG_PYTHON"
  [ "$OTHER_PYTHON" ] &&
    measure "$shape-other" 60 tiny-qwen3 "$OUT/$shape.yaml" "$OTHER_PYTHON"
done

# 2. The same in a server, with and without the plug-in: 201 requests, equal replies.
for shape in trees chains; do
  serve "serve-$shape" 90 tiny-qwen3 "$OUT/$shape.yaml" "$shape" "$SGLANG_PYTHON" $SHORT
done

# 3. What the hook that forces routes adds to a captured graph.
[ "$SLICE" = tiny-qwen3 ] || step slice 30 "$PYTHON" scripts/gpu/hook.py \
  --write "$SLICE" --model "$MODEL" --layers 12
for hook in with without; do
  step "hook-$hook" 60 "$SGLANG_PYTHON" scripts/gpu/hook.py --model "$SLICE" \
    --device "${DEVICE:-cuda}" --$hook
  tail -2 "$OUT/logs/hook-$hook.log"
done

# 4. README's sweep; the log has the seconds of loading and capturing, and memory left.
measure sweep 540 "$MODEL" "$PLAN" "$SGLANG_PYTHON"

# 5. Tokens/s: plain, whole tree, fixed widths, the table's; five seconds of a profile.
serve serving 380 "$MODEL" "$PLAN" sweep "$SGLANG_PYTHON" $LONG
if command -v nsys > /dev/null && [ -e "$OUT/serving/ours.json" ]; then
  cp -rn "$OUT/serving" "$OUT/profile" && rm -f "$OUT/profile/ours".*
  printf '#!/bin/sh\nexec nsys profile -y 60 -d 5 -o %s %s "$@"\n' \
    "$OUT/profile/ours" "$SGLANG_PYTHON" > "$OUT/nsys-python"
  chmod +x "$OUT/nsys-python"
  serve profile 90 "$MODEL" "$PLAN" sweep "$OUT/nsys-python" $LONG
fi

# 6. How well a table of MoE layers repeats.
for seed in 0 1; do
  layers=$(variant "$LAYERS_PLAN" "layers-$seed" "seed: $seed")
  measure "layers-$seed" 80 "$LAYERS_MODEL" "$layers" "$PYTHON"
done
compare repeat layers-0 layers-1
exit $MISSING
