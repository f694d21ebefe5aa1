#!/usr/bin/env bash
# SB-MoE, Table II: trained on MS MARCO, searched on thirteen sets of BEIR; for each backbone.
#
# Paper:    Sokli et al. 2025, Mixture of Experts Approaches in Dense Retrieval Tasks, §V, Table II
# Data:     as sbmoe_table1.sh for MS MARCO, whose WORK folder this script reuses; BEIR (default data/beir), BEIR's own folders (SETS)
# Recipe:   fine-tuned, top1 and all of sbmoe_table1.sh, as they are
# Hardware: as sbmoe_table1.sh
# Hours:    beyond sbmoe_table1.sh three encodings of 25 million documents: TinyBERT 1, BERT-base 5; estimated
# Expected: Table II, recall@100 and nDCG@10, tinybert   fine-tuned   top1         all
#             trec-covid                                 .058 .338    .061 .348    .061 .356
#             nfcorpus                                   .200 .212    .199 .209    .204 .212
#             nq                                         .653 .245    .658 .250    .657 .250
#             hotpotqa                                   .467 .320    .469 .320    .470 .326
#             fiqa                                       .368 .129    .377 .131    .379 .133
#             arguana                                    .836 .196    .837 .201    .839 .202
#             webis-touche2020                           .321 .131    .329 .142    .337 .143
#             quora                                      .968 .785    .969 .786    .969 .786
#             dbpedia-entity                             .288 .223    .289 .220    .286 .224
#             scidocs                                    .235 .102    .237 .101    .238 .101
#             fever                                      .780 .447    .775 .442    .777 .452
#             climate-fever                              .386 .149    .368 .140    .368 .138
#             scifact                                    .706 .365    .725 .377    .725 .378
#           With Contriever the block loses on trec-covid (.052 .427 to .024 .266) and gains on arguana (.920 .302 to .977 .348).
#           p is of a paired t-test against fine-tuned with Bonferroni's correction over the comparisons of a printed table, two rows by two
#           measures; over the paper's whole table multiply by 52, its backbones and sets
#
#     bash examples/sbmoe_table2_zeroshot.sh    # BACKBONES=… SETS=… and everything at the top of sbmoe_steps.sh and steps.sh
set -euo pipefail
COLLECTIONS=msmarco
. "$(dirname "${BASH_SOURCE[0]}")/sbmoe_steps.sh"
SETS=${SETS:-trec-covid nfcorpus nq hotpotqa fiqa arguana webis-touche2020 quora dbpedia-entity scidocs fever climate-fever scifact}

cell() {
  local name rows=({fine-tuned,top1,all}/global)
  split
  fine_tuned
  top1
  all
  zero_shot "Table II, $backbone" "$SETS" "$wanted" "${rows[@]}"
  for name in $SETS; do gather "beir-${name//\//-}" "${rows[@]}"; done
}

each_cell cell
overview "Table II"
