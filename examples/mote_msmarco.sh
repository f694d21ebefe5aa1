#!/usr/bin/env bash
# CoT-MoTE on MS MARCO passages: experts for queries and passages, against one encoder and against two. Tables 2, 3 and 5.
#
# Paper:    Ma et al. 2023, CoT-MoTE: … Pre-training with Mixture-of-Textual-Experts for Passage Retrieval, §3.3, §4, §5.1
# Data:     DATA (default data/msmarco), as came_msmarco.sh says, and TREC DL 2020 as sbmoe_table1.sh says; the passages with titles:
#             titled.tsv                        id, title, text between tabs under that header, of RocketQA's para.txt and para.title.txt:
#               { printf 'id\ttitle\ttext\n'; join -t $'\t' -e '' -a 1 -o 1.1,2.2,1.2 <(sort -k1,1 para.txt) <(sort -k1,1 para.title.txt); }
#           MODEL (default models/cot-mote): the pre-trained weights; MOTE, SIAMESE, SEPARATE where each has its own.
#           THIS IS THE FINE-TUNING. Pre-training on pairs of passages and generated queries comes later, and the numbers below need it.
# Recipe:   BM25's top 1000 without the positives -> 3 epochs -> the model's top 200 of all training queries by the hybrid score ->
#           3 epochs on those alone, again from the pre-trained weights -> search. 64 queries x (1 + 15) passages a step, hybrid score =
#           dense + sparse, no FLOPS penalty; one model gives three rows (mote_steps.sh). The forerunners' scripts keep 30 or 128 of
#           the 200
# Hardware: the forerunners' scripts: 8 GPUs. Here: one of 80 GB or more, 16 cores, 200 GB of memory (BM25_DEPTH=200: a fifth), 100 GB of
#           disk a model, more as long as its sparse vectors are dense: no penalty asks them to be sparse
# Hours:    guessed from operation counts for an H200, not measured: six trainings of 3, encodings of 1, exact search of training queries
#           5 to 30 for each of three: 40 to 120
# Expected: percent, Tables 3 and 5, RR@10 R@1 R@50 R@1000   dense                 sparse                hybrid
#             mote                                           39.7 26.7 88.1 98.7   40.5 27.1 88.4 98.8   42.0 28.6 89.7 98.7
#             mote-bm25                                      37.7 24.9 86.8 98.4   39.6 26.7 87.6 98.7   40.5 27.3 88.7 98.4
#             siamese                                        39.3 26.1 88.4 98.8   39.3 26.2 86.6 98.4   40.9 27.3 89.2 98.8
#             separate                                       38.4 25.3 87.3 98.5   39.4 26.4 86.8 98.4   40.5 27.1 89.4 98.5
#           Table 2: bm25 RR@10 18.7, R@50 59.2, R@1000 85.7, nDCG@10 of DL19 51.2 and DL20 47.7; mote-hybrid on DL19 75.5, DL20 72.9.
#           Table 4, its corpora switched in pre-training, comes with the pre-training
#
#     bash examples/mote_msmarco.sh             # DATA=… WORK=… MODEL=… and everything at the top of mote_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/mote_steps.sh"

bm25_negatives
for encoders in mote siamese separate; do recipe "$encoders"; done
tables "Tables 2, 3 and 5" msmarco "${tests[@]}" -- bm25/bm25 {mote,mote-bm25,siamese,separate}/{global,lexical,fused}
