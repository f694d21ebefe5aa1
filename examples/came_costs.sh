#!/usr/bin/env bash
# CAME, §3.5: latency and size of each expert and of all three, and of BM25.
#
# Paper:    Cai et al. 2023, §3.5 ("Runtime Overhead"), which has no numbers
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   came-bm25's index, searched exactly for the first 50 queries of TREC DL 2019 or of NQ's test questions (COUNT), one at a time
#           (BATCH_SIZE=1), by each expert alone, by all three one after the other (fused), and by BM25
# Hardware: as came_msmarco.sh, and it is what is measured; the index has to be kept (KEEP=yes)
# Hours:    beyond the first training of came_msmarco.sh one, NQ four: the local expert reads 175 GB (NQ 700 GB) of token vectors for
#           every query; estimated
# Expected: no numbers. The paper expects the local expert to cost most, and the three together no more than it if they search in parallel
#
#     bash examples/came_costs.sh               # COLLECTION=nq; THREADS=1 for one core
set -euo pipefail
KEEP=yes
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
source=${queries[${tests[-1]}]} runs=()
asked=$WORK/costs-queries.${source##*.}
if [ ! -e "$asked" ]; then sed -n "1,${COUNT:-50}p" "$source" >"$asked"; fi

timed() { # NAME INDEX FLAGS...: runs/costs/NAME, the queries one at a time
  local name=$1 index=$2
  shift 2
  $MOEIR search --index "$WORK/idx/$index" --queries "$asked" --depth "$DEPTH" --batch-size "${BATCH_SIZE:-1}" \
    ${THREADS:+--threads "$THREADS"} "$@" --output "$WORK/runs/costs/$name"
  runs+=("$WORK/runs/costs/$name")
}

came_bm25
timed bm25 bm25
for expert in "${experts[@]}"; do timed "$expert" came-bm25 --expert "$expert"; done
timed fused came-bm25
say "§3.5, latency, size and memory, $COLLECTION"
$PYTHON "$examples/costs.py" "${runs[@]}"
