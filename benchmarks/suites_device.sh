#!/bin/bash
# Suites of the benchmark on one machine of many cores, one after the other, for so many seconds:
#
#     LABELWISE_DATA=FOLDER OUT=FOLDER SECONDS_ALL=560 CORES=15 bash benchmarks/suites_device.sh [SUITE...]
#
# Without SUITEs: those whose kept records are the oldest first (SUITES below). GPU_SUITES run beside them with
# `device: cuda`, where there is a GPU. Jobs run seed by seed, so that a suite that is stopped has whole seeds. Into $OUT
# comes NAME.tgz for each suite: its run folder without caches. RUNS holds the folders; STATE, if given, is a folder of
# such archives from an earlier machine, unpacked first: finished rounds are not run again. A folder cache/NAME/ in
# $LABELWISE_DATA is copied to the cache of the run: vectors of encoders that this machine does not have.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=120 OMP_NUM_THREADS=1
OUT=${OUT:-suites-out}
limit=${SECONDS_ALL:-480}
runs=${RUNS:-suites-run}
PYTHON=${PYTHON:-python3}
SUITES=${*:-texts images sabal-share sabal-ablation warm}
GPU_SUITES=${GPU_SUITES:-sabal-gradient}
cores=${CORES:-$(($(nproc) - 1))}
reserve=${RESERVE:-25} # seconds for the archives
mkdir -p "$OUT" "$runs"
began=$(date +%s)
left() { echo $((limit - reserve - $(date +%s) + began)); }
pack() { # NAME
  [ -d "$runs/$1" ] && tar czf "$OUT/$1.tgz.new" -C "$runs" --exclude=cache --exclude=models "$1" 2>/dev/null
  [ -f "$OUT/$1.tgz.new" ] && mv "$OUT/$1.tgz.new" "$OUT/$1.tgz"
}
suite() { # PROCESSES NAME FILE
  local seconds
  seconds=$(left)
  [ "$seconds" -lt 20 ] && return
  [ -d "${LABELWISE_DATA:-}/cache/$2" ] && mkdir -p "$runs/$2/cache" && cp -n "$LABELWISE_DATA/cache/$2"/* "$runs/$2/cache/"
  timeout -s INT -k 10 "$seconds" "$PYTHON" -m labelwise bench run "$3" --out "$runs/$2" --processes "$1" \
    >"$runs/$2.log" 2>&1
  echo "$2: ended with $? after $(($(date +%s) - began)) s; $(grep -E 'rounds|runs are done' "$runs/$2.log" | tail -n 1)"
  pack "$2"
}
on_gpu() { # NAME: a copy of the suite for CUDA; an archive of it says so
  sed 's/^processes: .*/processes: 2/; $a device: cuda' "src/labelwise/bench/suites/$1.yaml" >"$runs/$1-cuda.yaml"
  suite 2 "$1" "$runs/$1-cuda.yaml"
}

if [ -n "${STATE:-}" ]; then
  for one in "$STATE"/*.tgz; do [ -f "$one" ] && tar xzf "$one" -C "$runs" && echo "state from $one"; done
fi
if "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  (for one in $GPU_SUITES; do on_gpu "$one"; done) &
fi
for one in $SUITES; do suite "$cores" "$one" "$one"; done
wait
for log in "$runs"/*.log; do
  echo "== $log"
  tail -n 3 "$log"
done
echo "all: $(($(date +%s) - began)) s"
ls -l "$OUT"
