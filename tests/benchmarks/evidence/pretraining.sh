#!/usr/bin/env bash
# CoT-MoTE: what is its pre-training worth, its vectors or its masked words?
#
# Declared: declarations/pretraining.yaml
# Rows:     prepare, the data and BM25; pre-KIND-P, a pre-training with the seed P; KIND-PS, a fine-tuning from it with the seed PS, for PS 12 13 22 23.
#           KIND: mote; shuffled, the decoders have the vectors of other texts (shuffled_vectors.py); mlm, no decoders; decoders, no MLM; raw, no
#           pre-training. A pre-training that a row needs is made first
# Sizes:    cores: as mote.sh, but MiniLM's first 3 layers, texts of 64 tokens, and 600 + 300 steps; about 3 hours of one core with AMX, estimated
#           h200:  as mote.sh; about 14 hours, estimated
set -euo pipefail
layers="3 all 1" cores_learn_steps=600 cores_decoder_rate=3e-3 cores_steps=300 cores_length=64
. "$(dirname "${BASH_SOURCE[0]}")/mote_steps.sh"
SEEDS=${SEEDS:-$(sized "12 13 22 23" "12 13 22 23" 12)} KINDS="mote shuffled mlm decoders raw"
ln -sf "$here/shuffled_vectors.py" .

pre() { # KIND P: pre/KIND-P, made again where its record exists and its weights do not
  local objective
  case $1 in
  mote) objective=mote ;;
  shuffled) objective=shuffled_vectors:ShuffledMote ;;
  mlm) objective=mote:decoder_weight=0,sparse_weight=0 ;;
  decoders) objective=mote:mlm_weight=0 ;;
  esac
  say "pre-training $1, seed $2"
  pretrained "$1-$2" "$LEARN_STEPS" "$objective" "$2"
  if recorded "pre-$1-$2"; then same_weights "pre-$1-$2" "pre/$1-$2"; else record "pre-$1-$2" "pre/$1-$2"; fi
}

run_row() { # pre-KIND-P or KIND-PS
  local kind=${1%-*} seed=${1##*-} start=$model
  if [ "${kind#pre-}" != "$kind" ]; then
    pre "${kind#pre-}" "$seed"
    return
  fi
  if [ "$kind" != raw ]; then
    pre "$kind" "${seed:0:1}"
    start=pre/$kind-${seed:0:1}
  fi
  finetuned "$1" "$seed" "$start" mote contrastive:flops_query=0,flops_document=0
}

if [ $# = 0 ]; then
  set -- prepare
  for seed in $SEEDS; do
    for kind in $KINDS; do set -- "$@" "$kind-$seed"; done
  done
fi
run_rows "prepare, pre-KIND-P or KIND-PS with KIND of $KINDS" "prepare|pre-(mote|shuffled|mlm|decoders)-[0-9]|(${KINDS// /|})-[0-9][0-9]" "$@"
