# Steps on a GPU that is lent by the hour; tables.sh and first.sh read this file.
#
# A step ends by its own limit or the call's, and is not run again once OUT/done/STEP is
# there. After every step all small files are packed into OUT/results.tar.gz. The same
# command goes on where the last call stopped; exit code 1 says that something is missing.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
OUT=${OUT:?name a folder, as in: OUT=runs/gpu bash $0}
LIMIT_S=${LIMIT_S:-570} PYTHON=${PYTHON:-python} MISSING=0
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$OUT/logs" "$OUT/done"

step() { # NAME SECONDS COMMAND...: SLOW times as long on a slow machine
  local name=$1 limit_s=$(($2 * ${SLOW:-1})) left_s=$((LIMIT_S - SECONDS))
  shift 2
  [ -e "$OUT/done/$name" ] && return
  if [ "$left_s" -lt 30 ]; then MISSING=1; return; fi
  [ "$left_s" -lt "$limit_s" ] && limit_s=$left_s
  echo "$name: $*"
  if timeout --signal=INT --kill-after=10 "$limit_s" "$@" > "$OUT/logs/$name.log" 2>&1
  then touch "$OUT/done/$name"
  elif [ "$?" -eq 124 ]
  then echo "  stopped after $limit_s s; the same command continues"; MISSING=1
  else echo "  failed; see $OUT/logs/$name.log"; MISSING=1
  fi
  find "$OUT" -type f -size -8M ! -name results.tar.gz -printf '%P\n' |
    tar czf "$OUT/results.tar.gz" -C "$OUT" -T -
}

evict() { # NAME SECONDS WORDS...
  local name=$1 limit_s=$2
  shift 2
  step "$name" "$limit_s" "$PYTHON" -m evict_profile "$@"
}

profile() { # NAME MODEL SWEEP MINUTES [OPTION...]
  local name=$1 model=$2 sweep=$3 minutes=$4
  shift 4
  evict "$name" $((minutes * 60 + 180)) sweep "$model" --plan "$sweep" \
    --out "$OUT/run-$name" --tables "$OUT/tables-$name" --max-minutes "$minutes" "$@"
}

variant() { # SWEEP NAME LINE: a sweep's file with one more line
  { sed -e "s/^name:.*/name: $2/" -e "/^${3%%:*}:/d" "configs/sweeps/$1.yaml"; echo "$3"; } \
    > "$OUT/$2.yaml"
  echo "$OUT/$2.yaml"
}

compare() { # NAME ONE OTHER: exit code 1 of `diff` says that two tables differ
  step "$1" 60 bash -c '"$@" || [ $? -eq 1 ]' diff "$PYTHON" -m evict_profile diff \
    "$(table_of "$2")" "$(table_of "$3")"
}

table_of() { ls "$OUT/tables-$1"/*/*/*/*.json 2> /dev/null | tail -1; }
