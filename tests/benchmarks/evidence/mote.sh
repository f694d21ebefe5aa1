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
sizes=(LEARN_STEPS LEARN_BATCH LEARN_RATE DECODER_RATE GATE_STEPS GAIN STEPS BATCH NEGATIVES BAND RATE LENGTH QUERY_LENGTH TRAIN DEV PASSAGES DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
LEARN_STEPS=${LEARN_STEPS:-$(sized 1800 10000 2)} LEARN_BATCH=${LEARN_BATCH:-$(sized 16 256 2)} LEARN_RATE=${LEARN_RATE:-5e-5}
DECODER_RATE=${DECODER_RATE:-1e-3} GATE_STEPS=${GATE_STEPS:-$(sized 300 300 2)} GAIN=${GAIN:-$(sized 0.02 0.02 -1)}
STEPS=${STEPS:-$(sized 600 1800 2)} BATCH=${BATCH:-$(sized 8 64 2)} NEGATIVES=${NEGATIVES:-$(sized 3 15 2)} RATE=${RATE:-3e-5}
BAND=${BAND:-$(sized first=0,last=10 first=0,last=30 first=0,last=10)} LENGTH=${LENGTH:-$(sized 128 128 24)} QUERY_LENGTH=${QUERY_LENGTH:-32}
TRAIN=${TRAIN:-$(sized 4000 100000 16)} DEV=${DEV:-$(sized 3000 10570 6)} PASSAGES=${PASSAGES:-$(sized 3000 20958 20)} SEEDS=${SEEDS:-$(sized "2 3" "2 3" 2)}
SETS="squad medquad" KINDS="normal switched raw siamese separate parts"
for set in $SETS; do corpora[$set]=data/$set-pool.jsonl queries[$set]=data/$set-dev-queries.jsonl qrels[$set]=data/$set-dev.tsv; done
ln -sf "$here/sum_and_parts.py" . # own code is read from the working directory

collection() { # SET: training and development questions, their passages, BM25's negatives
  local set=$1
  [ ! -s "data/$set-train.jsonl" ] || return 0
  $PYTHON "$here/../sample_questions.py" "$data/$set" "data/$set" "$TRAIN" "$DEV"
  mv "data/$set/dev-queries.jsonl" "${queries[$set]}"
  mv "data/$set/dev.tsv" "${qrels[$set]}"
  $PYTHON "$here/../sample_corpus.py" "$data/$set/corpus.jsonl.gz" "${qrels[$set]}" "${corpora[$set]}" "$PASSAGES"
  $MOEIR index --corpus "$data/$set/corpus.jsonl.gz" --engine bm25 --output "idx/bm25/$set-whole"
  $MOEIR search --index "idx/bm25/$set-whole" --queries "data/$set/train-queries.jsonl" --depth 50 --output "runs/bm25/$set-train.trec"
  $MOEIR mine-negatives --run "runs/bm25/$set-train.trec" --qrels "data/$set/train.tsv" --method "band:$BAND" \
    --output "data/$set-train.jsonl"
}

prepare() {
  local set
  mkdir -p data
  for set in $SETS; do collection "$set"; done
  [ -s data/spans/queries.jsonl ] || $PYTHON "$here/../pretraining_texts.py" data/spans "$data/squad" "$data/medquad"
  # shellcheck disable=SC2086
  recorded bm25 || bm25 $SETS
}

pretrained() { # NAME STEPS: pre/NAME
  $MOEIR pretrain --model "$model" --arch mote:pooling=mean --objective mote --corpus data/spans/corpus.jsonl --queries data/spans/queries.jsonl \
    --short-spans 0 --document-length "$LENGTH" --query-length "$QUERY_LENGTH" --steps "$2" --batch-size "$LEARN_BATCH" \
    --learning-rate "$LEARN_RATE" --group-rate "decoder.*=$DECODER_RATE" --seed 1 --output "pre/$1"
}

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
  pretrained gate "$GATE_STEPS"
  record gate pre/gate
  check_gate
}

pre() { # pre/normal, made again where its record exists and its weights do not, and pre/switched
  check_gate
  say "pre-training"
  pretrained normal "$LEARN_STEPS"
  if recorded pre-normal; then same_weights pre-normal pre/normal; else record pre-normal pre/normal; fi
  [ -e pre/switched ] || $PYTHON "$here/exchange_experts.py" pre/normal pre/switched
}

row() { # KIND SEED
  local start=$model encoders=mote objective=contrastive:flops_query=0,flops_document=0 set inputs=()
  case $1 in
  normal | switched)
    pre # not in a list with &&, in which a failure would not end the script
    start=pre/$1
    ;;
  siamese | separate) encoders=$1 ;;
  parts) objective=sum_and_parts:sum_and_parts ;;
  esac
  for set in $SETS; do
    inputs+=(--train "data/$set-train.jsonl" --sampling-rate 1 --corpus "$data/$set/corpus.jsonl.gz" --queries "data/$set/train-queries.jsonl")
  done
  say "training $1, seed $2"
  $MOEIR finetune --model "$start" --arch "mote:encoders=$encoders,pooling=mean,normalise=true,global_scale=20" --objective "$objective" \
    "${inputs[@]}" --query-length "$QUERY_LENGTH" --document-length "$LENGTH" --steps "$STEPS" --batch-size "$BATCH" \
    --negatives "$NEGATIVES" --learning-rate "$RATE" --seed "$2" --output "ckpt/$1-$2"
  # shellcheck disable=SC2086
  searched "ckpt/$1-$2" "$1-$2" $SETS
  # shellcheck disable=SC2086
  record "$1-$2" "ckpt/$1-$2" $SETS
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
