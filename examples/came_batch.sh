#!/usr/bin/env bash
# CAME, the two readings of its batch, tried shortly before the whole recipe is run with one of them.
#
# Paper:    Cai et al. 2023, §4.4: "a batch size of 64" (NQ: 256), each positive with 7 negatives
# Data:     as came_msmarco.sh or came_nq.sh; with their WORK folder this script makes their BM25 negatives, or reuses them
# Recipe:   passages-BATCH: 64 passages, 8 queries x (1 + 7), 63 candidates a query; queries-BATCH: 64 queries, 511 candidates. (NQ: 32 and 256
#           queries.) Both read the same QUERIES training queries (default 250,000 of MS MARCO's 497,909, half of its first epoch), the first
#           fifth standardised, at the same rate: a reading with an eighth of the steps may want a higher one, RATES="5e-6 2e-5" tries it
# Hardware: as came_msmarco.sh, LAUNCH for several GPUs
# Hours:    two trainings of a tenth of came_msmarco.sh's first 1.5, two encodings 2, searches of test and held-out queries 2: 6; estimated
# Expected: no numbers in the paper. Go on with the better: BATCH=64 bash examples/came_msmarco.sh
#
#     bash examples/came_batch.sh               # COLLECTION=nq for NQ
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
QUERIES=${QUERIES:-250000} RATES=${RATES:-$RATE} READINGS=${READINGS:-passages-$BATCH queries-$((BATCH * (1 + NEGATIVES)))}

bm25
negatives bm25 "$BM25_DEPTH" bm25/bm25
rows=()
for reading in $READINGS; do
  for rate in $RATES; do
    name=$reading-$rate
    BATCH=${reading##*-} STEPS=$((QUERIES / ${reading##*-})) RATE=$rate \
      trained "$name" "$MODEL" "$WORK/data/bm25.jsonl" "$EPOCHS" "$(competitive)" "$(came)"
    searched "$name" validation "${tests[@]}"
    rows+=("$name/fused")
  done
done
say "the held-out queries, to choose by"
table validation "${rows[@]}"
tables "the batch" "${rows[@]}"
