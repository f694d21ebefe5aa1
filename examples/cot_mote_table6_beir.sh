#!/usr/bin/env bash
# CoT-MoTE, Table 6: trained on MS MARCO, searched on fourteen sets of BEIR.
#
# Paper:    Ma et al. 2023, CoT-MoTE: … Pre-training with Mixture-of-Textual-Experts for Passage Retrieval, A.3, Table 6
# Data:     as cot_mote_msmarco.sh; BEIR (default data/beir), BEIR's own folders (SETS), cqadupstack with its twelve parts;
#           DOCUMENTS (default data/odqa/corpus.jsonl, Wikipedia as taser_sets.py writes it), or MOTE, weights pre-trained on Wikipedia
# Recipe:   mote of cot_mote_msmarco.sh, pre-trained on these documents, in a WORK folder of its own, as it is
# Hardware: as cot_mote_msmarco.sh
# Hours:    queries and pre-training as cot_mote_msmarco.sh, 70 to 140; two trainings of 3, the search of MS MARCO's training queries
#           5 to 30, encodings of 25 million documents 5; estimated
# Expected: percent, Table 6, nDCG@10 (of which score the paper does not say; hybrid)
#             trec-covid 75.2  nfcorpus 33.1  nq 57.3       hotpotqa 66.8        fiqa 35.3     arguana 50.2  webis-touche2020 29.0
#             quora 75.4       scidocs 16.7   fever 74.1    climate-fever 24.8   scifact 71.0  dbpedia-entity 42.0
#             cqadupstack 34.8, the mean of its parts        mean of the fourteen 49.0
#
#     bash examples/cot_mote_table6_beir.sh         # DATA=… WORK=… MODEL=… SETS=… and everything at the top of cot_mote_steps.sh and steps.sh
set -euo pipefail
DOCUMENTS=${DOCUMENTS:-data/odqa/corpus.jsonl} WORK=${WORK:-work/mote-wiki}
. "$(dirname "${BASH_SOURCE[0]}")/cot_mote_steps.sh"
SETS=${SETS:-trec-covid nfcorpus nq hotpotqa fiqa arguana webis-touche2020 quora dbpedia-entity scidocs fever climate-fever scifact \
$(printf 'cqadupstack/%s ' android english gaming gis mathematica physics programmers stats tex unix webmasters wordpress)}

bm25_negatives
recipe mote
zero_shot "Table 6" "$SETS" nDCG@10 mote/{global,lexical,fused}
