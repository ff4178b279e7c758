#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of vLLM 0.33; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this on node 0 of pool "h200": node 00 of 2 that the plan uses.
# Start the scripts of all nodes within minutes of each other.
# Then start launch-router.sh once.
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

# prefill/0
CUDA_VISIBLE_DEVICES=0,1 \
VLLM_NIXL_SIDE_CHANNEL_HOST="${NODE_00}" \
VLLM_NIXL_SIDE_CHANNEL_PORT=24000 \
vllm serve Qwen/Qwen3-32B \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 2 \
  --max-model-len 8192 \
  --max-num-seqs 8 \
  --max-num-batched-tokens 16384 \
  --gpu-memory-utilization 0.9 \
  --no-enable-prefix-caching \
  --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_load_failure_policy": "fail", "kv_role": "kv_producer"}' &
pids+=("$!")

# decode/0
CUDA_VISIBLE_DEVICES=2,3 \
VLLM_NIXL_SIDE_CHANNEL_HOST="${NODE_00}" \
VLLM_NIXL_SIDE_CHANNEL_PORT=24100 \
vllm serve Qwen/Qwen3-32B \
  --host 0.0.0.0 \
  --port 8001 \
  --tensor-parallel-size 2 \
  --max-model-len 8192 \
  --max-num-seqs 192 \
  --gpu-memory-utilization 0.9 \
  --no-enable-prefix-caching \
  --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_load_failure_policy": "fail", "kv_role": "kv_consumer"}' &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
