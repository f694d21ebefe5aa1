#!/usr/bin/env bash
# SB-MoE, Figure 2: the number of experts, with all of them in use, as bars over the collections.
#
# Paper:    Sokli et al. 2025, Mixture of Experts Approaches in Dense Retrieval Tasks, §VI, Figure 2
# Data:     as sbmoe_table1.sh, whose WORK folder this script reuses
# Figure:   WORK/figures/figure2-R.svg and figure2-nDCG.svg, recall@100 and nDCG@10
# Recipe:   TinyBERT, all-N with N = 3, 6, 9, 12 experts (COUNTS), each trained by noisy top-1, against fine-tuned
# Hardware: as sbmoe_table1.sh
# Hours:    beyond fine-tuned of sbmoe_table1.sh four trainings of 4 on MS MARCO; estimated
# Expected: Figure 2 prints no numbers. The text: on NQ nDCG@10 gains from 3.29 to 5.76 per cent of fine-tuned's .261, whatever the number;
#           on DL19 nDCG@10 is best with 3 experts and recall@100 with 12; recall@100 is best with 3 on msmarco, nq, ps and cs.
#           Parameters of the block with N = 3, 6, 9, 12: 343,674, 638,520, 933,366, 1,228,212
#
#     bash examples/sbmoe_figure2.sh            # COLLECTIONS="msmarco nq hotpotqa ps cs" and all at the top of sbmoe_steps.sh, steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/sbmoe_steps.sh"
COUNTS=${COUNTS:-3 6 9 12}

cell() {
  local count set rows=(fine-tuned/global)
  split
  fine_tuned
  searched fine-tuned "$corpus" "${tests[@]}"
  for count in $COUNTS; do
    top1 "$count"
    all "$count"
    searched "all-$count" "$corpus" "${tests[@]}"
    rows+=("all-$count/global")
  done
  tables "Figure 2, $backbone" "$corpus" "${tests[@]}" -- "${rows[@]}"
  for set in "${tests[@]}"; do gather "$set" "${rows[@]}"; done
}

each_cell cell
for measure in $wanted; do figure "figure2-${measure%@*}" bars "$measure" "${grid[@]}"; done
