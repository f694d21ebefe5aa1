#!/usr/bin/env bash
# CAME, Table 3: contributions of the shared layers and of each of the three experts.
#
# Paper:    Cai et al. 2023, §5.3, Table 3
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   BM25 negatives only, the same epochs for all:
#             came-bm25                 the first training of came_msmarco.sh
#             no-sharing                every expert has twelve layers of its own; the embeddings stay shared (279.7 M parameters).
#                                       The other reading, embeddings private too (327.4 M): add embeddings=private to its architecture
#             without-EXPERT            the other two experts
#             only-EXPERT               one expert, so no competition: contrastive learning; its loss has weight 1, in the mixture 1/3 on
#                                       average, so that FLOPS weighs a third as much in only-lexical
# Hardware: as came_msmarco.sh; KEEP=no, or 3 TB of disk
# Hours:    beyond the first training of came_msmarco.sh seven trainings, encodings and searches of test queries: 60; estimated
# Expected: percent, Table 3: R@1000 RR@10     Fusion       Lexical         Local        Global
#             came-bm25                     98.4 39.0     97.6 36.1     96.7 38.8     97.7 36.8
#             no-sharing                    98.3 38.1     97.4 35.1     96.0 38.0     97.7 36.0
#             without-lexical               98.1 38.1             -     96.5 38.5     97.8 36.2
#             without-local                 98.2 37.8     97.4 36.1             -     97.7 36.7
#             without-global                98.1 38.0     97.5 35.9     96.5 38.7             -
#             only-lexical/local/global         -         97.3 35.1     96.0 37.9     97.7 35.9
#
#     bash examples/came_table3.sh              # COLLECTION=nq for the same on NQ, which the paper does not report
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"

came_bm25
variant no-sharing "$(competitive)" "$(came lexical+local+global 0)"
variant without-lexical "$(competitive)" "$(came local+global)"
variant without-local "$(competitive)" "$(came lexical+global)"
variant without-global "$(competitive)" "$(came lexical+local)"
for expert in "${experts[@]}"; do alone "$expert"; done
mapfile -t rows < <(every came-bm25 no-sharing without-{lexical,local,global} only-{lexical,local,global})
tables "Table 3" "${rows[@]}"
