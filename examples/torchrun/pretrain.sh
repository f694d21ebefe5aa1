#!/usr/bin/env bash
# Pre-train on all GPUs of one machine, or with NODES, RANK and HOST on several (as in finetune.sh).
#
#     GPUS=8 OBJECTIVE=cotmae bash examples/torchrun/pretrain.sh
#     GPUS=8 OBJECTIVE=mote QUERIES="asked-0.jsonl asked-1.jsonl" LENGTH=144 RATE=3e-4 BATCH=2048 STEPS=80000 bash examples/torchrun/pretrain.sh
#
# QUERIES: files of generate-queries, for mote and cotmae-qc. CACHE is the folder of the tokens, which several trainings can share. PARTS:
# batches a step, each of BATCH / PARTS spans, where BATCH does not fit. More flags of pretrain stand behind the script's name, e.g. --held-out 0.001
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
OBJECTIVE=${OBJECTIVE:-cotmae} OUTPUT=${OUTPUT:-pre/${OBJECTIVE%%:*}} PARTS=${PARTS:-1} flags=()
for file in ${QUERIES:-}; do flags+=(--queries "$file"); done
launch pretrain --model "${MODEL:-bert-base-uncased}" ${ARCH:+--arch "$ARCH"} --objective "$OBJECTIVE" --corpus "${CORPUS:-corpus.jsonl}" \
  "${flags[@]}" --query-length "${QUERY_LENGTH:-64}" --document-length "${LENGTH:-128}" --learning-rate "${RATE:-1e-4}" \
  --batch-size $((${BATCH:-1024} / PARTS)) --accumulate "$PARTS" --steps "${STEPS:-100000}" --checkpoint-every "${CHECKPOINT_EVERY:-10000}" \
  --cache "${CACHE:-$OUTPUT.tokens}" --output "$OUTPUT" "$@"
