#!/usr/bin/env bash
# Lexical queries without an encoder (splade:queries=tokens) beside those that one reads, on SQuAD and MedQuAD: nDCG@10, and milliseconds of a single query.
#
# Use:  tests/benchmarks/token_queries.sh DATA_FOLDER WORK_FOLDER MODEL_FOLDER
#       DATA_FOLDER holds squad/ and medquad/ in BEIR's layout. Finished stages are skipped, interrupted ones continue.
# Size: 400 steps of 8 questions x (1 + 3) passages of 72 tokens, 4,000 training questions, 3,000 development questions (MedQuAD has 726) over 3,000
#       passages: about 45 minutes of one core (AVX-512 BF16, no AMX)
set -euo pipefail
data=$(realpath "$1") model=$(realpath "$3")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
cd "$2"
STEPS=${STEPS:-400} BATCH=${BATCH:-8} NEGATIVES=${NEGATIVES:-3} LENGTH=${LENGTH:-72} QUERY_LENGTH=${QUERY_LENGTH:-32} TRAIN=${TRAIN:-4000} DEV=${DEV:-3000}
PASSAGES=${PASSAGES:-3000} RATE=${RATE:-1e-4} FLOPS=${FLOPS:-1.5e-3} SEEDS=${SEEDS:-1}
for set in squad medquad; do
  mkdir -p "$set"
  [ -s "$set/dev.tsv" ] || python "$here/sample_questions.py" "$data/$set" "$set" "$TRAIN" "$DEV"
  [ -s "$set/pool.jsonl" ] || python "$here/sample_corpus.py" "$data/$set/corpus.jsonl.gz" "$set/dev.tsv" "$set/pool.jsonl" "$PASSAGES"
  moeir index --corpus "$data/$set/corpus.jsonl.gz" --engine bm25 --output "$set/bm25-whole"
  moeir search --index "$set/bm25-whole" --queries "$set/train-queries.jsonl" --depth 50 --output "$set/runs/bm25-train.trec"
  moeir mine-negatives --run "$set/runs/bm25-train.trec" --qrels "$set/train.tsv" --method band:first=0,last=10 --output "$set/train.jsonl"
  moeir index --corpus "$set/pool.jsonl" --engine bm25 --output "$set/bm25"
  moeir search --index "$set/bm25" --queries "$set/dev-queries.jsonl" --output "$set/runs/bm25.trec"
  runs=(--run "$set/runs/bm25.trec")
  for seed in $SEEDS; do
    for queries in encoder tokens; do
      row=$queries-$seed
      moeir finetune --model "$model" --arch "splade:queries=$queries" --objective "contrastive:flops_query=$FLOPS,flops_document=$FLOPS" \
        --train "$set/train.jsonl" --corpus "$data/$set/corpus.jsonl.gz" --queries "$set/train-queries.jsonl" --query-length "$QUERY_LENGTH" \
        --document-length "$LENGTH" --steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$RATE" --seed "$seed" \
        --output "$set/ckpt-$row"
      moeir encode --model "$set/ckpt-$row" --corpus "$set/pool.jsonl" --output "$set/enc-$row"
      moeir index --encodings "$set/enc-$row" --output "$set/idx-$row"
      moeir search --index "$set/idx-$row" --queries "$set/dev-queries.jsonl" --batch-size 1 --output "$set/runs/$row.trec"
      runs+=(--run "$set/runs/$row.trec")
    done
  done
  moeir evaluate "${runs[@]}" --qrels "$set/dev.tsv" --measure nDCG@10 --measure RR@10 --measure R@100
done
