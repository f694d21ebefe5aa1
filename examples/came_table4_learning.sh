#!/usr/bin/env bash
# CAME, Table 4, lower half: competitive learning against three models trained separately.
#
# Paper:    Cai et al. 2023, §5.3, Table 4
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   BM25 negatives only, the same epochs for all; fused by sum of scores and by sum of reciprocal ranks:
#             came-bm25                 the first training of came_msmarco.sh
#             all-independent           one model for each expert, each trained on all queries: only-EXPERT of came_table3.sh
#             suit-independent          each of the three trained on its part of the queries only, those on which CAME's expert of that name
#                                       has the best RR@10 of the three; equally good experts share a query (suit_split.py)
# Missing:  the learned linear fusion (LinearLayer) is not included yet, nor the one number the paper gives for suit-independent, whose rows
#           by sum and reciprocal ranks are ours. Reciprocal ranks are rrf:constant=0, the paper's without the 60; a document that
#           a list lacks scores 0 in it. NormSum, NormMax and MaxRR are not included either.
# Hardware: as came_msmarco.sh; KEEP=no, or 3 TB of disk
# Hours:    beyond came_msmarco.sh six trainings (three of them shared with came_table3.sh), encodings and searches: 40;
#           and the exact search of the training queries, 10 to 60, unless came_msmarco.sh did it; estimated
# Expected: percent, Table 4              R@1000  R@100  RR@10
#             came-bm25, sum                98.4   91.7   39.0
#             came-bm25, reciprocal ranks   98.5   91.7   38.4
#             all-independent, sum          97.5   88.4   35.1
#             all-independent, recip. ranks 98.1   90.4   37.2
#             all-independent, linear       98.2   90.8   37.8     later
#             suit-independent, linear      98.1   91.0   38.1     later
#
#     bash examples/came_table4_learning.sh     # COLLECTION=nq for the same on NQ, which the paper does not report
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"

fused() { # NAME MODEL/RUN...: NAME-sum and NAME-rr, for every test set
  local name=$1 part run runs
  shift
  for part in "${tests[@]}"; do
    runs=()
    for run in "$@"; do runs+=(--run "$(path "$part" "$run")"); done
    $MOEIR fuse "${runs[@]}" --method came-sum --depth "$DEPTH" --output "$(path "$part" "$name-sum/fused")"
    $MOEIR fuse "${runs[@]}" --method rrf:constant=0 --depth "$DEPTH" --output "$(path "$part" "$name-rr/fused")"
  done
}

came_bm25 train
split=$WORK/data/suit
if [ ! "$split/global.jsonl" -nt "$WORK/data/bm25.jsonl" ] || [ ! "$split/global.jsonl" -nt "$(path train came-bm25/fused)" ]; then
  say "which expert suits which training query"
  $PYTHON "$(dirname "${BASH_SOURCE[0]}")/suit_split.py" --examples "$WORK/data/bm25.jsonl" --qrels "${qrels[train]}" \
    --runs "$WORK/runs/came-bm25/train" --output "$split"
fi
for expert in "${experts[@]}"; do
  alone "$expert"
  trained "suit-$expert" "$MODEL" "$split/$expert.jsonl" "$EPOCHS" "$(contrastive)" "$(came "$expert")"
  searched "suit-$expert" "${tests[@]}"
done
fused came-bm25 came-bm25/{lexical,local,global}
fused all-independent only-lexical/lexical only-local/local only-global/global
fused suit-independent suit-lexical/lexical suit-local/local suit-global/global
tables "Table 4" {came-bm25,all-independent,suit-independent}-{sum,rr}/fused
