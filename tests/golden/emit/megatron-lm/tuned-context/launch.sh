#!/usr/bin/env bash
# Plan "training", sha256:PLAN, by planner 0.1.0
# Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on node 0 of pool "h100".
# It runs Megatron-LM's pretrain_gpt.py. Tokenizer, data, learning rate, and what of a model takes no time (rotary
# base, norm epsilon, scores and balancing of routers) are no part of a plan: give their flags as arguments of this
# script. Megatron-Core from 0.18.2 on refuses Transformer Engine's fused loss, which plans are priced with. There,
# add `--cross-entropy-fusion-impl native`, whose logits take 32 bits of memory each, not 16.
set -euo pipefail
: "${MEGATRON_LM:?set MEGATRON_LM to the folder that holds pretrain_gpt.py}"
: "${PRETRAINED:?set PRETRAINED to the Megatron checkpoint whose weights are trained on}"
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun \
  --standalone \
  --nproc-per-node 8 \
  "${MEGATRON_LM}"/pretrain_gpt.py --pretrained-checkpoint "${PRETRAINED}" \
    --num-layers 32 \
    --hidden-size 4096 \
    --num-attention-heads 32 \
    --kv-channels 128 \
    --group-query-attention \
    --num-query-groups 8 \
    --ffn-hidden-size 14336 \
    --swiglu \
    --disable-bias-linear \
    --normalization RMSNorm \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 1 \
    --context-parallel-size 2 \
    --expert-model-parallel-size 1 \
    --sequence-parallel \
    --cp-comm-type p2p \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --cross-entropy-loss-fusion \
    --cross-entropy-fusion-impl te \
    --seq-length 16384 \
    --max-position-embeddings 16384 \
    --position-embedding-type rope \
    --untie-embeddings-and-output-weights \
    --micro-batch-size 1 \
    --global-batch-size 16 \
    --sft \
    --bf16 \
    --optimizer adam \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    "$@"
