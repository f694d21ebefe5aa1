#!/usr/bin/env bash
# Submit the whole chain: job arrays of SHARDS tasks for encode, index and search, then the merge. Each job waits for the one before.
#
#     SHARDS=16 WORK=/shared/came CKPT=ckpt/came CORPUS=corpus.jsonl QUERIES=dev.jsonl bash examples/slurm/submit.sh
set -euo pipefail
SBATCH=${SBATCH:-sbatch} SHARDS=${SHARDS:-8}
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
WORK=$(absolute "${WORK:-slurm}") CKPT=$(absolute "${CKPT:-ckpt/came}") CORPUS=$(absolute "${CORPUS:-corpus.jsonl}")
QUERIES=$(absolute "${QUERIES:-dev-queries.jsonl}")
export WORK CKPT CORPUS QUERIES
cd "$(dirname "${BASH_SOURCE[0]}")" # where settings.sh is
array=(--array="0-$((SHARDS - 1))")
encoded=$($SBATCH --parsable "${array[@]}" encode.sbatch)
indexed=$($SBATCH --parsable "${array[@]}" --dependency="aftercorr:$encoded" index.sbatch)
searched=$($SBATCH --parsable "${array[@]}" --dependency="aftercorr:$indexed" search.sbatch)
$SBATCH --parsable --dependency="afterok:$searched" merge.sbatch
