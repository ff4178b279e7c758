#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of vLLM 0.33; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this on node 0 of pool "h200": node 00 of 1 that the plan uses.
# Clients of "deepseek-ai/DeepSeek-V3" talk to port 8000 of node 00.
set -euo pipefail

# Sockets are bound to numeric addresses, so names are looked up here; what does not resolve is used as it is.
address() {
  local found
  found=$(getent ahostsv4 "$1" 2>/dev/null | { read -r first _ && printf %s "$first"; }) || true
  printf %s "${found:-$1}"
}
[ -n "${NODE_00:-}" ] || NODE_00=127.0.0.1
NODE_00=$(address "$NODE_00")

pids=()
stop() {
  trap - EXIT INT TERM
  if [ "${#pids[@]}" -gt 0 ]; then kill "${pids[@]}" 2>/dev/null || true; fi
  wait || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# colocated/0
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
vllm serve deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 1 \
  --data-parallel-size 8 \
  --enable-expert-parallel \
  --all2all-backend deepep_high_throughput \
  --enable-dbo \
  --max-model-len 8192 \
  --max-num-seqs 64 \
  --max-num-batched-tokens 8256 \
  --gpu-memory-utilization 0.9 \
  --no-enable-prefix-caching &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
