# Settings of all jobs; sourced, not run. An environment variable overrides each value.
# WORK      output folder, on a file system that all nodes share
# CKPT      the checkpoint
# CORPUS    documents as a JSON lines or TSV file (each shard first counts its lines)
# QUERIES   queries
# DEPTH     documents per query and expert
# shellcheck shell=bash
MOEIR=${MOEIR:-moeir} WORK=${WORK:-$PWD/slurm} CKPT=${CKPT:-ckpt/came} CORPUS=${CORPUS:-corpus.jsonl}
QUERIES=${QUERIES:-dev-queries.jsonl} DEPTH=${DEPTH:-1000} DTYPE=${DTYPE:-auto} EXPERTS=${EXPERTS:-lexical local global}
part=${SLURM_ARRAY_TASK_ID:-0}-of-${SLURM_ARRAY_TASK_COUNT:-1} # counted from 0, as --shard counts
