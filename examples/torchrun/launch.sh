# One process per GPU; sourced, not run. GPUS per node, the number of NODES, this node's RANK, and the first node's HOST as name:port.
# shellcheck shell=bash
TORCHRUN=${TORCHRUN:-torchrun} GPUS=${GPUS:-8} NODES=${NODES:-1} RANK=${RANK:-0} HOST=${HOST:-localhost:29500}

launch() { # STAGE FLAGS...
  if [ "$NODES" = 1 ]; then
    $TORCHRUN --standalone --nproc-per-node "$GPUS" -m moeir "$@"
  else
    $TORCHRUN --nnodes "$NODES" --node-rank "$RANK" --nproc-per-node "$GPUS" \
      --rdzv-backend static --master-addr "${HOST%:*}" --master-port "${HOST##*:}" -m moeir "$@"
  fi
}
