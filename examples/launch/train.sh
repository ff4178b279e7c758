#!/bin/bash
# Llama 3.1 8B on four nodes of eight H100s, by Megatron-LM.
torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --sequence-parallel --use-distributed-optimizer \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope \
  --untie-embeddings-and-output-weights --vocab-size 128256 \
  --seq-length 8192 --max-position-embeddings 8192 --attention-dropout 0 --hidden-dropout 0 --bf16 \
  --micro-batch-size 1 --global-batch-size 256
