#!/usr/bin/env bash
# CAME, Table 4, lower half: competitive learning against three models trained separately.
#
# Paper:    Cai et al. 2023, §5.3, Table 4
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   BM25 negatives only, the same epochs for all; fused by sum of scores, by sum of reciprocal ranks and by a learned linear layer,
#           as in came_table4_fusion.sh:
#             competitive               came-bm25, the first training of came_msmarco.sh
#             all-independent           one model for each expert, each trained on all queries: only-EXPERT of came_table3.sh
#             suit-independent          each of the three trained on its part of the queries only, those on which CAME's expert of that name
#                                       has the best RR@10 of the three; equally good experts share a query (suit_split.py)
#           The paper fuses suit-independent by the linear layer alone; its other two rows are ours.
# Hardware: as came_msmarco.sh; KEEP=no, or 3 TB of disk
# Hours:    beyond came_msmarco.sh six trainings (three of them shared with came_table3.sh), encodings and searches: 40;
#           and the exact search of the training queries, 10 to 60, unless came_msmarco.sh did it; estimated
# Expected: percent, Table 4                R@1000  R@100  RR@10
#             competitive-came-sum            98.4   91.7   39.0
#             competitive-sumrr               98.5   91.7   38.4
#             competitive-linear              98.4   91.8   39.2
#             all-independent-came-sum        97.5   88.4   35.1
#             all-independent-sumrr           98.1   90.4   37.2
#             all-independent-linear          98.2   90.8   37.8
#             suit-independent-linear         98.1   91.0   38.1
#           The paper marks as different from the first row R@100 and RR@10 of the last four, and R@1000 of all-independent-came-sum;
#           here p is printed
#
#     bash examples/came_table4_learning.sh     # COLLECTION=nq for the same on NQ, which the paper does not report
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"

came_bm25 train
split=$WORK/data/suit
if [ ! "$split/global.jsonl" -nt "$WORK/data/bm25.jsonl" ] || [ ! "$split/global.jsonl" -nt "$(path train came-bm25/fused)" ]; then
  say "which expert suits which training query"
  $PYTHON "$examples/suit_split.py" --examples "$WORK/data/bm25.jsonl" --qrels "${qrels[train]}" \
    --runs "$WORK/runs/came-bm25/train" --output "$split"
fi
for expert in "${experts[@]}"; do
  alone "$expert"
  trained "suit-$expert" "$MODEL" "$split/$expert.jsonl" "$EPOCHS" "$(contrastive)" "$(came "$expert")"
  searched "suit-$expert" validation "${tests[@]}"
done
methods="came-sum sumrr linear"
fused competitive "$methods" came-bm25/{lexical,local,global}
fused all-independent "$methods" only-lexical/lexical only-local/local only-global/global
fused suit-independent "$methods" suit-lexical/lexical suit-local/local suit-global/global
rows=()
for model in competitive all-independent suit-independent; do
  for method in $methods; do rows+=("$model-$method=$model-$method/fused"); done
done
tables "Table 4" "${rows[@]}"
