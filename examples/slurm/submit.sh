#!/usr/bin/env bash
# Submit the whole chain: job arrays of SHARDS tasks for encode, index and search, then the merge. Each job waits for the one before.
#
#     SHARDS=16 WORK=/shared/came CKPT=ckpt/came CORPUS=corpus.jsonl QUERIES=dev.jsonl bash examples/slurm/submit.sh [SBATCH_OPTION...]
#
# SBATCH_OPTIONs are those of all jobs, such as --partition=gpu --account=ir --time=2-00:00:00. What a task gets:
# GPUS      of a task that encodes (default 1); 0: none, on clusters that have none or refuse the option
# CPUS, MEMORY   of any task (default 8 and 64G); empty: what the cluster gives by default
# LOGS      folder of a log for each task (default: WORK/logs)
set -euo pipefail
SBATCH=${SBATCH:-sbatch} SHARDS=${SHARDS:-8} GPUS=${GPUS-1} CPUS=${CPUS-8} MEMORY=${MEMORY-64G}
command -v "${SBATCH%% *}" >/dev/null || { echo "${SBATCH%% *}: no such command; run this where jobs are submitted, or set SBATCH" >&2 && exit 127; }
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
WORK=$(absolute "${WORK:-slurm}") CKPT=$(absolute "${CKPT:-ckpt/came}") CORPUS=$(absolute "${CORPUS:-corpus.jsonl}")
QUERIES=$(absolute "${QUERIES:-dev-queries.jsonl}") LOGS=$(absolute "${LOGS:-${WORK}/logs}")
export WORK CKPT CORPUS QUERIES
mkdir -p "$LOGS"
cd "$(dirname "${BASH_SOURCE[0]}")" # where settings.sh is
options=(--parsable "$@")
[ -z "$CPUS" ] || options+=("--cpus-per-task=$CPUS")
[ -z "$MEMORY" ] || options+=("--mem=$MEMORY")
gpus=()
[ "${GPUS:-0}" = 0 ] || gpus=("--gpus=$GPUS")
array=(--array="0-$((SHARDS - 1))" --output="$LOGS/%x-%a.log" --open-mode=append)
encoded=$($SBATCH "${options[@]}" "${gpus[@]}" "${array[@]}" encode.sbatch)
indexed=$($SBATCH "${options[@]}" "${array[@]}" --dependency="aftercorr:${encoded%%;*}" index.sbatch)
searched=$($SBATCH "${options[@]}" "${array[@]}" --dependency="aftercorr:${indexed%%;*}" search.sbatch)
$SBATCH "${options[@]}" --output="$LOGS/%x.log" --open-mode=append --dependency="afterok:${searched%%;*}" merge.sbatch
