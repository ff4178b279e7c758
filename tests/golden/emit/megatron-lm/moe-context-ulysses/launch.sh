#!/usr/bin/env bash
# Plan "training", sha256:PLAN, by planner 0.1.0
# Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on node 0 of pool "h100".
# It runs Megatron-LM's pretrain_gpt.py. Tokenizer, data, learning rate, and what of a model takes no time (rotary
# base, norm epsilon, scores and balancing of routers) are no part of a plan: give their flags as arguments of this
# script. Megatron-Core from 0.18.2 on refuses Transformer Engine's fused loss, which plans are priced with. There,
# add `--cross-entropy-fusion-impl native`, whose logits take 32 bits of memory each, not 16.
set -euo pipefail
: "${MEGATRON_LM:?set MEGATRON_LM to the folder that holds pretrain_gpt.py}"
: "${NODE_RANK:?set NODE_RANK to the number of this node}"
[ -n "${MASTER_ADDR:-}" ] || MASTER_ADDR=node-00
MASTER_PORT="${MASTER_PORT:-29500}"
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun \
  --nnodes 4 \
  --nproc-per-node 8 \
  --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" \
  --master-port "${MASTER_PORT}" \
  "${MEGATRON_LM}"/pretrain_gpt.py \
    --num-layers 48 \
    --hidden-size 2048 \
    --num-attention-heads 32 \
    --kv-channels 128 \
    --group-query-attention \
    --num-query-groups 4 \
    --qk-layernorm \
    --ffn-hidden-size 768 \
    --swiglu \
    --disable-bias-linear \
    --num-experts 128 \
    --moe-ffn-hidden-size 768 \
    --moe-router-topk 8 \
    --moe-grouped-gemm \
    --normalization RMSNorm \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 1 \
    --context-parallel-size 2 \
    --expert-model-parallel-size 8 \
    --sequence-parallel \
    --expert-tensor-parallel-size 1 \
    --cp-comm-type a2a \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --cross-entropy-loss-fusion \
    --cross-entropy-fusion-impl te \
    --moe-token-dispatcher-type alltoall \
    --fp8-format e4m3 \
    --fp8-recipe mxfp8 \
    --seq-length 32768 \
    --max-position-embeddings 32768 \
    --position-embedding-type rope \
    --untie-embeddings-and-output-weights \
    --micro-batch-size 1 \
    --global-batch-size 64 \
    --bf16 \
    --optimizer adam \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    "$@"
