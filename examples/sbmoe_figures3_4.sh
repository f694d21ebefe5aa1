#!/usr/bin/env bash
# SB-MoE, Figures 3 and 4: a query and its best thousand documents in three dimensions, without the block and with three experts.
#
# Paper:    Sokli et al. 2025, Mixture of Experts Approaches in Dense Retrieval Tasks, §VI, Figures 3 and 4
# Data:     as sbmoe_table1.sh; with the WORK folder of sbmoe_figure2.sh this script reuses its trainings
# Figures:  WORK/figures/figures3-4-BACKBONE-SET.svg has fine-tuned on the left and all-3 on the right; figures3-4-BACKBONE-SET-block.svg
#           the vectors of all-3 before its block and after it. The paper's left side, "the original DRM", may be either
# Recipe:   TinyBERT; the thousand documents that all-3 has retrieved, by t-SNE to three dimensions with perplexity 30 from the principal
#           components, seed 42 (PERPLEXITY, SEED); coloured by expert, relevant documents ringed, the query a cross. The paper has
#           one query of each set and names none: here the first with a relevant hit, or QUERIES="dl19=156493 nq=test7", SET=QUERY for
#           each
# Hardware: as sbmoe_table1.sh
# Hours:    beyond sbmoe_figure2.sh minutes a figure; estimated
# Expected: the paper reads three things out of its figures: the query and its relevant documents move with the block, documents of one
#           expert form clusters, and queries and relevant documents lie closer. Distances between the clusters of a t-SNE mean little, and
#           both sides are projected by themselves
#
#     bash examples/sbmoe_figures3_4.sh         # COLLECTIONS=… QUERIES=… and everything at the top of sbmoe_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/sbmoe_steps.sh"
COUNT=${COUNT:-3} PERPLEXITY=${PERPLEXITY:-30} QUERIES=${QUERIES:-}

projected() { # NAME FLAGS...
  local name=$1
  shift
  mkdir -p "$cells/figures"
  $PYTHON "$examples/project_vectors.py" "$@" --perplexity "$PERPLEXITY" --dimensions 3 --seed "$SEED" \
    --output "$cells/figures/figures3-4-$backbone-$name.$FIGURES"
}

cell() {
  local set run query choice hits
  split
  fine_tuned
  top1 "$COUNT"
  all "$COUNT"
  searched "all-$COUNT" "$corpus" "${tests[@]}"
  for set in "${tests[@]}"; do
    run=$(path "$set" "all-$COUNT/global")
    query=$(awk 'NR == FNR { if ($NF > 0) relevant[$1, $(NF - 1)]; next } ($1, $3) in relevant { print $1; exit }' "${qrels[$set]}" "$run")
    for choice in $QUERIES; do
      if [ "${choice%%=*}" = "${set#beir-}" ]; then query=${choice#*=}; fi
    done
    say "Figures 3 and 4, $backbone, $set: query $query"
    hits=(--run "$run" --query "$query" --queries "${queries[$set]}" --corpus "${corpora[$corpus]}" --qrels "${qrels[$set]}")
    projected "$set" --model "$WORK/ckpt/fine-tuned" --model "$WORK/ckpt/all-$COUNT" "${hits[@]}"
    projected "$set-block" --model "$WORK/ckpt/all-$COUNT" --before-mixture "${hits[@]}"
  done
}

each_cell cell
