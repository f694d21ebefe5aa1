#!/usr/bin/env bash
# CAME on Natural Questions as DPR prepared them: the paper's whole recipe, as two trainings.
#
# Paper:    Cai et al. 2023, CAME: Competitively Learning a Mixture-of-Experts Model for First-stage Retrieval, §3.3, §4.4, Table 1
# Data:     DATA (default data/nq), made from DPR's files by `python examples/nq_from_dpr.py DPR_FOLDER data/nq`:
#             corpus.jsonl                      21,015,324 passages of 100 words, with titles
#             train-queries.jsonl, train.qrels  58,880 questions and DPR's positive passages
#             dev-queries.jsonl, dev.qrels      6,515 questions with answers and DPR's positive passages: the set `validation`
#             test-queries.jsonl                3,610 questions with answers
#           MODEL (default models/co-condenser-wiki), Luyu/co-condenser-wiki with its vocabulary head as safetensors: README.md
# Recipe:   BM25 top-100 negatives -> 15 epochs, the first fifth standardised, then competitive -> search all training queries with the
#           three experts -> negatives from the union of their top 100 -> 10 more epochs, competitive from the start -> search, evaluate.
#           32 / 156 tokens, 32 queries x 8 passages a step, 7 negatives, learning rate 1e-5, temperature 2.0, FLOPS 0.01 (came_steps.sh)
# Hardware: the paper: V100-32GB. Here: one GPU of 80 GB or more, 16 cores, 64 GB of memory, 3 TB of disk (KEEP=no: half of it).
# Hours:    estimated from operation counts for an H200, not measured: trainings 2 and 1, encoding 3 for each of two models, exact search of
#           the training queries 5 to 30: the local expert's 700 GB of token vectors are read once per 128 queries.
# Expected: percent, Table 1, Top-20 and Top-100 of test questions: BM25 59.1 and 73.7, CAME 87.5 and 91.4 (BM25 negatives 83.7, 89.1)
#
# A question counts as answered if the text of a passage among the top 20 or 100 contains an answer string (`evaluate --answers`, as DPR
# counts); for the same reason no negative contains one (`mine-negatives --exclude-answers`).
#
#     bash examples/came_nq.sh                  # DATA=… WORK=… MODEL=… and everything at the top of came_steps.sh
set -euo pipefail
COLLECTION=nq
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"

recipe
mapfile -t rows < <(every came came-bm25)
tables "Table 1" bm25/bm25 "${rows[@]}"
