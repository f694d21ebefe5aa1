#!/usr/bin/env bash
# LCE: the contrastive loss over a query's own documents against binary cross-entropy, at equal queries and at equal pairs.
#
# Declared: declarations/lce.yaml
# Rows:     prepare, samples, the lists of a dense retriever, their negatives, and the common start; lce-SEED, bce7-SEED, bce-SEED, bce2-SEED
# Sizes:    cores: 640 steps of at most 16 pairs of 128 tokens: about 15 minutes a row on one core (AVX-512 BF16, no AMX); 3.5 hours in all
#           h200:  4,000 steps of at most 256 pairs of 256 tokens (MODEL_FOLDER of BERT base), seeds 1 to 4: about 6 hours, estimated
set -euo pipefail
sizes=(STEPS PAIRS START_STEPS LENGTH TRAIN TESTED WATCHED POOL RERANKED START_BAND DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
STEPS=${STEPS:-$(sized 640 4000 2)} PAIRS=${PAIRS:-$(sized 16 256 16)} START_STEPS=${START_STEPS:-$(sized 300 2000 1)} LENGTH=${LENGTH:-$(sized 128 256 24)}
TRAIN=${TRAIN:-$(sized 3000 90000 12)} TESTED=${TESTED:-$(sized 700 10570 3)} POOL=${POOL:-$(sized 5200 20958 12)} SEEDS=${SEEDS:-$(sized "1 2 3" "1 2 3 4" 1)}
WATCHED=${WATCHED:-$(sized 60 300 2)} RERANKED=${RERANKED:-$(sized 20 100 4)} EVERY=${EVERY:-$(sized 128 1000 2)} START_BAND=${START_BAND:-$(sized first=50,last=150 first=50,last=150 first=2,last=9)}
sets=(squad medquad)
for set in "${sets[@]}"; do
  corpora[$set]=data/$set/pool.jsonl queries[$set]=data/$set/test-queries.jsonl qrels[$set]=data/$set/test.tsv
done
both=() # flags of a training on both sets; EXAMPLES is the file of each
examples() { # FILE
  both=()
  for set in "${sets[@]}"; do both+=(--train "data/$set/$1" --sampling-rate 1 --corpus "${corpora[$set]}" --queries "data/$set/train-queries.jsonl"); done
}

prepare() {
  local set part
  $MOEIR init --model "$model" --arch dense:pooling=mean,normalise=true --query-length 64 --document-length "$LENGTH" --output ckpt/dense
  for set in "${sets[@]}"; do
    if [ ! -s "data/$set/pool.jsonl" ]; then
      $PYTHON "$here/../sample_questions.py" "$data/$set" "data/$set" "$TRAIN" $((TESTED + WATCHED))
      divided "data/$set/dev-queries.jsonl" "data/$set/dev.tsv" "$WATCHED" "data/$set/watched" "data/$set/test"
      cat "data/$set/"{train,test,watched}.tsv >"data/$set/judged.tsv"
      $PYTHON "$here/../sample_corpus.py" "$data/$set/corpus.jsonl.gz" "data/$set/judged.tsv" "data/$set/pool.jsonl" "$POOL"
    fi
    searched ckpt/dense dense "$set"
    for part in train watched; do
      $MOEIR search --index "idx/dense/$(shelf "$set")" --queries "data/$set/$part-queries.jsonl" --depth "$DEPTH" --output "runs/dense-$part/$set.trec"
    done
    $MOEIR mine-negatives --run "runs/dense-train/$set.trec" --qrels "data/$set/train.tsv" --method "band:first=0,last=$RERANKED" --output "data/$set/own.jsonl"
    $MOEIR index --corpus "${corpora[$set]}" --engine bm25 --output "idx/bm25/$set"
    $MOEIR search --index "idx/bm25/$set" --queries "data/$set/train-queries.jsonl" --depth 200 --output "runs/bm25-train/$set.trec"
    $MOEIR mine-negatives --run "runs/bm25-train/$set.trec" --qrels "data/$set/train.tsv" --method "band:$START_BAND" --output "data/$set/start.jsonl"
  done
  recorded dense || KEEP=yes record dense - "${sets[@]}"
  cat data/{squad,medquad}/watched-queries.jsonl >data/watched-queries.jsonl
  cat data/{squad,medquad}/watched.tsv >data/watched.tsv
  cat data/{squad,medquad}/pool.jsonl >data/watched.jsonl
  awk '$4 <= 10' runs/dense-watched/{squad,medquad}.trec >data/watched.trec
  say "the common start: pairs from ranks of BM25 that no list's first documents have taught"
  examples start.jsonl
  $MOEIR finetune --model "$model" --arch cross-encoder:fields=title+text --objective lce "${both[@]}" --query-length $((LENGTH / 4)) \
    --document-length "$LENGTH" --batch-size 2 --negatives 7 --steps "$START_STEPS" --learning-rate 1e-4 --group-rate head=1e-3 --seed 1 \
    --cache tokens --output ckpt/ranked
  # lce leaves a pair's score free up to a shift for each query; so that bce does not have to learn that first, the start has learned it
  $MOEIR finetune --model ckpt/ranked --objective bce:positive_weight=7 "${both[@]}" --batch-size 2 --negatives 7 --steps $((START_STEPS / 3 + 1)) \
    --learning-rate 1e-4 --group-rate head=1e-3 --seed 2 --cache tokens --output ckpt/start
  if recorded start; then same_weights start ckpt/start; else KEEP=yes record start ckpt/start; fi
}

row() { # ARM SEED
  local objective=bce batch negatives
  case $1 in
  lce) objective=lce batch=$((PAIRS / 8)) negatives=7 ;;
  bce7) objective=bce:positive_weight=7 batch=$((PAIRS / 8)) negatives=7 ;;
  bce) batch=$((PAIRS / 2)) negatives=1 ;;
  bce2) batch=$((PAIRS / 8)) negatives=1 ;;
  esac
  same_weights start ckpt/start
  say "training $1, seed $2"
  examples own.jsonl
  $MOEIR finetune --model ckpt/start --objective "$objective" "${both[@]}" --batch-size "$batch" --negatives "$negatives" --steps "$STEPS" \
    --learning-rate 3e-5 --attention-dropout 0 --seed "$2" --cache tokens --dev-queries data/watched-queries.jsonl --dev-qrels data/watched.tsv \
    --dev-corpus data/watched.jsonl --dev-run data/watched.trec --evaluate-every "$EVERY" --keep last --output "ckpt/$1-$2"
  for set in "${sets[@]}"; do
    $MOEIR rerank --model "ckpt/$1-$2" --run "runs/dense/$set/global.trec" --queries "${queries[$set]}" --corpus "${corpora[$set]}" --depth "$RERANKED" \
      --output "runs/$1-$2/$set/reranked.trec"
  done
  record "$1-$2" "ckpt/$1-$2" "${sets[@]}"
}

run_row() { row "${1%-*}" "${1##*-}"; }

if [ $# = 0 ]; then
  set -- prepare
  for seed in $SEEDS; do set -- "$@" "lce-$seed" "bce7-$seed" "bce-$seed" "bce2-$seed"; done
fi
run_rows "prepare, or lce, bce7, bce or bce2 with -SEED" 'prepare|(lce|bce7|bce|bce2)-[0-9]+' "$@"
