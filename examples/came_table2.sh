#!/usr/bin/env bash
# CAME, Table 2: contributions of the mined negatives, the specialised and the standardised stage.
#
# Paper:    Cai et al. 2023, §5.2, Table 2
# Data:     as came_msmarco.sh or came_nq.sh; with their WORK folder this script reuses their outputs
# Recipe:   all on BM25 negatives for the same epochs but the first:
#             came              the whole recipe
#             came-bm25         - hard negatives: the first training alone
#             standardised-only - specialised:  every expert learns every query to the end (standardised=1)
#             specialised-only  - standardised: competition from the first step (standardised=0)
#           In all of them the experts' weights sum to 1 in both stages (NORMALISE in came_steps.sh), so that FLOPS weighs the same. Two arms
#           add the losses of the standardised stage, as equation 9 is printed, NORMALISE=false: came-bm25-added, standardised-only-added.
#           Every arm is fused by the sum of scores, which the paper prints, and by SumRR, NormSum and learned weights: a sum depends on the
#           scales of the experts, which the stages set. (The paper's standardised fusion, 36.5, is below its own local expert alone, 37.9.)
# Hardware: as came_msmarco.sh; KEEP=no for two terabytes less
# Hours:    beyond came_msmarco.sh or came_nq.sh, four trainings, encodings and searches of test queries at 9 (MS MARCO) or 6 (NQ): 36 or 24;
#           fusions of held-out and test queries 1; estimated
# Expected: percent, Table 2        MS MARCO R@1000  R@100  RR@10 |  NQ Top-20  Top-100 (answer strings: see came_nq.sh)
#             came                             98.8   92.5   41.3 |       87.5     91.4
#             came-bm25                        98.4   91.7   39.0 |       83.7     89.1
#             standardised-only                98.2   90.6   36.5 |       82.0     87.8
#             specialised-only                 98.3   91.2   37.9 |       82.5     88.1
#           The paper marks rows that are worse than came or came-bm25; here a row has a mark for each other row that it is better than
#
#     bash examples/came_table2.sh              # COLLECTION=nq for the NQ half
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"

recipe
variant standardised-only "$(competitive 1)" "$(came)"
variant specialised-only "$(competitive 0)" "$(came)"
NORMALISE=false
variant came-bm25-added "$(competitive)" "$(came)"
variant standardised-only-added "$(competitive 1)" "$(came)"
arms=(came came-bm25 standardised-only specialised-only came-bm25-added standardised-only-added)
against=("${arms[@]:0:4}") rows=()
for arm in "${arms[@]}"; do rows+=("$arm=$arm/fused"); done
tables "Table 2" "${rows[@]}"
for method in sumrr normsum linear; do
  rows=()
  for arm in "${arms[@]}"; do
    fused "$arm" "$method" "$arm"/{lexical,local,global}
    rows+=("$arm=$arm-$method/fused")
  done
  tables "Table 2, fused by $method" "${rows[@]}"
done
against=()
mapfile -t rows < <(every "${arms[@]}")
tables "Table 2, experts" "${rows[@]}"
