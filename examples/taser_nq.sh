#!/usr/bin/env bash
# TASER on Natural Questions alone: the routings, against DPR. Tables A1 and A3.
#
# Paper:    Cheng et al. 2023, Task-Aware Specialization for Efficient and Robust Dense Retrieval, §3, appendices A to C, Tables A1, A3
# Data:     DATA (default data/odqa), made from DPR's files by `python examples/taser_sets.py DPR_FOLDER data/odqa nq`:
#             corpus.jsonl                                   21,015,324 passages of 100 words, with titles
#             nq/train-queries.jsonl, nq/train.qrels         58,880 questions with answers, and DPR's positive passages
#             nq/dev-queries.jsonl, dev.qrels, dev-corpus.jsonl   6,515 questions, and the passages DPR's file names for them
#             nq/dev-answers.jsonl, nq/test-queries.jsonl    8,757 and 3,610 questions with answers
#           MODEL (default bert-base-uncased)
# Recipe:   for every row, nq-ROUTING, P1: BM25's top 100 without an answer -> 40 epochs at each of two rates -> the rate and the epoch
#           with the best RR@100 of the development questions -> search. For dpr and role then P2: the model's own top 100 of the training
#           questions, without an answer -> the same on P1 and P2 united, again from MODEL -> search. 256 questions a step, each with the
#           first of its positive passages and one hard negative; learned routers get straight-through gradients (taser_steps.sh)
#           The paper excludes the positive passage from P2 only; DPR's mined negatives exclude all passages with an answer, as here.
# Hardware: the paper: 16 V100-32GB. Here: one GPU of 80 GB or more, 16 cores, 64 GB of memory; 70 GB of disk a model (KEEP=no: 100 in all)
# Hours:    estimated from operation counts for an H200, not measured: eighteen trainings of half an hour, nine encodings of one: 20 to 30;
#           RATES=3e-5 halves the trainings
# Expected: percent, Table A1, R@20 of development and test questions
#             nq-dpr (its own paper's)             -          78.4          218M    nq-dpr-hard      -   81.3
#             nq-shared                         78.2          79.3          109M
#             nq-role (Det-R)                   79.2          80.7          128M    nq-role-hard  82.4   83.7
#             nq-sequence-2, -4 (Seq-R)   79.2, 78.4    80.6, 80.1    128M, 166M
#             nq-token-2, -4 (Tok-R)      78.5, 78.5    79.8, 79.8    128M, 166M
#           The published code cannot give its learned routings' rows: its router gets no gradient, and its entropy uses the wrong tensor.
#
#     bash examples/taser_nq.sh                 # DATA=… WORK=… MODEL=… and everything at the top of taser_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/taser_steps.sh"
ROUTINGS=${ROUTINGS:-dpr shared role sequence-2 sequence-4 token-2 token-4} HARD=${HARD:-dpr role}
settings+=(--dev-queries "$DATA/nq/dev-queries.jsonl" --dev-qrels "$DATA/nq/dev.qrels" --dev-corpus "$DATA/nq/dev-corpus.jsonl")
settings+=(--warmup "$WARMUP")

learned() { # NAME ROUTING EXAMPLES...: a model from MODEL on the union of examples, and its runs; those of training questions to mine in
  local name=$1 routing=$2 one files=()
  shift 2
  for one in "$@"; do files+=(--train "$WORK/data/$one-nq.jsonl"); done
  chosen "$name" "$MODEL" "$(architecture "$routing")" "$objective" "${files[@]}" \
    --corpus "${corpora[wikipedia]}" --queries "${queries[nq-train]}"
  if [[ " $HARD " == *" ${name#nq-} "* ]]; then searched "$name" wikipedia nq-train nq-dev nq; else searched "$name" wikipedia nq-dev nq; fi
}

bm25 wikipedia "$BM25" nq-train nq-dev nq
negatives bm25 "$BM25_DEPTH" bm25/bm25 nq
models=()
for routing in $ROUTINGS; do
  learned "nq-$routing" "$routing" bm25
  models+=("nq-$routing")
done
for routing in $HARD; do
  negatives "nq-$routing" "$MINING_DEPTH" "nq-$routing/global" nq
  learned "nq-$routing-hard" "$routing" bm25 "nq-$routing"
  models+=("nq-$routing-hard")
done
tables "Table A1" wikipedia nq-dev nq -- bm25/bm25 "${models[@]/%//global}"
say "Table A3: parameters"
parameters "${models[@]}"
