# What the jobs share; sourced, not run. Every value can be given from outside.
# WORK      where everything is written, seen by all nodes
# CKPT      the checkpoint
# CORPUS    documents as JSON lines or TSV, a file: shards count its lines first
# QUERIES   queries
# DEPTH     documents per query and expert
# shellcheck shell=bash
MOEIR=${MOEIR:-moeir} WORK=${WORK:-$PWD/slurm} CKPT=${CKPT:-ckpt/came} CORPUS=${CORPUS:-corpus.jsonl}
QUERIES=${QUERIES:-dev-queries.jsonl} DEPTH=${DEPTH:-1000} DTYPE=${DTYPE:-auto} EXPERTS=${EXPERTS:-lexical local global}
part=${SLURM_ARRAY_TASK_ID:-0}-of-${SLURM_ARRAY_TASK_COUNT:-1} # counted from 0, as --shard counts
