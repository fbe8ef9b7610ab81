#!/bin/bash
# The papers' tables and figures at their own scale on one CUDA machine, in order of value, for so many seconds:
#
#     LABELWISE_DATA=FOLDER OUT=FOLDER SECONDS_ALL=560 bash benchmarks/papers_device.sh [STEP...]
#
# STEPs are the functions below; without any, all of them in their order. A step whose data are not there is left out, a
# step that is stopped goes on when this is run again with the same state. PAPERS is the folder of the state; STATE, if
# given, is an archive of it from an earlier machine, unpacked first. LANES (3) steps run side by side: while one chooses
# rows, another trains; `measure` runs alone. Into $OUT come papers.tgz (pages, pictures and the
# records of unfinished runs: the next STATE), papers.log, and training.md of the step `measure`. DEVICE is cuda.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=120 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
OUT=${OUT:-papers-out}
limit=${SECONDS_ALL:-480}
device=${DEVICE:-cuda}
data=${LABELWISE_DATA:-}
where=${PAPERS:-papers-run} # short: it stands in the commands of the pages
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT" "$where"
began=$(date +%s)
reserve=${RESERVE:-45} # seconds for the pages and the archive
list="$where/pages-to-write.txt"
: >"$list"
left() { echo $((limit - reserve - $(date +%s) + began)); }
log() { echo "$where/log-$(echo "$*" | tr -c 'A-Za-z0-9=\n' '-').txt"; }
paper() { # NAME ARGUMENTS...: a table or figure, stopped when the time is over
  local seconds
  seconds=$(left)
  echo "$*" >>"$list"
  [ "$seconds" -lt 15 ] && return
  timeout -k 5 "$seconds" "$PYTHON" -m labelwise reproduce "$1" --scale "${SCALE:-paper}" --device "$device" \
    --together --out "$where" "${@:2}" >>"$(log "$@")" 2>&1
  echo "$*: ended with $? after $(($(date +%s) - began)) s"
}
cpu() { # NAME ARGUMENTS...: a figure whose selections train small heads: quicker on many cores than on a GPU
  local seconds
  seconds=$(left)
  [ "$seconds" -lt 15 ] && return
  timeout -k 5 "$seconds" "$PYTHON" -m labelwise reproduce "$1" --scale "${SCALE:-paper}" --device cpu \
    --processes "${CORES:-11}" --out "$where" "${@:2}" >>"$(log "$@")" 2>&1
  echo "$*, on ${CORES:-11} cores: ended with $? after $(($(date +%s) - began)) s"
}
pack() { tar czf "$OUT/papers.tgz" -C "$where" --exclude=models --exclude=cache .; }
has() { [ -n "$(ls -d "$data"/$1 2>/dev/null | head -1)" ]; }

measure() { # images a second of a stack against one network, and whether it computes the same
  timeout -k 5 $((${MEASURE:-70} + 40)) "$PYTHON" benchmarks/training_device.py --device "$device" --only-stacks \
    --batches 20 --seconds "${MEASURE:-70}" --out "$OUT/training.md" 2>&1
  echo "measure: ended with $? after $(($(date +%s) - began)) s"
}
mnist() { has mnist && paper sabal/table2 --only MNIST --seeds "${SEEDS:-10}"; }
mnist_accuracy() { has mnist && paper sabal/table2 --only MNIST --seeds "${SEEDS:-10}" --set keep=accuracy; }
mnist_inputs() { has mnist && paper sabal/table2 --only MNIST --seeds "${SEEDS:-5}" --set centred=false; }
mnist_padding() { has mnist && paper sabal/table2 --only MNIST --seeds "${SEEDS:-5}" --set padding=0; }
mnist_tanh() { has mnist && paper sabal/table2 --only MNIST --seeds "${SEEDS:-5}" --set activation=tanh; }
svhn() { has 'svhn-test.parquet' && paper sabal/table2 --only SVHN --seeds "${SEEDS:-5}" --set precision=bfloat16; }
cifar() { has 'cifar10-full' && paper sabal/table2 --only CIFAR10 --seeds "${SEEDS:-5}" --set precision=bfloat16; }
ablation() { has 'fashion-mnist' && paper sabal/figure4 --only "Fashion MNIST" --seeds "${SEEDS:-5}"; }
bayesian() { has 'fashion-mnist' && paper sabal/table1 --only "Fashion MNIST" --seeds "${SEEDS:-5}"; }
ally_mnist() { has mnist && cpu ally/figure2 --seeds "${SEEDS:-10}"; }
ally_mnist_1000() { has mnist && cpu ally/figure2-mnist-1000 --seeds "${SEEDS:-10}"; }
ally_svhn_1000() { has 'svhn-test.parquet' && paper ally/figure2-svhn-1000 --seeds "${SEEDS:-10}"; }
ally_cifar_200() { has 'cifar10-full' && paper ally/figure2-cifar10-200 --seeds "${SEEDS:-10}"; }
cnn_250() { has 'cifar10-full' && paper dynamical/table2 --seeds "${SEEDS:-10}"; }
cnn_500() { has 'cifar10-full' && paper dynamical/table3 --seeds "${SEEDS:-10}"; }
rounds() { has 'cifar10-full' && paper dynamical/table1 --only CIFAR10+CNN --seeds "${SEEDS:-10}"; }
vgg_500() { has 'svhn-test.parquet' && paper dynamical/table6 --seeds "${SEEDS:-5}"; }
bounds() { has mnist && cpu ally/figure4 --seeds "${SEEDS:-10}"; }
copies() { has mnist && cpu ally/figure5 --seeds "${SEEDS:-10}"; }
clusters() { has mnist && cpu ally/figure6 --seeds "${SEEDS:-10}"; }

steps=("$@")
[ ${#steps[@]} -eq 0 ] && steps=(measure mnist mnist_accuracy svhn cifar ablation bayesian ally_svhn_1000 ally_cifar_200
  ally_mnist ally_mnist_1000 cnn_250 cnn_500 vgg_500 rounds bounds copies clusters mnist_inputs mnist_padding mnist_tanh)
{
  date
  "$PYTHON" -c 'import torch, sys; print(sys.version.split()[0], torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())'
  [ -n "${STATE:-}" ] && [ -f "$STATE" ] && tar xzf "$STATE" -C "$where" && echo "state from $STATE"
  "$PYTHON" benchmarks/papers_state.py "$where"
  for step in "${steps[@]}"; do
    [ "$step" = measure ] && measure && continue
    while [ "$(jobs -rp | wc -l)" -ge "${LANES:-3}" ]; do wait -n; done
    "$step" &
  done
  wait
  pack # whatever happens to the pages
  while read -r arguments; do # pages of what was stopped
    eval "set -- $(printf '%s' "$arguments" | sed 's/Fashion MNIST/"Fashion MNIST"/')"
    [ -f "$(log "$@")" ] || continue # not begun
    tail -n 3 "$(log "$@")" | grep -q '^Written' && continue
    [ "$(left)" -gt $((10 - reserve)) ] || continue # the time is over
    case $1 in # a figure has no page of a part: one of the five seeds that are run first
      ally/*) more=(--seeds 5 --together) ;;
      *) more=(--page) ;;
    esac
    timeout 40 "$PYTHON" -m labelwise reproduce "$1" --scale "${SCALE:-paper}" --device "$device" --out "$where" "${@:2}" \
      "${more[@]}" >>"$(log "$@")" 2>&1 || echo "no page of $* yet"
  done <"$list"
  for one in "$where"/log-*.txt; do
    echo "== $one"
    tail -n 12 "$one"
  done
  cat "$where"/work/*/*/failures.txt 2>/dev/null | tail -n 40
  echo "all: $(($(date +%s) - began)) s"
} 2>&1 | tee "$OUT/papers.log"
pack
ls -l "$OUT"
