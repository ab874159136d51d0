#!/usr/bin/env bash
# Cost tables of three models under captured graphs, twice each: how well does one repeat?
#
#   OUT=runs/gpu bash scripts/gpu/tables.sh            # under ten minutes a call
#
# Limits are estimates: no step was timed on a GPU. README.md beside it says more.
source "$(dirname "$0")/steps.sh"
MODELS=${MODELS:-"qwen3-30b-a3b olmoe-1b-7b mixtral-8x7b"} SWEEP=${SWEEP:-lease}
MINUTES=${MINUTES:-3}

evict doctor 60 doctor
step decision 150 "$PYTHON" benchmarks/decision_time.py --out "$OUT/decision_time.json"
for seed in 0 1; do
  sweep=$(variant "$SWEEP" "$SWEEP-$seed" "seed: $seed")
  for model in $MODELS; do
    profile "$model-$seed" "$model" "$sweep" "$MINUTES"
  done
done
for model in $MODELS; do
  compare "$model-repeat" "$model-0" "$model-1"
done
first=${MODELS%% *}
for graphs in true false; do
  profile "graphs-$graphs" "$first" "$(variant repeat "graphs-$graphs" "graphs: $graphs")" 1
done
compare eager-over-captured graphs-true graphs-false
exit $MISSING
