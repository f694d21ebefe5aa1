#!/usr/bin/env bash
# TASER out of domain: EntityQuestions and four sets of BEIR. Tables 2 and A4.
#
# Paper:    Cheng et al. 2023, Task-Aware Specialization for Efficient and Robust Dense Retrieval, §4.2, Tables 2 and A4
# Data:     DATA, MODEL, STAR as taser_multiset.sh; with its WORK folder this script reuses its outputs
#             DATA/entityquestions.jsonl       the test questions of 24 relations, each with its relation and answers, made by
#                                              `python examples/entityquestions.py ENTITYQUESTIONS/test data/odqa/entityquestions.jsonl`
#           BEIR (default data/beir), BEIR's own folders arguana, dbpedia-entity, fever, hotpotqa (SETS)
# Recipe:   taser, taser-star and dpr of taser_multiset.sh, as they are. EntityQuestions on the same passages: R@20 by relation,
#           their mean (macro), and the mean of all questions (micro); BEIR on each set's own documents
# Hardware: as taser_nq.sh
# Hours:    beyond taser_multiset.sh three encodings of 13 million documents and of Wikipedia (none with KEEP=yes): 5; estimated
# Expected: percent, Tables 2, A4   EntityQuestions R@20 macro, micro, R@100 micro |  nDCG@10 arguana, dbpedia-entity, fever, hotpotqa
#             bm25                                  71.2  70.8  79.2               |          31.5  31.3  75.3  60.3
#             DPR multi (published)                 56.7  56.6  70.1               |          17.5  26.3  56.2  39.1
#             taser                                 64.7  64.3  76.2               |          32.8  31.4  59.6  50.7
#             taser-star                            66.7  66.2  77.9               |          30.5  31.6  58.8  54.5
#
#     bash examples/taser_entityquestions_beir.sh    # DATA=… WORK=… BEIR=… and everything at the top of taser_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/taser_steps.sh"
SETS=${SETS:-arguana dbpedia-entity fever hotpotqa}
queries[entityquestions]=$DATA/entityquestions.jsonl answers[entityquestions]=$DATA/entityquestions.jsonl
measures[entityquestions]="Success@20 Success@100"

multiset_first
multiset dpr "$MODEL" dpr mined
multiset taser "$MODEL" role mined
multiset taser-star "$STAR" role mined
bm25 wikipedia "$BM25" entityquestions
for model in dpr taser taser-star; do searched "$model" wikipedia entityquestions; done
rows=(bm25/bm25 {dpr,taser,taser-star}/global)
zero_shot "Table 2" "$SETS" nDCG@10 "${rows[@]}"
say "Tables 2 and A4, entityquestions"
table wikipedia entityquestions --group-by relation -- "${rows[@]}"
