#!/bin/bash
# Chat with Qwen3-8B on one H100: what `planner audit` and `planner import` read on the pages.
vllm serve Qwen/Qwen3-8B \
  --max-num-seqs 64 \
  --max-model-len 8192
