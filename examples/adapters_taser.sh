#!/usr/bin/env bash
# TASER whose experts are adapters of a frozen decoder, routed by token, by text and by role, beside one adapter of as many parameters.
#
# Idea:     routed LoRA experts for retrieval; four of rank 8 against one of rank 32
# Data:     adapters_steps.sh
# Hardware: one H100 of 80 GB
# Hours:    computed (adapters_steps.sh), MODEL=Qwen/Qwen3-0.6B: 1 for each of four trainings, encoding .6 for each
# Expected: unknown: nobody has published it
#
#     bash examples/adapters_taser.sh
set -euo pipefail
ROUTINGS=${ROUTINGS:-token sequence role} EXPERTS=${EXPERTS:-4}
. "$(dirname "${BASH_SOURCE[0]}")/adapters_steps.sh"

prepared
models=(one)
learned one "$MODEL" "dense:pooling=last,normalise=true,adapters=$((EXPERTS * RANK / 2))" contrastive train \
  --document-length "$DOCUMENT_LENGTH" "${memory[@]}"
for routing in $ROUTINGS; do
  experts=$EXPERTS rank=$((RANK / 2))
  if [ "$routing" = role ]; then experts=2 rank=$((EXPERTS * RANK / 4)); fi
  options=adapters=$rank,experts=$experts,routing=$routing,gate_input=block_input # decided before the layer, so that all its maps have experts
  learned "$routing" "$MODEL" "taser:every=0,pooling=last,normalise=true,$options" contrastive train --document-length "$DOCUMENT_LENGTH" "${memory[@]}"
  models+=("$routing")
done
for model in "${models[@]}"; do searched "$model" msmarco dev dl19 dl20; done
tables "TASER over $MODEL" msmarco dev dl19 dl20 -- bm25/bm25 "${models[@]/%//global}"
for model in "${models[@]:1}"; do
  [ "$model" = role ] || $MOEIR analyze usage --model "$WORK/ckpt/$model" --queries "${queries[dev]}"
done
