#!/usr/bin/env bash
# Plan "training", sha256:PLAN, by planner 0.1.0
# Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on node 0 of pool "h100".
# It runs train.py from the folder that it is started in.
set -euo pipefail
: "${PRETRAINED:?set PRETRAINED to the Megatron checkpoint to start from, which AutoBridge.import_ckpt writes of a Hugging Face model}"
: "${DATA:?set DATA to the folder that holds training.jsonl and validation.jsonl}"
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun \
  --standalone \
  --nproc-per-node 8 \
  train.py \
    "$@"
