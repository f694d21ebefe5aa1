#!/usr/bin/env bash
# Pre-train on all GPUs of one machine, or with NODES, RANK and HOST on several (as in finetune.sh).
#
#     GPUS=8 OBJECTIVE=cotmae bash examples/torchrun/pretrain.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
launch pretrain --model "${MODEL:-bert-base-uncased}" --arch "${ARCH:-dense}" --objective "${OBJECTIVE:-cotmae}" \
  --corpus "${CORPUS:-corpus.jsonl}" --batch-size "${BATCH:-1024}" --steps "${STEPS:-100000}" --output "${OUTPUT:-pre/cotmae}"
