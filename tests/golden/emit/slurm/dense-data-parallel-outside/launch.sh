#!/usr/bin/env bash
# Plan "training", sha256:PLAN, by planner 0.1.0
# Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on node 0 of pool "h100", "gpu-a".
# It runs Megatron-LM's pretrain_gpt.py. Tokenizer, data, learning rate, and what of a model takes no time (rotary
# base, norm epsilon, scores and balancing of routers) are no part of a plan: give their flags as arguments of this
# script. Megatron-Core from 0.18.2 on refuses Transformer Engine's fused loss, which plans are priced with. There,
# add `--cross-entropy-fusion-impl native`, whose logits take 32 bits of memory each, not 16.
set -euo pipefail
: "${MEGATRON_LM:?set MEGATRON_LM to the folder that holds pretrain_gpt.py}"
: "${NODE_RANK:?set NODE_RANK to the number of this node}"
[ -n "${MASTER_ADDR:-}" ] || MASTER_ADDR=gpu-a
MASTER_PORT="${MASTER_PORT:-29500}"
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun \
  --nnodes 4 \
  --nproc-per-node 8 \
  --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" \
  --master-port "${MASTER_PORT}" \
  "${MEGATRON_LM}"/pretrain_gpt.py \
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
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 2 \
    --context-parallel-size 1 \
    --expert-model-parallel-size 1 \
    --sequence-parallel \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --cross-entropy-loss-fusion \
    --cross-entropy-fusion-impl te \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --position-embedding-type rope \
    --untie-embeddings-and-output-weights \
    --micro-batch-size 1 \
    --global-batch-size 1024 \
    --bf16 \
    --optimizer adam \
    --pipeline-model-parallel-layout 'Et*16|t*16L' \
    --use-tp-pp-dp-mapping \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --optimizer-cpu-offload \
    --use-precision-aware-optimizer \
    "$@"
