#!/usr/bin/env bash
# CAME: is the mixture better than its parts, and than three models?
#
# Declared: declarations/came_parts.yaml
# Rows:     prepare, the data and BM25's negatives; came-SEED, one mixture; models-SEED, its three experts as three models, each by itself
# Each is trained twice: on BM25's negatives with the first half of the questions, then with the other half on negatives of its own lists.
# Sizes:    cores: 2 x 385 steps of 8 queries x (1 + 3) passages of 96 tokens: about 45 minutes for came-SEED, 75 for models-SEED, on one core
#                  (AVX-512 BF16, no AMX); 4 hours in all
#           h200:  2 x 4,000 steps of 32 x (1 + 7), 256 tokens, 10 shared and 2 private layers (MODEL_FOLDER of BERT base), on SQuAD's training part,
#                  too, seeds 1 to 5: about 14 hours, estimated
set -euo pipefail
sizes=(STEPS BATCH NEGATIVES SHARED_LAYERS LENGTH QUERY_LENGTH OTHERS TITLES DEV_TITLES DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
STEPS=${STEPS:-$(sized 385 4000 2)} BATCH=${BATCH:-$(sized 8 32 2)} NEGATIVES=${NEGATIVES:-$(sized 3 7 2)} SHARED_LAYERS=${SHARED_LAYERS:-$(sized 4 10 1)}
LENGTH=${LENGTH:-$(sized 96 256 24)} QUERY_LENGTH=${QUERY_LENGTH:-32} OTHERS=${OTHERS:-$(sized 3000 all 3)} SEEDS=${SEEDS:-$(sized "1 2" "1 2 3 4 5" 1)}
TITLES=${TITLES:-$(sized 12 12 1)} DEV_TITLES=${DEV_TITLES:-$(sized 4 4 1)} EVERY=${EVERY:-$(sized 77 400 2)}
corpora=([test]=data/corpus.jsonl [dev]=data/corpus.jsonl [second]=data/corpus.jsonl)
queries=([test]=data/test-queries.jsonl [dev]=data/dev-queries.jsonl [second]=data/second-queries.jsonl)
qrels=([test]=data/test.tsv [dev]=data/dev.tsv)
watched+=(--evaluate-every "$EVERY")
flops=flops_query=5e-4,flops_document=5e-4 # beside a lexical loss of weight 1/3 in the mixture: 1.5e-3 beside the whole loss of splade
declare -A spec=([global]=dense:pooling=mean,normalise=true,scale=20 [lexical]=splade [local]=colbert:scale=0.5)
declare -A rates=([global]="--learning-rate 5e-5" [lexical]="--learning-rate 1e-4" [local]="--learning-rate 5e-5 --group-rate heads.local=5e-4")
declare -A objective=([global]=contrastive [lexical]=contrastive:flops_query=1.5e-3,flops_document=1.5e-3 [local]=contrastive)

prepare() {
  articles
  bm25 test dev
  $MOEIR search --index "idx/bm25/$(shelf test)" --queries data/first-queries.jsonl --depth 50 --output runs/bm25/first.trec
  $MOEIR mine-negatives --run runs/bm25/first.trec --qrels data/first.tsv --method band:first=0,last=50 --output data/first.jsonl
}

learned() { # NAME MODEL EXAMPLES PART SEED OBJECTIVE [FLAGS]
  local output=ckpt/$1 start=$2 examples=$3 part=$4 seed=$5 objective=$6
  shift 6
  $MOEIR finetune --model "$start" --train "$examples" --corpus "${corpora[test]}" --queries "data/$part-queries.jsonl" --steps "$STEPS" \
    --objective "$objective" --batch-size "$BATCH" --negatives "$NEGATIVES" --attention-dropout 0 --seed "$seed" --output "$output" \
    "${watched[@]}" "$@"
}

learned_twice() { # NAME SEED ARCH FIRST_OBJECTIVE SECOND_OBJECTIVE RUN... -- FLAGS: ckpt/NAME
  local output=$1 seed=$2 arch=$3 first=$4 second=$5 lists=()
  shift 5
  while [ "$1" != -- ]; do
    lists+=(--run "runs/$output-first/second/$1.trec")
    shift
  done
  shift
  say "training $output, first"
  learned "$output-first" "$model" data/first.jsonl first "$seed" "$first" --arch "$arch" --query-length "$QUERY_LENGTH" --document-length "$LENGTH" "$@"
  searched "ckpt/$output-first" "$output-first" second
  $MOEIR mine-negatives "${lists[@]}" --qrels data/second.tsv --method band:first=0,last=50 --output "data/$output.jsonl"
  say "training $output, second"
  learned "$output" "ckpt/$output-first" "data/$output.jsonl" second "$seed" "$second" "$@"
}

came() { # SEED
  local competitive=competitive:temperature=0.2,normalise_standardised=true,$flops
  learned_twice "came-$1" "$1" "came:shared_layers=$SHARED_LAYERS,pooling=mean,normalise=true,global_scale=20,local_scale=0.5" \
    "$competitive,standardised=0.2" "$competitive,standardised=0" lexical local global -- \
    --learning-rate 5e-5 --group-rate heads.local=5e-4 --group-rate towers.lexical=1e-4
  searched "ckpt/came-$1" "came-$1" test dev
  calibrated "came-$1" lexical local global
  record "came-$1" "first=ckpt/came-$1-first,second=ckpt/came-$1" test dev
}

models() { # SEED: the runs of three models as the runs of one row
  local expert set row=models-$1 trainings=""
  for expert in lexical local global; do
    learned_twice "$expert-$1" "$1" "${spec[$expert]}" "${objective[$expert]}" "${objective[$expert]}" $expert -- ${rates[$expert]}
    searched "ckpt/$expert-$1" "$expert-$1" test dev
    trainings+=,$expert-first=ckpt/$expert-$1-first,$expert=ckpt/$expert-$1
    for set in test dev; do
      mkdir -p "runs/$row/$set"
      cp "runs/$expert-$1/$set/$expert.trec" "runs/$row/$set/$expert.trec"
    done
  done
  for set in test dev; do
    $MOEIR fuse --run "runs/$row/$set/lexical.trec" --run "runs/$row/$set/local.trec" --run "runs/$row/$set/global.trec" --method came-sum \
      --depth "$DEPTH" --output "fused/$row/$set/fused.trec"
  done
  calibrated "$row" lexical local global
  record "$row" "${trainings#,}" test dev
}

run_row() { "${1%-*}" "${1##*-}"; }

if [ $# = 0 ]; then
  set -- prepare
  for seed in $SEEDS; do set -- "$@" "came-$seed" "models-$seed"; done
fi
run_rows "prepare, came-SEED or models-SEED" 'prepare|(came|models)-[0-9]+' "$@"
