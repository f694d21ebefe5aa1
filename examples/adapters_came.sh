#!/usr/bin/env bash
# CAME whose three towers are adapters of a frozen decoder, beside one adapter for a dense retriever, on MS MARCO passages.
#
# Idea:     a tower of CAME as a low-rank update (docs/adapters.md) in place of copied layers: over 8 billion parameters three towers of the
#           last 12 layers are 44 million parameters more, not 6.9 billion
# Data:     adapters_steps.sh
# Recipe:   a decoder whose tokens attend to all of their text, few terms to begin with -> BM25's negatives -> one epoch, all experts alike ->
#           all experts encoded in one pass -> search, the sum of scores
# Scales:   unit token vectors times 2, terms times .05: without, SmolLM2-135M's scores of tokens and terms began in the hundreds, and its local
#           expert learned less (tests/benchmarks/results/adapters.md); not tried over Qwen3
# Hardware: one H100 of 80 GB; 400 GB of disk for token vectors and their index (KEEP=no: half of it)
# Hours:    computed (adapters_steps.sh). MODEL=Qwen/Qwen3-0.6B: CAME 1.5 and the dense one .9, encoding 1 and .6. MODEL=Qwen/Qwen3-8B
#           SHARED_LAYERS=24 MEMORY="--recompute --gradient-cache 16", which is two more passes forward: 46 and 28, encoding 15 and 9
# Expected: unknown: nobody has published it
#
#     bash examples/adapters_came.sh
set -euo pipefail
SHARED_LAYERS=${SHARED_LAYERS:-20} FLOPS=${FLOPS:-1e-3} # of 28 layers, or 36
. "$(dirname "${BASH_SOURCE[0]}")/adapters_steps.sh"
called+=([fused]="" [global]=global)

prepared
arch=came:shared_layers=$SHARED_LAYERS,pooling=last,normalise=true,local_normalise=true,local_scale=2,lexical_scale=0.05
arch+=,adapters=$RANK,shared_adapters=$RANK
$MOEIR init --model "$MODEL" --arch "$arch" --backbone bidirectional --corpus "${corpora[msmarco]}" --query-length "$QUERY_LENGTH" \
  --document-length "$DOCUMENT_LENGTH" --output "$WORK/ckpt/start"
learned came "$WORK/ckpt/start" "$arch" "contrastive:flops_query=$FLOPS,flops_document=$FLOPS" train --document-length "$DOCUMENT_LENGTH" \
  "${memory[@]}"
learned dense "$MODEL" "dense:pooling=last,normalise=true,adapters=$RANK" contrastive train --document-length "$DOCUMENT_LENGTH" "${memory[@]}"
for model in came dense; do searched "$model" msmarco dev dl19 dl20; done
tables "CAME over $MODEL" msmarco dev dl19 dl20 -- bm25/bm25 dense/global came/lexical came/local came/global came/fused
