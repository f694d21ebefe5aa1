#!/usr/bin/env bash
# CAME, §5.3: rank-biased overlap of three experts trained independently, and of the experts of one model.
#
# Paper:    Cai et al. 2023, §5.3 (Webber et al. 2010 for the measure)
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   the top 1000 of the development queries of only-EXPERT, the models of one expert of came_table3.sh, in pairs; the same for the
#           experts of came-bm25, competitively trained on the same queries and negatives. The paper does not say its persistence: 0.9,
#           whose weight is on the first ten ranks or so, and 0.98, on the first fifty (PERSISTENCE). Extrapolated RBO
# Hardware: as came_msmarco.sh
# Hours:    beyond came_table3.sh none; by itself the first training of came_msmarco.sh and three more: 30 beyond it; estimated
# Expected: 42 to 48 % between any two of the independent experts; the paper has no numbers for those of one model
#
#     bash examples/came_overlap.sh             # COLLECTION=nq for the same on NQ, which the paper does not report
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
PERSISTENCE=${PERSISTENCE:-0.9 0.98}

overlap() { # TITLE MODEL/EXPERT...: every pair of the runs, for every test set
  local title=$1 part row value runs
  shift
  for part in "${tests[@]}"; do
    runs=()
    for row in "$@"; do runs+=(--run "$(path "$part" "$row")"); done
    for value in $PERSISTENCE; do
      say "§5.3, RBO of persistence $value, $title, $COLLECTION $part"
      $MOEIR analyze overlap "${runs[@]}" --overlap "rbo:persistence=$value"
    done
  done
}

came_bm25
for expert in "${experts[@]}"; do alone "$expert"; done
overlap "trained independently" only-lexical/lexical only-local/local only-global/global
overlap "of came-bm25" came-bm25/{lexical,local,global}
