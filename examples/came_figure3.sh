#!/usr/bin/env bash
# CAME, Figure 3: temperature of the competition, ratio of standardised steps, number of shared layers; and the choice of the temperature.
#
# Paper:    Cai et al. 2023, §4.4, §5.4, Figure 3 (a), (b), (c)
# Data:     as came_msmarco.sh or came_nq.sh; with their WORK folder this script reuses their outputs
# Recipe:   BM25 negatives only, the same epochs for all, one value at a time changed from came-bm25, the first training of the recipe.
#           Each panel is a table of the test sets, the recipe's own value first, and WORK/figure3/PANEL-SET.svg, its curves for the fusion
#           and for each expert. Standardised losses are averaged, so that only the ratio changes in (b): NORMALISE in came_steps.sh.
#           The temperature is chosen as in §4.4, on training queries that are held out (MS MARCO) or on the development questions (NQ):
#           a table of them follows (a), and the best is named. TEMPERATURE=… sets it in every script.
#           The grids of (a) and (b) are ours: the paper says 0.2 to 3.0, and names the ratios 0.133 and 0.267
# Hardware: as came_msmarco.sh; KEEP=no, or 6 TB of disk
# Hours:    beyond the first training thirteen trainings, encodings and searches of test queries: 130 (MS MARCO), 90 (NQ); estimated
# Expected: Figure 3 prints no numbers. (a) best at 0.5 on MS MARCO, at 2.0 on NQ; (b) best at 0.2, stable from 0.133 to 0.267, much worse
#           below; (c) within 0.2 points from 6 to 10 shared layers, clearly worse with 12. came-bm25: RR@10 39.0, NQ Top-20 83.7
#
#     bash examples/came_figure3.sh             # COLLECTION=nq; LAYERS=6 for weights of six layers scales (c) to 3 4 5 6
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
TEMPERATURES=${TEMPERATURES:-0.2 0.5 1 1.5 2 2.5 3}
RATIOS=${RATIOS:-0.0667 0.1333 0.2 0.2667 0.3333} SHARED_LAYERS=${SHARED_LAYERS:-6 8 10 12}

layers() { for value in $SHARED_LAYERS; do echo $((value * LAYERS / 12)); done | sort -nu; }

swept() { # NAME VALUE DEFAULT OBJECTIVE ARCH: the model of one value, and its row; the recipe's own value is came-bm25, the first row
  if awk -v one="$2" -v other="$3" 'BEGIN { exit one != other }'; then return; fi
  variant "$1-${2/./_}" "$4" "$5"
  rows+=("$1-$2=$1-${2/./_}/fused")
}

curves() { # TITLE: the rows as a table of each test set, and their first measure as curves
  local part row run model name=${rows[0]%%-*} paths runs judgements
  tables "Figure 3 $1" "${rows[@]}"
  for part in "${tests[@]}"; do
    paths=() runs=() judgements=${qrels[$part]:-$WORK/figure3/$name-$part.qrels}
    for row in "${rows[@]}"; do
      model=${row#*=} model=${model%/*}
      for run in fused "${experts[@]}"; do
        paths+=("$(path "$part" "$model/$run")")
        runs+=(--run "$run/$(label "${row#*-}")=$(path "$part" "$model/$run")")
      done
    done
    if [ -z "${qrels[$part]:-}" ]; then
      $PYTHON "$examples/answer_qrels.py" --answers "${answers[$part]}" --corpus "$corpus" --output "$judgements" "${paths[@]}"
    fi
    $PYTHON "$examples/grid.py" "${runs[@]}" --qrels "$judgements" --measure "${measures[$part]%% *}" --plot lines \
      --output "$WORK/figure3/$name-$part.svg"
  done
}

came_bm25
rows=("temperature-$TEMPERATURE=came-bm25/fused")
for value in $TEMPERATURES; do swept temperature "$value" "$TEMPERATURE" "$(competitive "$STANDARDISED" "$value")" "$(came)"; done
curves "(a), temperature"
say "§4.4, the choice of the temperature, $COLLECTION validation"
table validation "${rows[@]}"
best=$(FORM=tsv table validation "${rows[@]}" | sort -t $'\t' -k 4,4gr -s | awk 'NR == 1 { print $1 }')
say "best on the validation set: $best"
rows=("ratio-$STANDARDISED=came-bm25/fused")
for value in $RATIOS; do swept ratio "$value" "$STANDARDISED" "$(competitive "$value")" "$(came)"; done
curves "(b), ratio of standardised steps"
rows=("shared-$SHARED=came-bm25/fused")
for value in $(layers); do swept shared "$value" "$SHARED" "$(competitive)" "$(came lexical+local+global "$value")"; done
curves "(c), shared layers of $LAYERS"
