#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of vLLM 0.33; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this on node 0 of pool "h200": node 00 of 2 that the plan uses.
# Start the scripts of all nodes within minutes of each other.
# Clients of "deepseek-ai/DeepSeek-V3" talk to port 8000 of node 00.
set -euo pipefail

# Sockets are bound to numeric addresses, so names are looked up here; what does not resolve is used as it is.
address() {
  local found
  found=$(getent ahostsv4 "$1" 2>/dev/null | { read -r first _ && printf %s "$first"; }) || true
  printf %s "${found:-$1}"
}
[ -n "${NODE_00:-}" ] || NODE_00=node-00
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

# colocated/0, node 0 of 2
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
VLLM_HOST_IP="${NODE_00}" \
vllm serve deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 8 \
  --data-parallel-size 2 \
  --data-parallel-size-local 1 \
  --data-parallel-address "${NODE_00}" \
  --data-parallel-rpc-port 20000 \
  --enable-expert-parallel \
  --all2all-backend deepep_high_throughput \
  --max-model-len 8192 \
  --max-num-seqs 64 \
  --max-num-batched-tokens 8256 \
  --gpu-memory-utilization 0.9 \
  --no-enable-prefix-caching &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
