#!/usr/bin/env bash
# TASER on five question answering sets at once: one encoder, and its hybrid with BM25. Tables 1, A2 and A3.
#
# Paper:    Cheng et al. 2023, Task-Aware Specialization for Efficient and Robust Dense Retrieval, §4.1, appendices B, D, Tables 1, A2, A3
# Data:     DATA (default data/odqa), made from DPR's files by `python examples/taser_sets.py DPR_FOLDER data/odqa`: as taser_nq.sh
#           says, for nq, trivia, webq, curatedtrec and squad1, development questions of nq and trivia
#           MODEL (default bert-base-uncased), STAR (default models/co-condenser-wiki)
# Recipe:   BM25's negatives for all five sets -> taser-first, 40 epochs, every step of one set; as every model here at two rates, of which
#           the better on the development questions goes on -> its top 100 of the training questions of nq, trivia, webq without an answer
#           -> taser and dpr from MODEL, taser-star and dpr-star from STAR, 40 epochs on the mined negatives of those three sets and BM25's
#           of the other two -> search five sets. Hybrid, of dpr and of both tasers: score + alpha x BM25, 100 passages of each, a missing
#           one scores as its list's last (BM25 without the factor k1 + 1, as Lucene's; with it alpha is 1.9 times less); one alpha for all sets, of 0.5, 0.6, … 2.0 the one with the best mean of R@20 on the development
#           questions of nq and of trivia. The epoch kept is the best on both development sets (RR@100).
#           "The same hard negatives mining" is read as: the same negatives, those of taser-first; every set is read once an epoch.
# Hardware: the paper: 16 V100-32GB, 9 hours a training. Here as taser_nq.sh
# Hours:    estimated from operation counts for an H200, not measured: twelve trainings of 2, six encodings of 1, searches: 35 to 45;
#           RATES=3e-5 halves the trainings
# Expected: percent, Tables 1 and A2: R@20 R@100 of test questions
#                             NQ           TriviaQA     WebQ         CuratedTREC  SQuAD
#             bm25            62.9 78.3    76.4 83.2    62.4 75.5    80.7 89.9    71.1 81.8
#             dpr-first       80.9 86.8    79.6 85.0    74.0 83.4    88.0 94.1    63.1 77.2
#             dpr             82.5 88.0    81.8 86.4    77.8 84.7    91.2 95.5    67.1 79.8
#             dpr-bm25        82.6 88.6    82.6 86.5    77.3 84.7    90.1 95.0    75.1 84.4    (Ma et al. 2021, trained without SQuAD)
#             dpr-star        83.7 88.7    82.6 86.7    78.9 85.3    91.6 95.1    68.0 80.2
#             taser           83.6 88.6    82.0 86.6    77.9 85.4    91.1 95.7    69.7 81.2
#             taser-bm25      83.8 88.6    83.3 87.1    78.7 85.7    91.6 95.8    77.2 86.0
#             taser-star      84.9 89.2    83.4 87.1    78.9 85.4    90.8 96.0    72.9 83.4
#             taser-star-bm25 85.0 89.2    84.0 87.5    79.6 85.8    92.1 96.0    78.0 87.0
#           CuratedTREC's answers are regular expressions, and are matched as such. Table A3: 128M TASER, 218M DPR.
#           §4.1: an epoch of training and validation takes TASER 11 minutes and DPR 15, a ratio of 0.73; the last table has both models'
#           seconds. `all` is the whole training divided by its epochs: a training that was interrupted counts from its last start only
#
#     bash examples/taser_multiset.sh           # DATA=… WORK=… MODEL=… STAR=… and everything at the top of taser_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/taser_steps.sh"

multiset_first
bm25 wikipedia "$BM25" dev "${tests[@]}"
multiset dpr-first "$MODEL" dpr
for kind in dpr:dpr taser:role; do
  multiset "${kind%:*}" "$MODEL" "${kind#*:}" mined
  multiset "${kind%:*}-star" "$STAR" "${kind#*:}" mined
done
for model in dpr-first dpr-star; do searched "$model" wikipedia "${tests[@]}"; done
for model in dpr taser taser-star; do
  searched "$model" wikipedia dev "${tests[@]}"
  hybrid "$model"
done
tables "Tables 1 and A2" wikipedia "${tests[@]}" -- \
  bm25/bm25 {dpr-first,dpr,dpr-bm25,dpr-star,taser,taser-bm25,taser-star,taser-star-bm25}/global
say "Table A3: parameters"
parameters dpr taser
say "§4.1: seconds of an epoch"
epochs dpr taser
