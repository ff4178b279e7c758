#!/usr/bin/env bash
# Plan "training", sha256:PLAN, by planner 0.1.0
# Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on node 0 of pool "h100".
# The program trains sequences of 4096 tokens.
# It recomputes the first 32 layers whole, by deepspeed.checkpointing.
set -euo pipefail
: "${TRAIN:?set TRAIN to the program that calls deepspeed.initialize with its --deepspeed_config}"

exec torchrun \
  --standalone \
  --nproc-per-node 8 \
  "${TRAIN}" \
    --deepspeed \
    --deepspeed_config ds_config.json \
    "$@"
