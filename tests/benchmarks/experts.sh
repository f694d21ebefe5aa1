#!/usr/bin/env bash
# Small real runs of the mixtures: MoTE against siamese and separate encoders, TASER's routers, SB-MoE's gates and numbers of experts.
#
# Data:     a collection in BEIR form with train and dev questions (corpus.jsonl.gz, queries.jsonl.gz, qrels/{train,dev}.tsv.gz)
# Use:      tests/benchmarks/experts.sh DATA_FOLDER WORK_FOLDER MODEL_FOLDER ROW...      then experts_table.sh WORK_FOLDER PREFIX
# Rows:     mote-{mote,siamese,separate}-SEED   taser-{shared,role,sequence,token,separate}-EXPERTS-SEED[-balanced]
#           sbmoe-{plain,random,learned}-EXPERTS-SEED[-balanced]; a learned one is searched as top-1 and as all
# Hardware: the defaults are cut to 2 cores: about 4 minutes a row on one of them. Several calls may share a WORK_FOLDER once data/ is there.
# Stages whose output exists are skipped, interrupted stages continue.
set -euo pipefail
source=$1 work=$2 model=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
STEPS=${STEPS:-500} BATCH=${BATCH:-4} NEGATIVES=${NEGATIVES:-3} LENGTH=${LENGTH:-48} QUERY_LENGTH=${QUERY_LENGTH:-24}
TRAIN=${TRAIN:-4000} DEV=${DEV:-1000} PASSAGES=${PASSAGES:-3000} RATE=${RATE:-3e-5} DEPTH=${DEPTH:-100} FLOPS=${FLOPS:-5e-4}
GATED_RATE=${GATED_RATE:-1e-3} BACKBONE_RATE=${BACKBONE_RATE:-1e-5} BALANCE=${BALANCE:-0.01}
mkdir -p "$work"
cd "$work"
. "$here/small_steps.sh"
prepared
cosine=pooling=mean,normalise=true
for row in "$@"; do
  IFS=- read -r family kind experts seed balanced <<<"$row"
  balance=load_balance=$([ "${balanced:-}" = balanced ] && echo "$BALANCE" || echo 0)
  plain=(--steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$RATE")
  gated=(--steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$BACKBONE_RATE" --schedule constant --warmup 0)
  case $family-$kind in
  mote-*)
    seed=$experts flops=flops_query=$FLOPS,flops_document=$FLOPS,flops_ramp=$((STEPS / 2))
    trained "$model" "$row" "$seed" "mote:encoders=$kind,$cosine,global_scale=20" "contrastive:$flops" "${plain[@]}" ;;
  taser-separate) trained "$model" "$row" "$seed" "dense:encoders=separate,$cosine,scale=20" contrastive "${plain[@]}" ;;
  taser-*) trained "$model" "$row" "$seed" "taser:routing=$kind,experts=$experts,$cosine,scale=20" "contrastive:$balance" "${plain[@]}" ;;
  sbmoe-plain) trained "$model" "$row" "$seed" dense:pooling=mean,normalise=false contrastive "${gated[@]}" ;;
  sbmoe-*)
    trained "$model" "$row" "$seed" "sbmoe:experts=$experts,gate=$kind" "contrastive:$balance" "${gated[@]}" --group-rate "mixture=$GATED_RATE" ;;
  *) echo "$row: no such row" >&2 && exit 2 ;;
  esac
  searched "ckpt/$row" "$row"
  if [ "$family-$kind" = sbmoe-learned ]; then
    moeir init --model "ckpt/$row" --arch sbmoe:inference=all --output "ckpt/$row-all"
    searched "ckpt/$row-all" "$row-all"
  fi
done
