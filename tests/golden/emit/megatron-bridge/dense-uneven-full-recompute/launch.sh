#!/usr/bin/env bash
# Plan "training", sha256:PLAN, by planner 0.1.0
# Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on node 0 of pool "h100".
# It runs train.py from the folder that it is started in.
set -euo pipefail
: "${NODE_RANK:?set NODE_RANK to the number of this node}"
[ -n "${MASTER_ADDR:-}" ] || MASTER_ADDR=node-00
MASTER_PORT="${MASTER_PORT:-29500}"
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun \
  --nnodes 2 \
  --nproc-per-node 8 \
  --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" \
  --master-port "${MASTER_PORT}" \
  train.py \
    "$@"
