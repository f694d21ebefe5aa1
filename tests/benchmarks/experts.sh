#!/usr/bin/env bash
# Small real runs of the mixtures: MoTE against siamese and separate encoders, TASER's routers, SB-MoE's gates and numbers of experts.
#
# Data:     a collection in BEIR form with train and dev questions (corpus.jsonl.gz, queries.jsonl.gz, qrels/{train,dev}.tsv.gz)
# Use:      tests/benchmarks/experts.sh DATA_FOLDER WORK_FOLDER MODEL_FOLDER ROW...      then experts_table.sh WORK_FOLDER PREFIX
# Rows:     mote-{mote,siamese,separate}-SEED   taser-{shared,role,sequence,token,separate}-EXPERTS-SEED[-balanced]
#           sbmoe-{plain,random,learned}-EXPERTS-SEED[-balanced]; a learned one is searched as top-1 and as all
# Hardware: the defaults are cut to 2 cores: about 4 minutes a row on one of them. Several calls may share a WORK_FOLDER once data/ is there.
# Every stage is skipped if it is there already, and continued if it was interrupted.
set -euo pipefail
source=$1 work=$2 model=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
STEPS=${STEPS:-500} BATCH=${BATCH:-4} NEGATIVES=${NEGATIVES:-3} LENGTH=${LENGTH:-48} QUERY_LENGTH=${QUERY_LENGTH:-24}
TRAIN=${TRAIN:-4000} DEV=${DEV:-1000} PASSAGES=${PASSAGES:-3000} RATE=${RATE:-3e-5} DEPTH=${DEPTH:-100} FLOPS=${FLOPS:-5e-4}
GATED_RATE=${GATED_RATE:-1e-3} BACKBONE_RATE=${BACKBONE_RATE:-1e-5} BALANCE=${BALANCE:-0.01}
mkdir -p "$work"
cd "$work"
if [ ! -s data/train.jsonl ]; then
  [ -s data/dev.tsv ] || python "$here/sample_squad.py" "$source" data "$TRAIN" "$DEV"
  [ -s data/corpus.jsonl ] || python "$here/sample_corpus.py" "$source/corpus.jsonl.gz" data/dev.tsv data/corpus.jsonl "$PASSAGES"
  moeir index --corpus "$source/corpus.jsonl.gz" --engine bm25 --output idx/bm25-whole
  moeir search --index idx/bm25-whole --queries data/train-queries.jsonl --depth 50 --output runs/train.trec
  moeir mine-negatives --run runs/train.trec --qrels data/train.tsv --method band:first=0,last=10 --output data/train.jsonl
  moeir index --corpus data/corpus.jsonl --engine bm25 --output idx/bm25
  moeir search --index idx/bm25 --queries data/dev-queries.jsonl --depth "$DEPTH" --output runs/bm25.trec
fi

searched() { # CHECKPOINT RUN
  moeir encode --model "$1" --corpus data/corpus.jsonl --output "enc/$2"
  moeir index --encodings "enc/$2" --output "idx/$2"
  moeir search --index "idx/$2" --queries data/dev-queries.jsonl --depth "$DEPTH" --output "runs/$2"
  rm -rf "enc/$2"
}
trained() { # NAME SEED ARCH OBJECTIVE [MORE FLAGS]
  moeir finetune --model "$model" --arch "$3" --objective "$4" --train data/train.jsonl --corpus "$source/corpus.jsonl.gz" \
    --queries data/train-queries.jsonl --query-length "$QUERY_LENGTH" --document-length "$LENGTH" --seed "$2" --output "ckpt/$1" "${@:5}"
}
cosine=pooling=mean,normalise=true
for row in "$@"; do
  IFS=- read -r family kind experts seed balanced <<<"$row"
  balance=load_balance=$([ "${balanced:-}" = balanced ] && echo "$BALANCE" || echo 0)
  plain=(--steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$RATE")
  gated=(--steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$BACKBONE_RATE" --schedule constant --warmup 0)
  case $family-$kind in
  mote-*)
    seed=$experts flops=flops_query=$FLOPS,flops_document=$FLOPS,flops_ramp=$((STEPS / 2))
    trained "$row" "$seed" "mote:encoders=$kind,$cosine,global_scale=20" "contrastive:$flops" "${plain[@]}" ;;
  taser-separate) trained "$row" "$seed" "dense:encoders=separate,$cosine,scale=20" contrastive "${plain[@]}" ;;
  taser-*) trained "$row" "$seed" "taser:routing=$kind,experts=$experts,$cosine,scale=20" "contrastive:$balance" "${plain[@]}" ;;
  sbmoe-plain) trained "$row" "$seed" dense:pooling=mean contrastive "${gated[@]}" ;;
  sbmoe-*)
    trained "$row" "$seed" "sbmoe:experts=$experts,gate=$kind" "contrastive:$balance" "${gated[@]}" --group-rate "mixture=$GATED_RATE" ;;
  *) echo "$row: no such row" >&2 && exit 2 ;;
  esac
  searched "ckpt/$row" "$row"
  if [ "$family-$kind" = sbmoe-learned ]; then
    moeir init --model "ckpt/$row" --arch sbmoe:inference=all --output "ckpt/$row-all"
    searched "ckpt/$row-all" "$row-all"
  fi
done
