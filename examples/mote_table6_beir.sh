#!/usr/bin/env bash
# CoT-MoTE, Table 6: trained on MS MARCO, searched on fourteen sets of BEIR.
#
# Paper:    Ma et al. 2023, CoT-MoTE: … Pre-training with Mixture-of-Textual-Experts for Passage Retrieval, A.3, Table 6
# Data:     as mote_msmarco.sh; BEIR (default data/beir), BEIR's own folders (SETS), cqadupstack with its twelve parts;
#           MODEL (default models/cot-mote-wiki): weights pre-trained on Wikipedia. Pre-training comes later
# Recipe:   mote of mote_msmarco.sh from these weights, in a WORK folder of its own, as it is
# Hardware: as mote_msmarco.sh
# Hours:    two trainings of 3, the search of MS MARCO's training queries 5 to 30, encodings of 25 million documents 5: 15 to 45; guessed
# Expected: percent, Table 6, nDCG@10 (of which score the paper does not say; hybrid)
#             trec-covid 75.2  nfcorpus 33.1  nq 57.3       hotpotqa 66.8        fiqa 35.3     arguana 50.2  webis-touche2020 29.0
#             quora 75.4       scidocs 16.7   fever 74.1    climate-fever 24.8   scifact 71.0  dbpedia-entity 42.0
#             cqadupstack 34.8, the mean of its parts        mean of the fourteen 49.0
#
#     bash examples/mote_table6_beir.sh         # DATA=… WORK=… MODEL=… SETS=… and everything at the top of mote_steps.sh and steps.sh
set -euo pipefail
MODEL=${MODEL:-$PWD/models/cot-mote-wiki} WORK=${WORK:-work/mote-wiki}
. "$(dirname "${BASH_SOURCE[0]}")/mote_steps.sh"
SETS=${SETS:-trec-covid nfcorpus nq hotpotqa fiqa arguana webis-touche2020 quora dbpedia-entity scidocs fever climate-fever scifact \
$(printf 'cqadupstack/%s ' android english gaming gis mathematica physics programmers stats tex unix webmasters wordpress)}

bm25_negatives
recipe mote
zero_shot "Table 6" "$SETS" nDCG@10 mote/{global,lexical,fused}
