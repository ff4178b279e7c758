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
  --nnodes 64 \
  --nproc-per-node 8 \
  --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" \
  --master-port "${MASTER_PORT}" \
  "${MEGATRON_LM}"/pretrain_gpt.py \
    --num-layers 61 \
    --hidden-size 7168 \
    --num-attention-heads 128 \
    --multi-latent-attention \
    --q-lora-rank 1536 \
    --kv-lora-rank 512 \
    --qk-head-dim 128 \
    --qk-pos-emb-head-dim 64 \
    --v-head-dim 128 \
    --qk-layernorm \
    --ffn-hidden-size 18432 \
    --swiglu \
    --disable-bias-linear \
    --num-experts 256 \
    --moe-ffn-hidden-size 2048 \
    --moe-router-topk 8 \
    --moe-grouped-gemm \
    --moe-shared-expert-intermediate-size 2048 \
    --moe-layer-freq '([0]*3+[1]*58)' \
    --normalization RMSNorm \
    --mtp-num-layers 1 \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 16 \
    --context-parallel-size 1 \
    --expert-model-parallel-size 32 \
    --expert-tensor-parallel-size 1 \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --cross-entropy-loss-fusion \
    --cross-entropy-fusion-impl te \
    --moe-token-dispatcher-type flex \
    --moe-flex-dispatcher-backend deepep \
    --moe-router-dtype fp32 \
    --recompute-granularity selective \
    --recompute-modules layernorm mla_up_proj moe_act \
    --fp8-format e4m3 \
    --fp8-recipe blockwise \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --position-embedding-type rope \
    --untie-embeddings-and-output-weights \
    --micro-batch-size 1 \
    --global-batch-size 1024 \
    --bf16 \
    --optimizer adam \
    --pipeline-model-parallel-layout 'Et*4|(t*4|)*14tmL' \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    "$@"
