#!/usr/bin/env bash
# Finetune on all GPUs of one machine; with NODES, RANK and HOST on several, the same command on each.
#
#     GPUS=8 bash examples/torchrun/finetune.sh
#     NODES=4 RANK=0 HOST=node0:29500 GPUS=8 bash examples/torchrun/finetune.sh       # on node0, RANK=1 on the next, …
#
# --batch-size is the batch of all processes together, so the number of processes and nodes changes the speed, not the result.
# WORK, the data and OUTPUT are on a file system that all nodes share; one process writes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
launch finetune --model "${MODEL:-bert-base-uncased}" --arch "${ARCH:-came}" --objective "${OBJECTIVE:-competitive:standardised=0.2,temperature=0.5}" \
  --train "${TRAIN:-train.jsonl}" --corpus "${CORPUS:-corpus.jsonl}" --queries "${QUERIES:-train-queries.jsonl}" \
  --batch-size "${BATCH:-256}" --gradient-cache "${TOKENS_AT_ONCE:-16384}" --epochs "${EPOCHS:-1}" --output "${OUTPUT:-ckpt/came}"
