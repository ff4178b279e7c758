#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of vLLM 0.33; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this on node 2 of pool "h200": node 02 of 4 that the plan uses.
# Start the scripts of all nodes within minutes of each other.
# Then start launch-router.sh once.
set -euo pipefail

# Sockets are bound to numeric addresses, so names are looked up here; what does not resolve is used as it is.
address() {
  local found
  found=$(getent ahostsv4 "$1" 2>/dev/null | { read -r first _ && printf %s "$first"; }) || true
  printf %s "${found:-$1}"
}
[ -n "${NODE_02:-}" ] || NODE_02=node-02
NODE_02=$(address "$NODE_02")

pids=()
stop() {
  trap - EXIT INT TERM
  if [ "${#pids[@]}" -gt 0 ]; then kill "${pids[@]}" 2>/dev/null || true; fi
  wait || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# decode/0, node 0 of 2
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
VLLM_HOST_IP="${NODE_02}" \
VLLM_NIXL_SIDE_CHANNEL_HOST="${NODE_02}" \
VLLM_NIXL_SIDE_CHANNEL_PORT=24000 \
vllm serve deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 8000 \
  --tensor-parallel-size 1 \
  --data-parallel-size 16 \
  --data-parallel-size-local 8 \
  --data-parallel-address "${NODE_02}" \
  --data-parallel-rpc-port 20000 \
  --enable-expert-parallel \
  --all2all-backend deepep_low_latency \
  --enable-dbo \
  --max-model-len 8192 \
  --max-num-seqs 192 \
  --gpu-memory-utilization 0.9 \
  --no-enable-prefix-caching \
  --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_load_failure_policy": "fail", "kv_role": "kv_consumer"}' &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
