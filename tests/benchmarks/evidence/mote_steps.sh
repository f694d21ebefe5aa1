# Data, pre-training and fine-tuning of the scripts of CoT-MoTE; sourced by them, not run.
# shellcheck shell=bash
sizes=(LAYERS LEARN_STEPS LEARN_BATCH LEARN_RATE DECODER_RATE GATE_STEPS GAIN STEPS BATCH NEGATIVES BAND RATE LENGTH QUERY_LENGTH TRAIN DEV PASSAGES DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
# shellcheck disable=SC2086
LAYERS=${LAYERS:-$(sized ${layers:-all all all})} # of MODEL_FOLDER
LEARN_STEPS=${LEARN_STEPS:-$(sized "${cores_learn_steps:-1800}" 10000 2)} LEARN_BATCH=${LEARN_BATCH:-$(sized 16 256 2)} LEARN_RATE=${LEARN_RATE:-5e-5}
DECODER_RATE=${DECODER_RATE:-$(sized "${cores_decoder_rate:-1e-3}" 1e-3 1e-3)} GATE_STEPS=${GATE_STEPS:-$(sized 300 300 2)} GAIN=${GAIN:-$(sized 0.02 0.02 -1)}
STEPS=${STEPS:-$(sized "${cores_steps:-600}" 1800 2)} BATCH=${BATCH:-$(sized 8 64 2)} NEGATIVES=${NEGATIVES:-$(sized 3 15 2)} RATE=${RATE:-3e-5}
BAND=${BAND:-$(sized first=0,last=10 first=0,last=30 first=0,last=10)} LENGTH=${LENGTH:-$(sized "${cores_length:-128}" 128 24)} QUERY_LENGTH=${QUERY_LENGTH:-32}
TRAIN=${TRAIN:-$(sized 4000 100000 16)} DEV=${DEV:-$(sized 3000 10570 6)} PASSAGES=${PASSAGES:-$(sized 3000 20958 20)}
SETS="squad medquad"
for set in $SETS; do corpora[$set]=data/$set-pool.jsonl queries[$set]=data/$set-dev-queries.jsonl qrels[$set]=data/$set-dev.tsv; done
ln -sf "$here/sum_and_parts.py" . # own code is read from the working directory
cut_model "$LAYERS"

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

pretrained() { # NAME STEPS OBJECTIVE SEED: pre/NAME
  $MOEIR pretrain --model "$model" --arch mote:pooling=mean --objective "$3" --corpus data/spans/corpus.jsonl --queries data/spans/queries.jsonl \
    --short-spans 0 --document-length "$LENGTH" --query-length "$QUERY_LENGTH" --steps "$2" --batch-size "$LEARN_BATCH" \
    --learning-rate "$LEARN_RATE" --group-rate "decoder.*=$DECODER_RATE" --seed "$4" --output "pre/$1"
}

finetuned() { # ROW SEED START ENCODERS OBJECTIVE: ckpt/ROW, searched and recorded
  local set inputs=()
  for set in $SETS; do
    inputs+=(--train "data/$set-train.jsonl" --sampling-rate 1 --corpus "$data/$set/corpus.jsonl.gz" --queries "data/$set/train-queries.jsonl")
  done
  say "training $1"
  $MOEIR finetune --model "$3" --arch "mote:encoders=$4,pooling=mean,normalise=true,global_scale=20" --objective "$5" \
    "${inputs[@]}" --query-length "$QUERY_LENGTH" --document-length "$LENGTH" --steps "$STEPS" --batch-size "$BATCH" \
    --negatives "$NEGATIVES" --learning-rate "$RATE" --seed "$2" --output "ckpt/$1"
  # shellcheck disable=SC2086
  searched "ckpt/$1" "$1" $SETS
  # shellcheck disable=SC2086
  record "$1" "ckpt/$1" $SETS
}
