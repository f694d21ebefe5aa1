#!/usr/bin/env bash
# TASER: specialised blocks against separate encoders and against one encoder for both, in domain and on collections that nobody trained on.
#
# Declared: declarations/taser.yaml
# Rows:     prepare, the data and BM25's negatives; separate-SEED, shared-SEED, role-SEED, sequence-SEED
# Sizes:    cores: 2,000 steps of 16 questions x (1 + 1) passages of 96 tokens: about 80 minutes a row on one core (AVX-512 BF16, no AMX), and 10 of
#                  search; 12 hours in all
#           h200:  8,000 steps of 128 x (1 + 1), 256 tokens, every third layer, seeds 1 to 4 (MODEL_FOLDER of BERT base): about 10 hours, estimated
set -euo pipefail
sizes=(STEPS BATCH LENGTH QUERY_LENGTH TRAIN TESTED WATCHED POOL EXPERTS_EVERY DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
STEPS=${STEPS:-$(sized 2000 8000 2)} BATCH=${BATCH:-$(sized 16 128 2)} LENGTH=${LENGTH:-$(sized 96 256 24)} QUERY_LENGTH=${QUERY_LENGTH:-$(sized 24 32 12)}
TRAIN=${TRAIN:-$(sized 40000 87599 12)} TESTED=${TESTED:-$(sized 10570 10570 6)} POOL=${POOL:-$(sized 6000 20958 12)} EVERY=${EVERY:-$(sized 250 2000 2)}
WATCHED=${WATCHED:-$(sized 300 1000 2)} EXPERTS_EVERY=${EXPERTS_EVERY:-$(sized 3 3 1)} SEEDS=${SEEDS:-$(sized "1 2" "1 2 3 4" 1)}
zero_shot=(nfcorpus scifact cacm cranfield)
corpora=([squad]=data/squad/pool.jsonl) queries=([squad]=data/squad/dev-queries.jsonl) qrels=([squad]=data/squad/dev.tsv)
for set in "${zero_shot[@]}"; do
  corpora[$set]=$data/$set/corpus.jsonl.gz queries[$set]=data/$set-queries.jsonl qrels[$set]=$data/$set/qrels/test.tsv.gz
done

prepare() {
  local set
  for set in squad medquad; do # the questions of both, without training questions that have the words of a question that is tested
    if [ ! -s "data/$set/rest.tsv" ]; then
      $PYTHON "$here/../sample_questions.py" "$data/$set" "data/$set" "$TRAIN" "$TESTED"
      divided "data/$set/train-queries.jsonl" "data/$set/train.tsv" "$WATCHED" "data/$set/watched" "data/$set/rest"
    fi
    $MOEIR index --corpus "$data/$set/corpus.jsonl.gz" --engine bm25 --output "idx/bm25/$set"
    $MOEIR search --index "idx/bm25/$set" --queries "data/$set/rest-queries.jsonl" --depth 50 --output "runs/bm25/$set-train.trec"
    $MOEIR mine-negatives --run "runs/bm25/$set-train.trec" --qrels "data/$set/rest.tsv" --method band:first=0,last=50 --negatives 8 --output "data/$set/train.jsonl"
  done
  [ -s data/squad/pool.jsonl ] || $PYTHON "$here/../sample_corpus.py" "$data/squad/corpus.jsonl.gz" data/squad/dev.tsv data/squad/pool.jsonl "$POOL"
  [ -s data/watched.jsonl ] || $PYTHON "$here/../sample_corpus.py" "$data/squad/corpus.jsonl.gz" data/squad/watched.tsv data/watched.jsonl "$((2 * WATCHED))"
  for set in "${zero_shot[@]}"; do
    [ -s "${queries[$set]}" ] || $PYTHON "$here/../../../examples/judged.py" "$data/$set/queries.jsonl.gz" "${qrels[$set]}" "${queries[$set]}"
  done
  bm25 squad "${zero_shot[@]}"
}

row() { # KIND SEED
  local arch=taser:routing=$1,every=$EXPERTS_EVERY objective=contrastive
  if [ "$1" = separate ]; then arch=dense:encoders=separate; elif [ "$1" = sequence ]; then arch+=,gradient=full objective+=:load_balance=0.01; fi
  say "training $1, seed $2"
  $MOEIR finetune --model "$model" --arch "$arch,pooling=mean,normalise=true,scale=20" --objective "$objective" --query-length "$QUERY_LENGTH" \
    --document-length "$LENGTH" --train data/squad/train.jsonl --sampling-rate 1 --corpus "$data/squad/corpus.jsonl.gz" \
    --queries data/squad/rest-queries.jsonl --train data/medquad/train.jsonl --sampling-rate 1 --corpus "$data/medquad/corpus.jsonl.gz" \
    --queries data/medquad/rest-queries.jsonl --batch-size "$BATCH" --negatives 1 --steps "$STEPS" --learning-rate 3e-5 --attention-dropout 0 --seed "$2" \
    --dev-queries data/squad/watched-queries.jsonl --dev-qrels data/squad/watched.tsv --dev-corpus data/watched.jsonl --evaluate-every "$EVERY" --keep last \
    --cache cache --output "ckpt/$1-$2"
  searched "ckpt/$1-$2" "$1-$2" squad "${zero_shot[@]}"
  record "$1-$2" "ckpt/$1-$2" squad "${zero_shot[@]}"
}

run_row() { row "${1%-*}" "${1##*-}"; }

if [ $# = 0 ]; then
  set -- prepare
  for seed in $SEEDS; do set -- "$@" "separate-$seed" "shared-$seed" "role-$seed" "sequence-$seed"; done
fi
run_rows "prepare, or separate, shared, role or sequence with -SEED" 'prepare|(separate|shared|role|sequence)-[0-9]+' "$@"
