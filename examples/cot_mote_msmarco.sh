#!/usr/bin/env bash
# CoT-MoTE on MS MARCO, from BERT to the tables: queries written by a T5, pre-training with experts for queries and passages against one
# encoder, two encoders and switched corpora, two fine-tunings each. Tables 2, 3, 4 and 5.
#
# Paper:    Ma et al. 2023, CoT-MoTE: … Pre-training with Mixture-of-Textual-Experts for Passage Retrieval, §3, §4, §5.1, §5.2
# Data:     DATA (default data/msmarco), as came_msmarco.sh says, and TREC DL 2020 as sbmoe_table1.sh says; the passages with titles, and
#           the documents, all 3.2 million of the document ranking task:
#             titled.tsv                        id, title, text between tabs under that header, of RocketQA's para.txt and para.title.txt:
#               { printf 'id\ttitle\ttext\n'; join -t $'\t' -e '' -a 1 -o 1.1,2.2,1.2 <(sort -k1,1 para.txt) <(sort -k1,1 para.title.txt); }
#             qidpidtriples.train.full.2.tsv    the training set's negatives: query, positive and negative id; TRIPLES=no: BM25's top 1000
#             msmarco-docs.tsv                  { printf 'id\turl\ttitle\ttext\n'; zcat msmarco-docs.tsv.gz; }
#           MODEL (default bert-base-uncased), whose weights pre-training starts from. T5 (default models/doc2query-t5-base):
#           doc2query/all-with_prefix-t5-base-v1, on the hub as pytorch_model.bin only; convert it once to safetensors:
#               python -c '
#               import sys
#               from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
#               for kind in (AutoModelForSeq2SeqLM, AutoTokenizer): kind.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
#               ' doc2query/all-with_prefix-t5-base-v1 models/doc2query-t5-base
#           MOTE, SIAMESE, SEPARATE, SWITCHED: weights that are pre-trained already; ROWS: which of the four to train. COTMAE_V2: weights
#           of CoT-MAE v2, the paper's strongest baseline, for a row of its own: one encoder, no experts, another pre-training, which is not
#           in moeir
# Recipe:   documents cut to spans of whole sentences, 144 tokens or fewer -> 5 queries a span, sampled from the 25 likeliest tokens and 95 %
#           of their probability -> 80,000 steps of 2,048 spans with a query each (the paper's batch of 2k), rate 3e-4, after 2,000
#           that must use the bottleneck (GATE) -> the training set's BM25 negatives (TRIPLES) -> 3 epochs -> the model's top 200 of all training queries by the hybrid score ->
#           3 epochs on those alone, again from the pre-trained weights -> search. 64 queries x (1 + 15) passages a step, hybrid score =
#           dense + sparse, no FLOPS penalty; one model gives three rows (cot_mote_steps.sh). The predecessors' scripts keep 30 or 128 of
#           the 200. The paper does not state the masking rate: 30 %, whole words, as its predecessors
# Hardware: the paper's pre-training: 8 A100, 12 hours. Here: one GPU of 140 GB (LEARN_PARTS=4 fits 80) or LAUNCH on 8, 16 cores, 200 GB of memory
#           (BM25_DEPTH=200: a fifth), 100 GB of disk a model, more as long as its sparse vectors are dense: no penalty asks them to be sparse
# Hours:    estimated from operation counts for an H200 as examples/README.md says, not measured: queries 60 to 120 (SHARDS: parts for as many
#           GPUs); each pre-training 1.4e19 FLOP, 10 to 20 (LAUNCH on 8 GPUs: 2 to 3), its gate a fortieth; eight trainings of 3, encodings
#           of 1, exact search of training queries 5 to 30 for each of four: 150 to 350
# Expected: percent, Tables 3 and 5, RR@10 R@1 R@50 R@1000   dense                 sparse                hybrid
#             mote                                           39.7 26.7 88.1 98.7   40.5 27.1 88.4 98.8   42.0 28.6 89.7 98.7
#             mote-bm25                                      37.7 24.9 86.8 98.4   39.6 26.7 87.6 98.7   40.5 27.3 88.7 98.4
#             siamese                                        39.3 26.1 88.4 98.8   39.3 26.2 86.6 98.4   40.9 27.3 89.2 98.8
#             separate                                       38.4 25.3 87.3 98.5   39.4 26.4 86.8 98.4   40.5 27.1 89.4 98.5
#           Table 2: bm25 RR@10 18.7, R@50 59.2, R@1000 85.7, nDCG@10 of DL19 51.2 and DL20 47.7; mote-hybrid on DL19 75.5, DL20 72.9;
#           cotmae-v2-hybrid 41.4, 89.4, 98.7, 74.5 and 70.8. The paper marks what is significantly better than CoT-MAE v2: so do the
#           tables, or without COTMAE_V2 what is better than siamese-hybrid, the same pre-training without experts
#           Table 4, RR@10: mote as above; switched (queries through the passage's expert and passages through the query's while
#           pre-training, as everywhere else while fine-tuning) dense 37.9, sparse 37.7, hybrid 40.2
#
#     bash examples/cot_mote_msmarco.sh             # DATA=… WORK=… MODEL=… and everything at the top of cot_mote_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/cot_mote_steps.sh"

ROWS=${ROWS:-mote siamese separate switched} baseline=siamese marks=()
if [ -n "$COTMAE_V2" ]; then ROWS="$ROWS cotmae-v2" baseline=cotmae-v2; fi
case " $ROWS " in *" $baseline "*) marks=(--against "$baseline-hybrid") ;; esac

bm25_negatives
rows=(bm25/bm25)
for row in $ROWS; do
  recipe "$row"
  rows+=("$row"/{global,lexical,fused})
  if [ "$row" = mote ]; then rows+=(mote-bm25/{global,lexical,fused}); fi
done
for set in "${tests[@]}"; do
  say "Tables 2, 3, 4 and 5, $set"
  table msmarco "$set" "${marks[@]}" -- "${rows[@]}"
done
