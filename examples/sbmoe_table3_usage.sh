#!/usr/bin/env bash
# SB-MoE, Table III: how many experts are the gate's first choice for at least 100,000 documents; for each collection.
#
# Paper:    Sokli et al. 2025, Mixture of Experts Approaches in Dense Retrieval Tasks, §VI, Table III
# Data:     as sbmoe_table1.sh; with the WORK folder of sbmoe_figure2.sh this script reuses its trainings
# Recipe:   top1-N of sbmoe_figure2.sh, N = 3, 6, 9, 12 experts (COUNTS): the gate's choice for every document of the collection.
#           The release counts each document twice, once by its refined vector
# Hardware: as sbmoe_table1.sh
# Hours:    beyond sbmoe_figure2.sh four passes over the documents, a quarter of an hour each on MS MARCO; estimated
# Expected: Table III, experts used of   3    6    9   12      THRESHOLD, of the documents
#             msmarco                    3    3    6    5      1.14 %
#             nq                         3    2    5    4      3.85 %
#             hotpotqa                   3    4    7    5      1.92 %
#             ps                         3    5    5    5      2.08 %
#             cs                         3    4    4    7      2.08 %
#           The last line about each model says how many experts THRESHOLD documents or more chose; the tables have the share of each.
#
#     bash examples/sbmoe_table3_usage.sh       # COLLECTIONS=… THRESHOLD=… and everything at the top of sbmoe_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/sbmoe_steps.sh"
COUNTS=${COUNTS:-3 6 9 12} THRESHOLD=${THRESHOLD:-100000}

cell() {
  local count used
  split
  for count in $COUNTS; do
    top1 "$count"
    say "Table III, $backbone on $collection: usage of $count experts"
    $MOEIR analyze usage --model "$WORK/ckpt/top1-$count" --corpus "${corpora[$corpus]}" | tee "$WORK/usage-$count.txt"
    used=$(awk -v threshold="$THRESHOLD" '$4 != "all" && $5 + 0 >= threshold { used++ } END { print used + 0 }' "$WORK/usage-$count.txt")
    say "$used of $count experts used"
  done
}

each_cell cell
