#!/bin/bash
# Tables of the papers at their own scale on one CUDA machine, as far as they come in 480 seconds:
#
#     LABELWISE_DATA=FOLDER OUT=FOLDER bash benchmarks/papers_device.sh
#
# FOLDER of the data holds mnist/, cifar10-*.parquet and parkinsons_updrs.csv.gz. Every step has a time limit; what is
# done by then is on the pages, and a step that was stopped goes on when this is run again on the same folder. Into $OUT
# come papers.tgz (pages, pictures, records) and papers.log. SECONDS_ALL (480) is the limit of all steps together.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH=src PYTHONUNBUFFERED=1 COLUMNS=120
OUT=${OUT:-papers-out}
limit=${SECONDS_ALL:-480}
where=${PAPERS:-papers-run} # short: it stands in the commands of the pages
mkdir -p "$OUT" "$where"
began=$(date +%s)
left() { echo $((limit - $(date +%s) + began)); }
paper() { # NAME SECONDS ARGUMENTS...: a table or figure, stopped after so many seconds
  local name=$1 seconds=$2 most
  shift 2
  most=$(left)
  [ "$seconds" -lt "$most" ] && most=$seconds
  [ "$most" -lt 5 ] && return
  timeout -k 5 "$most" python3 -m labelwise reproduce "$name" --scale "${SCALE:-paper}" --out "$where" "$@" \
    >>"$where/${name//\//-}.log" 2>&1
  echo "$name ended with $? after $(($(date +%s) - began)) s"
}
page() { # NAME ARGUMENTS...: the page of what has been run
  [ -f "$where/${1//\//-}.md" ] || timeout 60 python3 -m labelwise reproduce "$1" --scale "${SCALE:-paper}" \
    --out "$where" --page "${@:2}" >>"$where/${1//\//-}.log" 2>&1
}
{
  date
  python3 -c 'import torch, sys; print(sys.version.split()[0], torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())'

  # Times of the first query, alone on the machine.
  paper sabal/table3 120 --only CIFAR10

  # Several processes take turns on the GPU. All cores: the perceptron of figure 3 is quicker on them than on the GPU.
  rest=$(($(left) - 35))
  paper sabal/table2 $rest --only MNIST --processes 6 &
  paper dynamical/table2 $rest --processes 3 &
  paper dynamical/table3 $rest --processes 3 &
  paper ally/figure3 $rest --device cpu --processes 4 &
  wait

  page sabal/table2 --only MNIST &
  page dynamical/table2 &
  page dynamical/table3 &
  wait
  for log in "$where"/*.log; do
    echo "== $log"
    tail -n 30 "$log"
  done
  echo "all: $(($(date +%s) - began)) s"
} 2>&1 | tee "$OUT/papers.log"
tar czf "$OUT/papers.tgz" -C "$where" --exclude=models --exclude=cache .
ls -l "$OUT"
