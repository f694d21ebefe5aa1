#!/usr/bin/env bash
# CAME and unnamed positives: does competition help where negatives are answers that nobody has judged, as in MS MARCO?
#
# Declared: declarations/unnamed.yaml
# Rows:     prepare, the collection and BM25's negatives; start-SHARE-SEED; standardised-SHARE-SEED and competitive-SHARE-SEED for SHARE 0 50
# Sizes:    cores: MiniLM's first 3 layers, 60 + 80 steps of 8 queries x (1 + 3) passages of 64 tokens, seeds 1 to 6: 24 arms and 12 starts, about
#                  an hour and a half of one core with AMX, estimated
#           h200:  the whole model, 60 + 80 steps of 8 x (1 + 7), 256 tokens: an hour, estimated
# DATA_FOLDER holds medquad/.
set -euo pipefail
sizes=(LAYERS FIRST_STEPS STEPS BATCH NEGATIVES BAND LENGTH QUERY_LENGTH SHARED_LAYERS FEWEST TEST FIRST SECOND OTHERS SHARES TEMPERATURE DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
FIRST_STEPS=${FIRST_STEPS:-$(sized 60 60 2)} STEPS=${STEPS:-$(sized 80 80 2)} BATCH=${BATCH:-$(sized 8 8 2)} NEGATIVES=${NEGATIVES:-$(sized 3 7 2)}
LAYERS=${LAYERS:-$(sized 3 all 2)} BAND=${BAND:-$(sized first=0,last=8 first=0,last=20 first=0,last=20)}
LENGTH=${LENGTH:-$(sized 64 256 24)} QUERY_LENGTH=${QUERY_LENGTH:-32} SHARED_LAYERS=${SHARED_LAYERS:-$(sized 2 6 1)} FEWEST=${FEWEST:-$(sized 2 2 1)}
TEST=${TEST:-$(sized 400 400 3)} FIRST=${FIRST:-$(sized 160 160 4)} SECOND=${SECOND:-$(sized 640 640 4)} OTHERS=${OTHERS:-$(sized 4000 4000 3)}
SHARES=${SHARES:-$(sized "0 50" "0 50" 50)} SEEDS=${SEEDS:-$(sized "1 2 3 4 5 6" "1 2 3 4 5 6" 1)} TEMPERATURE=${TEMPERATURE:-0.2}
cut_model "$LAYERS"
corpora=([test]=data/corpus.jsonl) queries=([test]=data/test-queries.jsonl) qrels=([test]=data/test.tsv)

learned() { # NAME MODEL PART SHARE STEPS SEED SHARES [FLAGS]: objectives differ in SHARES alone
  $MOEIR finetune --model "$2" --train "data/$3-$4.jsonl" --corpus data/corpus.jsonl --queries "data/$3-queries.jsonl" --steps "$5" \
    --objective "competitive:$7,normalise_standardised=true,flops_query=5e-4,flops_document=5e-4" --batch-size "$BATCH" \
    --negatives "$NEGATIVES" --learning-rate 5e-5 --group-rate heads.local=5e-4 --group-rate towers.lexical=1e-4 --seed "$6" \
    --output "ckpt/$1" "${@:8}"
}

prepare() {
  local share part
  # shellcheck disable=SC2086
  [ -s data/test.tsv ] || $PYTHON "$here/unnamed.py" "$data/medquad" data --fewest "$FEWEST" --test "$TEST" --first "$FIRST" --second "$SECOND" \
    --others "$OTHERS" --shares $SHARES
  bm25 test
  for share in $SHARES; do # negatives from the pool of the share
    $MOEIR index --corpus "data/pool-$share.jsonl" --engine bm25 --output "idx/bm25/pool-$share"
    for part in first second; do
      $MOEIR search --index "idx/bm25/pool-$share" --queries "data/$part-queries.jsonl" --depth 50 --output "runs/bm25/$part-$share.trec"
      $MOEIR mine-negatives --run "runs/bm25/$part-$share.trec" --qrels "data/$part.tsv" --method "band:$BAND" --output "data/$part-$share.jsonl"
    done
  done
}

run_row() { # start|standardised|competitive-SHARE-SEED
  local arm share seed
  IFS=- read -r arm share seed <<<"$1"
  say "training $1"
  if [ "$arm" = start ]; then
    learned "$1" "$model" first "$share" "$FIRST_STEPS" "$seed" standardised=1 --query-length "$QUERY_LENGTH" --document-length "$LENGTH" \
      --arch "came:shared_layers=$SHARED_LAYERS,pooling=mean,normalise=true,global_scale=20,local_scale=0.5"
  else
    same_weights "start-$share-$seed" "ckpt/start-$share-$seed"
    learned "$1" "ckpt/start-$share-$seed" second "$share" "$STEPS" "$seed" \
      "$([ "$arm" = standardised ] && echo standardised=1 || echo "standardised=0,temperature=$TEMPERATURE")"
  fi
  searched "ckpt/$1" "$1" test
  if [ "$arm" = start ]; then KEEP=yes record "$1" "ckpt/$1" test; else record "$1" "ckpt/$1" test; fi
}

if [ $# = 0 ]; then
  set -- prepare
  for seed in $SEEDS; do
    for share in $SHARES; do set -- "$@" "start-$share-$seed" "standardised-$share-$seed" "competitive-$share-$seed"; done
  done
fi
run_rows "prepare, or start, standardised or competitive with -SHARE-SEED" 'prepare|(start|standardised|competitive)-[0-9]+-[0-9]+' "$@"
