#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of SGLang 0.5.23; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this on node 1 of pool "h200": node 01 of 2 that the plan uses.
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
[ -n "${NODE_01:-}" ] || NODE_01=node-01
NODE_01=$(address "$NODE_01")

pids=()
stop() {
  trap - EXIT INT TERM
  if [ "${#pids[@]}" -gt 0 ]; then kill "${pids[@]}" 2>/dev/null || true; fi
  wait || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# colocated/0, node 1 of 2
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 8000 \
  --tp-size 16 \
  --attn-dp-size 2 \
  --ep-size 16 \
  --moe-a2a-backend deepep \
  --deepep-mode auto \
  --nnodes 2 \
  --node-rank 1 \
  --dist-init-addr "${NODE_00}":20000 \
  --context-length 8192 \
  --max-running-requests 128 \
  --cuda-graph-max-bs-decode 64 \
  --chunked-prefill-size 16384 \
  --mem-fraction-static 0.9 \
  --disable-radix-cache &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
