#!/usr/bin/env bash
# Which experts does a query need? Latency against quality of a router that reads the query, on two collections.
#
# Declared: declarations/router.md
# Rows:     docstrings (torch, as came_fork.sh has them) and squad: a standardised training, a search of its experts and BM25 for the queries that
#           trained and those that test, and the curve, RESULTS/router-ROW.tsv
# Sizes:    cores: 300 steps of 8 x (1 + 7), 96 tokens, an hour or two of one core each; h200: 1,200 steps of 32 x (1 + 7), 256 tokens, an hour, estimated
# MILLISECONDS of each expert and query are those of the machine that serves: tests/benchmarks/query_latency.py measures them.
# DATA_FOLDER holds squad/.
set -euo pipefail
sizes=(STEPS BATCH NEGATIVES LENGTH QUERY_LENGTH SHARED_LAYERS LIBRARY TESTED TRAINED TITLES DEV_TITLES OTHERS DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
STEPS=${STEPS:-$(sized 300 1200 2)} BATCH=${BATCH:-$(sized 8 32 2)} NEGATIVES=${NEGATIVES:-$(sized 7 7 2)} LENGTH=${LENGTH:-$(sized 96 256 24)}
QUERY_LENGTH=${QUERY_LENGTH:-32} SHARED_LAYERS=${SHARED_LAYERS:-$(sized 3 6 1)} LIBRARY=${LIBRARY:-$(sized torch torch multiprocessing)}
TESTED=${TESTED:-$(sized 4500 4500 6)} TRAINED=${TRAINED:-$(sized 6000 6000 8)} TITLES=${TITLES:-$(sized 12 12 2)} DEV_TITLES=${DEV_TITLES:-$(sized 4 4 1)}
OTHERS=${OTHERS:-$(sized 3000 3000 3)} MILLISECONDS=${MILLISECONDS:-"lexical=1 local=6 global=1 bm25=1"} BUDGETS=${BUDGETS:-"1 1.5 2 3"}

collection() { # docstrings|squad: DATA/{corpus,first-queries,test-queries}.jsonl, {first,test}.tsv
  local folder
  [ -s "data/$1/test.tsv" ] && return
  if [ "$1" = squad ]; then
    $PYTHON "$here/articles.py" "$data/squad" data/squad --test "$TITLES" --dev "$DEV_TITLES" --others "$OTHERS"
  else
    folder=$($PYTHON -c 'import importlib, sys; print(importlib.import_module(sys.argv[1]).__path__[0])' "$LIBRARY")
    [ -s data/sources/test.qrels ] || $PYTHON "$here/../../../examples/docstrings.py" data/sources "$folder"
    $PYTHON "$here/modules.py" data/sources data/docstrings --test "$TESTED" --dev 6 --first "$TRAINED" --second 2
  fi
}

run_row() { # docstrings|squad
  local at=data/$1 of part milliseconds=()
  of=runs/$1
  collection "$1"
  say "$1: a standardised training on BM25's negatives"
  $MOEIR index --corpus "$at/corpus.jsonl" --keep-empty --engine bm25 --output "idx/$1/bm25"
  for part in first test; do
    $MOEIR search --index "idx/$1/bm25" --queries "$at/$part-queries.jsonl" --depth "$DEPTH" --output "$of/bm25-$part.trec"
  done
  $MOEIR mine-negatives --run "$of/bm25-first.trec" --qrels "$at/first.tsv" --method band:first=0,last=50 --output "$at/first.jsonl"
  $MOEIR finetune --model "$model" --train "$at/first.jsonl" --corpus "$at/corpus.jsonl" --queries "$at/first-queries.jsonl" --steps "$STEPS" \
    --objective contrastive:flops_query=1.5e-3,flops_document=1.5e-3 --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate 5e-5 \
    --group-rate heads.local=5e-4 --query-length "$QUERY_LENGTH" --document-length "$LENGTH" \
    --arch "came:shared_layers=$SHARED_LAYERS,pooling=mean,normalise=true,global_scale=20,local_scale=0.5" --output "ckpt/$1"
  $MOEIR encode --model "ckpt/$1" --corpus "$at/corpus.jsonl" --keep-empty --output "enc/$1"
  $MOEIR index --encodings "enc/$1" --output "idx/$1/came"
  for part in first test; do
    $MOEIR search --index "idx/$1/came" --queries "$at/$part-queries.jsonl" --depth "$DEPTH" --output "$of/$part"
    mkdir -p "$of/all-$part"
    for expert in lexical local global; do ln -sf "../$part/$expert.trec" "$of/all-$part/$expert.trec"; done
    ln -sf "../bm25-$part.trec" "$of/all-$part/bm25.trec"
  done
  for one in $MILLISECONDS; do milliseconds+=(--milliseconds "$one"); done
  mkdir -p "$RESULTS"
  # shellcheck disable=SC2086
  $PYTHON "$here/router.py" "ckpt/$1" "$at/first-queries.jsonl=$at/first.tsv=$of/all-first" "$at/test-queries.jsonl=$at/test.tsv=$of/all-test" \
    "${milliseconds[@]}" --budgets $BUDGETS > "router-$1.partial"
  mv "router-$1.partial" "${records%.jsonl.gz}-$1.tsv"
}

[ $# != 0 ] || set -- docstrings squad
for one in "$@"; do
  case $one in docstrings | squad) ;; *) echo "$one: no such row; expected docstrings or squad" >&2 && exit 2 ;; esac
done
for one in "$@"; do
  if [ -e "${records%.jsonl.gz}-$one.tsv" ]; then say "$one is recorded: ${records%.jsonl.gz}-$one.tsv"; else run_row "$one"; fi
done
