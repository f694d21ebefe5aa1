#!/usr/bin/env bash
# CoT-MoTE: does it matter that queries and passages are pre-trained by their own experts? Table 4, with a gate on whether the decoder uses its vector.
#
# Declared: declarations/mote.yaml
# Rows:     prepare, the data and BM25; gate, 300 steps of the pre-training; pre-normal, the pre-training (M1); KIND-SEED for seeds 2 3,
#           fine-tunings (M2). KIND: normal, from the pre-training, and switched, from the same with its experts exchanged; where WORK_FOLDER
#           has none it is made first; raw, siamese, separate and parts from MODEL_FOLDER
# Sizes:    cores: M1 1,800 steps of 16 spans of 128 tokens and their queries (2.2 s each); M2 600 steps of 8 x (1 + 3), 128 tokens, on both
#                  collections (2.4 s). Minutes: prepare 2, gate 10 and the pre-training 61 on two threads, a fine-tuning with its search 30 on
#                  one; 8.5 core-hours in all. Weights of the pre-training are not committed: with its four fine-tunings, in two calls after
#                  the row pre-normal, it takes 2 hours of two cores
#           h200:  M1 10,000 steps of 256, M2 1,800 of 64 x (1 + 15) with negatives of BM25's first 30, BERT base, all questions (SQuAD's 0.7
#                  times, MedQuAD's 4.8) and passages: about 7 hours, estimated
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/mote_steps.sh"
SEEDS=${SEEDS:-$(sized "2 3" "2 3" 2)} KINDS="normal switched raw siamese separate parts"

check_gate() { # the mean of the gate's last two measurements; whoever starts from a pre-training needs it
  if ! recorded gate; then
    echo "the pre-training's gate is not recorded: run the row gate first" >&2
    exit 2
  fi
  $PYTHON - "$GAIN" "$($PYTHON "$here/record.py" gate "$records" --curve bottleneck_gain)" <<'P'
import sys
least, gains = float(sys.argv[1]), [float(value) for value in sys.argv[2].split()][-2:]
gain = sum(gains) / len(gains)
print(f"gate: the vector is worth {gain:.4f} nats per token to the decoder, mean of the last {len(gains)} measurements (declared: {least:g} or more)")
if gain < least:
    sys.exit("gate: not passed. The decoder hardly uses the vector, and pre-trainings of this kind answer nothing: find out why first")
P
}

gate() {
  pretrained gate "$GATE_STEPS" mote 1
  record gate pre/gate
  check_gate
}

pre() { # pre/normal, made again where its record exists and its weights do not, and pre/switched
  check_gate
  say "pre-training"
  pretrained normal "$LEARN_STEPS" mote 1
  if recorded pre-normal; then same_weights pre-normal pre/normal; else record pre-normal pre/normal; fi
  [ -e pre/switched ] || $PYTHON "$here/exchange_experts.py" pre/normal pre/switched
}

row() { # KIND SEED
  local start=$model encoders=mote objective=contrastive:flops_query=0,flops_document=0
  case $1 in
  normal | switched)
    pre # not in a list with &&, in which a failure would not end the script
    start=pre/$1
    ;;
  siamese | separate) encoders=$1 ;;
  parts) objective=sum_and_parts:sum_and_parts ;;
  esac
  finetuned "$1-$2" "$2" "$start" "$encoders" "$objective"
}

run_row() {
  case $1 in
  gate) gate ;;
  pre-normal) pre ;;
  *) row "${1%-*}" "${1##*-}" ;;
  esac
}

if [ $# = 0 ]; then
  set -- prepare gate pre-normal
  for kind in $KINDS; do
    for seed in $SEEDS; do set -- "$@" "$kind-$seed"; done
  done
fi
run_rows "prepare, gate, pre-normal or KIND-SEED with KIND of $KINDS" "prepare|gate|pre-normal|(${KINDS// /|})-[0-9]+" "$@"
