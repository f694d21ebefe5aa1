#!/usr/bin/env bash
# LCE's tables on small real data: rerankers trained with bce and lce on each retriever's documents, on each retriever's list (Figure 2),
# and the size of a group (Figure 1). bce has one negative of each query; bce7 is trained on the queries and pairs of lce, with 7.
#
# Data:     RUNS_FOLDER with NAME.train.trec and NAME.test.trec for every retriever NAME, lists of the same queries; CORPUS, QUERIES (training and
#           test queries in one file), TRAIN_QRELS, TEST_QRELS
# Model:    MODEL_FOLDER holds an encoder's weights, which get a random head, or is a checkpoint of a cross-encoder to continue from
# Use:      tests/benchmarks/lce_tables.sh CORPUS QUERIES TRAIN_QRELS TEST_QRELS RUNS_FOLDER WORK_FOLDER MODEL_FOLDER RETRIEVER...
#           ROW=train   trains and reranks what is missing; ROW=tables prints; both if it is not set
# Settings: SEEDS (1 2), STEPS (300) of PAIRS (8) pairs, GROUP_SIZES (2 4 8) on the first retriever; DEPTH documents are mined and reranked (50)
# Hardware: the defaults are cut to 2 cores: about 300 x 8 pairs of 160 tokens a training, a few minutes with MiniLM's six layers
# Stages whose output exists are skipped, interrupted stages continue.
set -euo pipefail
read -r corpus queries train test runs work model < <(realpath -m "${@:1:7}" | paste -sd " ")
shift 7
SEEDS=${SEEDS:-1 2} STEPS=${STEPS:-300} PAIRS=${PAIRS:-8} GROUP_SIZES=${GROUP_SIZES-2 4 8} DEPTH=${DEPTH:-50} RATE=${RATE:-3e-5} MEASURE=${MEASURE:-nDCG@10}
QUERY_LENGTH=${QUERY_LENGTH:-48} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-160} MOEIR=${MOEIR:-moeir} ROW=${ROW:-train tables}
mkdir -p "$work"
cd "$work"

begun=(--arch cross-encoder:fields=title+text --query-length "$QUERY_LENGTH" --document-length "$DOCUMENT_LENGTH")
[ ! -e "$model/moeir.json" ] || begun=()

learned() { # NAME OBJECTIVE RETRIEVER SEED QUERIES NEGATIVES: every training reads as many pairs as the others
  $MOEIR finetune --model "$model" "${begun[@]}" --objective "$2" --train "data/$3.jsonl" --corpus "$corpus" --queries "$queries" \
    --batch-size "$5" --negatives "$6" --steps "$STEPS" --learning-rate "$RATE" --seed "$4" --cache tokens --output "ckpt/$1"
}

reranked() { # MODEL RETRIEVER...: the first documents of their lists; a pair that stands in several is scored once
  local name=$1 lists=() pool
  shift
  for list in "$@"; do lists+=(--run "tops/$list.trec"); done
  pool=tops/$1.trec
  if [ $# -gt 1 ]; then
    pool=pools/$name.trec
    $MOEIR fuse "${lists[@]}" --method rrf --depth $((DEPTH * $#)) --output "$pool"
  fi
  $MOEIR rerank --model "ckpt/$name" --run "$pool" --queries "$queries" --corpus "$corpus" --depth $((DEPTH * $#)) --output "pairs/$name.trec"
  for list in "$@"; do
    mkdir -p "reranked/$list"
    awk 'NR == FNR { held[$1, $3]; next } ($1, $3) in held { rank = $1 == query ? rank + 1 : 1; query = $1; $4 = rank; print }' \
      "tops/$list.trec" "pairs/$name.trec" > "reranked/$list/$name.trec"
  done
}

first=$1 objectives="bce bce7 lce"
if [[ $ROW == *train* ]]; then
  mkdir -p tops
  for list in "$@"; do
    awk -v depth="$DEPTH" '$4 <= depth' "$runs/$list.test.trec" > "tops/.$list.$$"
    mv "tops/.$list.$$" "tops/$list.trec" # in one step: another call may be reading it
  done
  for retriever in "$@"; do
    $MOEIR mine-negatives --run "$runs/$retriever.train.trec" --qrels "$train" --method "band:first=0,last=$DEPTH" --output "data/$retriever.jsonl"
    for seed in $SEEDS; do
      learned "$retriever-bce-$seed" bce "$retriever" "$seed" $((PAIRS / 2)) 1
      learned "$retriever-bce7-$seed" bce:positive_weight=7 "$retriever" "$seed" $((PAIRS / 8)) 7
      learned "$retriever-lce-$seed" lce "$retriever" "$seed" $((PAIRS / 8)) 7
      for objective in $objectives; do reranked "$retriever-$objective-$seed" "$@"; done
    done
  done
  for seed in $SEEDS; do
    for size in $GROUP_SIZES; do
      learned "group-$size-$seed" lce "$first" "$seed" $((PAIRS / size)) $((size - 1))
      reranked "group-$size-$seed" "$first"
    done
  done
fi
if [[ $ROW == *tables* ]]; then
  for list in "$@"; do
    ln -sfn "$runs/$list.test.trec" "reranked/$list/$list.trec"
    for seed in $SEEDS; do
      echo "the list of $list, seed $seed; p: two-sided paired t-test against the list as it was"
      rows=(--run "reranked/$list/$list.trec")
      for retriever in "$@"; do for objective in $objectives; do rows+=(--run "reranked/$list/$retriever-$objective-$seed.trec"); done; done
      $MOEIR evaluate "${rows[@]}" --qrels "$test" --measure "$MEASURE"
      for arm in bce bce7; do
        echo "lce against $arm, trained and tested on $list, seed $seed"
        $MOEIR evaluate --run "reranked/$list/$list-$arm-$seed.trec" --run "reranked/$list/$list-lce-$seed.trec" --qrels "$test" --measure "$MEASURE"
      done
    done
  done
  for seed in $SEEDS; do
    echo "the size of a group on $first, seed $seed"
    rows=()
    for size in $GROUP_SIZES; do rows+=(--run "reranked/$first/group-$size-$seed.trec"); done
    $MOEIR evaluate "${rows[@]}" --qrels "$test" --measure "$MEASURE"
  done
fi
