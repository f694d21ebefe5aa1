#!/usr/bin/env bash
# Does pre-training help? The same model fine-tuned from raw and from pre-trained weights, on small real collections.
#
# Data:     TEXTS as pretraining_texts.py writes them (corpus.jsonl, queries.jsonl); collections in BEIR form with train and dev questions
# Use:      tests/benchmarks/pretraining.sh learn TEXTS WORK_FOLDER MODEL_FOLDER ROW...              ROW: {minilm,scratch}-{dense,mote}
#           tests/benchmarks/pretraining.sh tune COLLECTION WORK_FOLDER MODEL_FOLDER PRETRAINED ROW...
#           ROW: {minilm,scratch}-{raw,pretrained}-{dense,mote}-SEED; PRETRAINED is the WORK_FOLDER of `learn`
#           then experts_table.sh WORK_FOLDER
# Hardware: the defaults are cut to 2 cores: on one of them about 20 minutes for a row of `learn`, 4 for one of `tune`.
# Stages whose output exists are skipped, interrupted stages continue.
set -euo pipefail
what=$1 source=$(realpath "$2") work=$3 model=$4
here=$(cd "$(dirname "$0")" && pwd)
STEPS=${STEPS:-300} BATCH=${BATCH:-4} NEGATIVES=${NEGATIVES:-3} LENGTH=${LENGTH:-48} QUERY_LENGTH=${QUERY_LENGTH:-24}
TRAIN=${TRAIN:-4000} DEV=${DEV:-1000} PASSAGES=${PASSAGES:-3000} RATE=${RATE:-3e-5} SCRATCH_RATE=${SCRATCH_RATE:-2e-4} DEPTH=${DEPTH:-100}
FLOPS=${FLOPS:-5e-4} LEARN_STEPS=${LEARN_STEPS:-300} LEARN_BATCH=${LEARN_BATCH:-16} LEARN_RATE=${LEARN_RATE:-5e-5}
LEARN_SCRATCH_RATE=${LEARN_SCRATCH_RATE:-5e-4} SPAN=${SPAN:-128}
mkdir -p "$work"
cd "$work"
. "$here/small_steps.sh"

learned() { # ROW
  IFS=- read -r weights kind <<<"$1"
  local flags=(--learning-rate "$LEARN_RATE")
  [ "$weights" = minilm ] || flags=(--learning-rate "$LEARN_SCRATCH_RATE" --from-scratch)
  [ "$kind" = dense ] && flags+=(--arch dense:pooling=mean --objective cotmae)
  [ "$kind" = mote ] && flags+=(--arch mote:pooling=mean --objective mote --queries "$source/queries.jsonl")
  moeir pretrain --model "$model" --corpus "$source/corpus.jsonl" "${flags[@]}" --cache cache --steps "$LEARN_STEPS" \
    --batch-size "$LEARN_BATCH" --document-length "$SPAN" --output "$1"
}
tuned() { # ROW
  IFS=- read -r weights from kind seed <<<"$1"
  local start=$pretrained/$weights-$kind rate=$RATE cosine=pooling=mean,normalise=true
  [ "$weights" = minilm ] || rate=$SCRATCH_RATE
  local flags=(--steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$rate")
  local arch=dense:$cosine,scale=20 objective=contrastive
  if [ "$kind" = mote ]; then
    arch=mote:$cosine,global_scale=20 objective=contrastive:flops_query=$FLOPS,flops_document=$FLOPS,flops_ramp=$((STEPS / 2))
  fi
  if [ "$from" = raw ]; then
    start=$model
    if [ "$weights" = scratch ]; then
      start=drawn-$kind-$seed
      moeir init --model "$model" --arch "$kind:pooling=mean" --from-scratch --seed "$seed" --output "$start"
    fi
  fi
  trained "$start" "$1" "$seed" "$arch" "$objective" "${flags[@]}"
  searched "ckpt/$1" "$1"
}

case $what in
learn) rows=("${@:5}") ;;
tune) pretrained=$(realpath "$5") rows=("${@:6}"); prepared ;;
*) echo "$what: expected learn or tune" >&2; exit 2 ;;
esac
for row in "${rows[@]}"; do
  if [ "$what" = learn ]; then learned "$row"; else tuned "$row"; fi
done
