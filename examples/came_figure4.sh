#!/usr/bin/env bash
# CAME, Figure 4: the case study, ranks of the relevant passage in the lists of single models, of CAME's experts and of CAME.
#
# Paper:    Cai et al. 2023, §5.5, Figure 4
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   single-EXPERT is only-EXPERT of came_table3.sh, a model of one expert; expert-EXPERT and came are came-bm25's, trained on the
#           same queries and negatives (the paper does not say which CAME it shows). WORK/figure4/wins.tsv lists every development query with
#           the single model that is best on it by RR@10, largest difference first; the cases are for each single model the first query
#           that it alone wins, or CASES="ID ID …"
# Hardware: as came_msmarco.sh
# Hours:    beyond came_table3.sh none; by itself the first training of came_msmarco.sh and three more: 30 beyond it; estimated
# Expected: the paper's three cases are a picture: on each, one or two models rank the passage at the top, others beyond 1000 (-), and CAME
#           ranks it high on all three
#
#     bash examples/came_figure4.sh
set -euo pipefail
COLLECTION=msmarco
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
judged=(--qrels "${qrels[dev]}")

came_bm25
single=()
for expert in "${experts[@]}"; do
  alone "$expert"
  single+=(--run "single-$expert=$(path dev "only-$expert/$expert")")
done
$MOEIR analyze wins --list "${single[@]}" "${judged[@]}" --measure RR@10 --output "$WORK/figure4/wins.tsv"
first_win() { awk -F '\t' -v winner="single-$1" '$2 == winner { print $1; exit }' "$WORK/figure4/wins.tsv"; }
cases=()
for query in ${CASES:-$(for expert in "${experts[@]}"; do first_win "$expert"; done)}; do cases+=(--query "$query"); done
lists=()
for expert in "${experts[@]}"; do lists+=(--run "expert-$expert=$(path dev "came-bm25/$expert")"); done
lists+=(--run "came=$(path dev came-bm25/fused)")
say "Figure 4: ranks of relevant passages"
$PYTHON "$examples/ranks.py" "${single[@]}" "${lists[@]}" "${judged[@]}" --queries "${queries[dev]}" "${cases[@]}" --depth "$DEPTH"
