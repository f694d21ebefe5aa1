#!/usr/bin/env bash
# A decoder that reranks by the words yes and no, trained by LCE with an adapter, and its scores as the teacher of a small mixture.
#
# Idea:     LCE's localised negatives for a language model; what it knows goes into CAME over MiniLM, which searches alone afterwards
# Data:     adapters_steps.sh; STUDENT (default sentence-transformers/all-MiniLM-L6-v2)
# Recipe:   BM25's top documents as negatives -> LCE, 8 documents a query -> BM25's top 100 reranked, before and after training -> scores of
#           all training examples -> CAME by the teacher's softmax (kl), and without a teacher
# Hardware: one H100 of 80 GB
# Hours:    computed (adapters_steps.sh), MODEL=Qwen/Qwen3-0.6B, pairs of 220 tokens: training 1.5, the 6,980 and 97 queries reranked twice .3,
#           scores of 503,000 x 15 pairs 1.4; each training of the student .3, its encoding .1
# Expected: unknown
#
#     bash examples/adapters_reranker.sh
set -euo pipefail
STUDENT=${STUDENT:-sentence-transformers/all-MiniLM-L6-v2} STUDENT_RATE=${STUDENT_RATE:-5e-5} STUDENT_LAYERS=${STUDENT_LAYERS:-4}
PAIR_LENGTH=${PAIR_LENGTH:-256} TEACHER_TEMPERATURE=${TEACHER_TEMPERATURE:-2}
. "$(dirname "${BASH_SOURCE[0]}")/adapters_steps.sh"
called+=([fused]='' [reranked]='')

prepared
reranked() { # MODEL SET...: runs/MODEL/SET/reranked.trec, BM25's top 100 scored again
  local set
  for set in "${@:2}"; do
    $MOEIR rerank --model "$WORK/ckpt/$1" --run "$(path "$set" bm25/bm25)" --queries "${queries[$set]}" --corpus "${corpora[msmarco]}" --depth 100 \
      --output "$(path "$set" "$1/reranked")"
  done
}

say "the reranker, untrained and trained"
$MOEIR init --model "$MODEL" --arch cross-encoder:head=yes-no --query-length "$QUERY_LENGTH" --document-length "$PAIR_LENGTH" \
  --output "$WORK/ckpt/untrained"
learned reranker "$MODEL" "cross-encoder:head=yes-no,adapters=$RANK" lce train --document-length "$PAIR_LENGTH" "${memory[@]}"
for model in untrained reranker; do reranked "$model" dev dl19 dl20; done

say "its scores, and a mixture that learns them"
$MOEIR rerank --train "$WORK/data/train.jsonl" --model "$WORK/ckpt/reranker" --corpus "${corpora[msmarco]}" --queries "${queries[train]}" \
  --output "$WORK/data/scored.jsonl"
arch=came:shared_layers=$STUDENT_LAYERS,pooling=mean,normalise=true,global_scale=20
settings+=(--document-length "$DOCUMENT_LENGTH") RATE=$STUDENT_RATE
learned distilled "$STUDENT" "$arch" "kl:temperature=$TEACHER_TEMPERATURE,flops_query=1.5e-3,flops_document=1.5e-3" scored
learned alone "$STUDENT" "$arch" contrastive:flops_query=1.5e-3,flops_document=1.5e-3 train
for model in distilled alone; do searched "$model" msmarco dev dl19 dl20; done
tables "Reranked, and learned from it" msmarco dev dl19 dl20 -- bm25/bm25 untrained/reranked reranker/reranked alone/fused distilled/fused
