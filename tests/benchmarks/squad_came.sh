#!/usr/bin/env bash
# CAME on SQuAD: competitive against standardised only, against its experts trained alone, against BM25 and the weights as they are.
#
# Data:     SQuAD v1.1 paragraphs and questions in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels/{train,dev}.tsv.gz)
# Use:      tests/benchmarks/squad_came.sh SQUAD_FOLDER WORK_FOLDER MODEL_FOLDER
# Hardware: the defaults are cut to about an hour on 2 cores. On a GPU, the whole of it:
#           STEPS=5400 BATCH=32 NEGATIVES=7 LENGTH=256 TRAIN=87599 DEV=10570 tests/benchmarks/squad_came.sh …
# MODELS="dense splade" trains those only; several such calls may share a WORK_FOLDER.
# Stages whose output exists are skipped, interrupted stages continue.
set -euo pipefail
squad=$1 work=$2 model=$3
here=$(cd "$(dirname "$0")" && pwd)
STEPS=${STEPS:-300} BATCH=${BATCH:-4} NEGATIVES=${NEGATIVES:-2} LENGTH=${LENGTH:-64} QUERY_LENGTH=${QUERY_LENGTH:-32}
TRAIN=${TRAIN:-4000} DEV=${DEV:-1000} RATE=${RATE:-5e-5} DEPTH=${DEPTH:-100} FLOPS=${FLOPS:-5e-4}
mkdir -p "$work"
cd "$work"
corpus=$squad/corpus.jsonl.gz
[ -s data/dev.tsv ] || python "$here/sample_questions.py" "$squad" data "$TRAIN" "$DEV"

moeir index --corpus "$corpus" --engine bm25 --output idx/bm25
moeir search --index idx/bm25 --queries data/dev-queries.jsonl --depth "$DEPTH" --output runs/bm25.trec
[ -s "data/corpus-$LENGTH.jsonl" ] || python "$here/cut_corpus.py" "$corpus" "$model" "$LENGTH" "data/corpus-$LENGTH.jsonl"
moeir index --corpus "data/corpus-$LENGTH.jsonl" --engine bm25 --output idx/bm25-cut
moeir search --index idx/bm25-cut --queries data/dev-queries.jsonl --depth "$DEPTH" --output runs/bm25-cut.trec
moeir search --index idx/bm25 --queries data/train-queries.jsonl --depth 50 --output runs/bm25.train.trec
moeir mine-negatives --run runs/bm25.train.trec --qrels data/train.tsv --method band:first=0,last=50 --output data/train.jsonl

searched() { # NAME: encode, index and search the checkpoint of that name
  moeir encode --model "ckpt/$1" --corpus "$corpus" --output "enc/$1"
  moeir index --encodings "enc/$1" --output "idx/$1"
  moeir search --index "idx/$1" --queries data/dev-queries.jsonl --depth "$DEPTH" --output "runs/$1"
}
trained() { # NAME SEED ARCH OBJECTIVE
  moeir finetune --model "$model" --arch "$3" --objective "$4" --train data/train.jsonl --corpus "$corpus" \
    --queries data/train-queries.jsonl --query-length "$QUERY_LENGTH" --document-length "$LENGTH" --steps "$STEPS" --batch-size "$BATCH" \
    --negatives "$NEGATIVES" --learning-rate "$RATE" --seed "$2" --output "ckpt/$1"
  searched "$1"
}
flops=flops_query=$FLOPS,flops_document=$FLOPS,flops_ramp=$((STEPS / 2))
came=came:shared_layers=4,pooling=mean,normalise=true,global_scale=20

moeir init --model "$model" --arch dense --query-length "$QUERY_LENGTH" --document-length "$LENGTH" --output ckpt/minilm
searched minilm
for name in ${MODELS:-competitive-1 standardised-1 dense splade colbert competitive-2 standardised-2}; do
  case $name in
  competitive-*) trained "$name" "${name#*-}" $came "competitive:standardised=0.2,temperature=0.5,$flops" ;;
  standardised-*) trained "$name" "${name#*-}" $came "competitive:standardised=1.0,temperature=0.5,$flops" ;;
  dense) trained dense 1 dense:pooling=mean,normalise=true,scale=20 contrastive ;;
  splade) trained splade 1 splade "contrastive:$flops" ;;
  colbert) trained colbert 1 colbert contrastive ;;
  esac
done
if [ -e runs/dense/global.trec ] && [ -e runs/splade/lexical.trec ] && [ -e runs/colbert/local.trec ]; then
  moeir fuse --run runs/dense/global.trec --run runs/splade/lexical.trec --run runs/colbert/local.trec --depth "$DEPTH" --output runs/alone.trec
fi

bash "$here/squad_came_table.sh" "$work"
