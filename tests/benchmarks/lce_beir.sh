#!/usr/bin/env bash
# LCE on four real collections with three retrievers each: inputs of lce_tables.sh, its trainings, and tables of each and of all together.
#
# Data:     DATA_FOLDER with scifact, nfcorpus, squad and medquad in BEIR form (corpus.jsonl.gz, queries.jsonl.gz, qrels/PART.tsv.gz)
# Models:   MINILM_FOLDER holds all-MiniLM-L6-v2's weights; CAME_FOLDER is a checkpoint of a trained CAME (the quickstart's: demo/checkpoint/second)
# Use:      tests/benchmarks/lce_beir.sh DATA_FOLDER WORK_FOLDER MINILM_FOLDER CAME_FOLDER
#           ROW=prepare samples, searches and trains the common start; ROW=train the rows; ROW=tables prints; all three if it is not set
# Settings: SETS (the four), TRAIN (500) and TEST (80) queries of each, DOCUMENTS (5200) of the larger ones, START_STEPS (300) on
#           BM25's START_BAND (first=50,last=150), DENSE_LENGTH (256) of dense's texts, and lce_tables.sh's SEEDS (1 2), STEPS (80),
#           PAIRS (16), DEPTH (20), RATE (5e-5) and lengths
# Hardware: the defaults are cut to 2 cores. Two calls of ROW=train may share WORK_FOLDER if their SEEDS and the order of their SETS differ.
# Stages whose output exists are skipped, interrupted stages continue. Samples of other sizes (TRAIN, TEST, DOCUMENTS) want
# another WORK_FOLDER; SETS must hold scifact, squad and medquad when the start is trained.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
read -r source work minilm came < <(realpath -m "${@:1:4}" | paste -sd " ")
SETS=${SETS:-scifact nfcorpus squad medquad} TRAIN=${TRAIN:-500} TEST=${TEST:-80} DOCUMENTS=${DOCUMENTS:-5200} START_STEPS=${START_STEPS:-300}
START_BAND=${START_BAND:-first=50,last=150} DENSE_LENGTH=${DENSE_LENGTH:-256} PYTHON=${PYTHON:-python}
export SEEDS=${SEEDS:-1 2} STEPS=${STEPS:-80} PAIRS=${PAIRS:-16} DEPTH=${DEPTH:-20} RATE=${RATE:-5e-5} MOEIR=${MOEIR:-moeir}
export QUERY_LENGTH=${QUERY_LENGTH:-32} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-128}
ROW=${ROW:-prepare train tables} retrievers=(bm25 dense came)
mkdir -p "$work"
cd "$work"

sampled() { # SET PART: training and tested queries, all documents that they are judged on, and others
  [ ! -s "$1/queries.jsonl" ] || return 0
  "$PYTHON" "$here/sample_questions.py" "$source/$1" "$1" "$TRAIN" "$TEST" 42 "$2"
  [ "$2" = test ] || for file in -queries.jsonl .tsv; do mv "$1/$2$file" "$1/test$file"; done
  cat "$1/train.tsv" "$1/test.tsv" > "$1/judged.tsv"
  "$PYTHON" "$here/sample_corpus.py" "$source/$1/corpus.jsonl.gz" "$1/judged.tsv" "$1/corpus.jsonl" "$DOCUMENTS"
  cat "$1/train-queries.jsonl" "$1/test-queries.jsonl" > "$1/queries.jsonl.new"
  mv "$1/queries.jsonl.new" "$1/queries.jsonl" # last: its existence marks a complete sample
}
searched() { # SET RETRIEVER INDEX: 200 documents a query; of CAME the fused list
  for part in train test; do
    $MOEIR search --index "$3" --queries "$1/$part-queries.jsonl" --depth 200 --output "$1/runs/$2.$part.trec"
  done
}
prepared() { # SET PART
  sampled "$1" "$2"
  $MOEIR index --corpus "$1/corpus.jsonl" --engine bm25:k1=0.9,b=0.4 --output "$1/index/bm25"
  searched "$1" bm25 "$1/index/bm25"
  for retriever in dense came; do
    $MOEIR encode --model "ckpt/$retriever" --corpus "$1/corpus.jsonl" --output "$1/encodings/$retriever"
    $MOEIR index --encodings "$1/encodings/$retriever" --output "$1/index/$retriever"
    searched "$1" "$retriever" "$1/index/$retriever"
  done
  $MOEIR mine-negatives --run "$1/runs/bm25.train.trec" --qrels "$1/train.tsv" --method band:$START_BAND --output "$1/start.jsonl"
}

if [[ $ROW == *prepare* ]]; then
  $MOEIR init --model "$minilm" --arch dense:pooling=mean,normalise=true --query-length "$DENSE_LENGTH" --document-length "$DENSE_LENGTH" --output ckpt/dense
  mkdir -p ckpt
  ln -sfn "$came" ckpt/came
  for set in $SETS; do
    case $set in scifact | nfcorpus) prepared "$set" test ;; *) prepared "$set" dev ;; esac
  done
  # the common start: pairs from ranks below those of the reranked lists, from three sets (not NFCorpus, with its many judgements a query)
  $MOEIR finetune --model "$minilm" --arch cross-encoder:fields=title+text --objective lce --sampling-rate 1 --sampling-rate 1 --sampling-rate 1 \
    --train scifact/start.jsonl --corpus scifact/corpus.jsonl --queries scifact/queries.jsonl \
    --train squad/start.jsonl --corpus squad/corpus.jsonl --queries squad/queries.jsonl \
    --train medquad/start.jsonl --corpus medquad/corpus.jsonl --queries medquad/queries.jsonl \
    --query-length "$QUERY_LENGTH" --document-length "$DOCUMENT_LENGTH" --batch-size 2 --negatives 7 --steps "$START_STEPS" \
    --learning-rate 1e-4 --group-rate head=1e-3 --seed 1 --cache tokens --output ckpt/start
fi
tables() { # SET ROW: of lce_tables.sh
  ROW=$2 bash "$here/lce_tables.sh" "$1/corpus.jsonl" "$1/queries.jsonl" "$1/train.tsv" "$1/test.tsv" "$1/runs" "$1/rerankers" ckpt/start "${retrievers[@]}"
}
if [[ $ROW == *train* ]]; then
  for set in $SETS; do GROUP_SIZES=$([[ $set = nfcorpus || $set = medquad ]] && echo "2 4 8") tables "$set" train; done
fi
if [[ $ROW == *tables* ]]; then
  places=()
  for set in $SETS; do
    places+=("$set/test.tsv" "$set/rerankers")
    printf '\n## %s: %s documents\n\n' "$set" "$(wc -l < "$set/corpus.jsonl")"
    "$PYTHON" "$here/lce_summary.py" "$set/test.tsv" "$set/rerankers" "${retrievers[@]}"
  done
  printf '\n## together\n\n'
  "$PYTHON" "$here/lce_summary.py" together "${places[@]}" "${retrievers[@]}"
fi
