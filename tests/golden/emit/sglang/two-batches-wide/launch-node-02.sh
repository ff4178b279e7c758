#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of SGLang 0.5.23; addresses: set NODE_00, NODE_01, ... to replace those below.
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
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=192 \
python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 8000 \
  --tp-size 16 \
  --attn-dp-size 16 \
  --ep-size 16 \
  --moe-a2a-backend deepep \
  --deepep-mode low_latency \
  --enable-two-batch-overlap \
  --nnodes 2 \
  --node-rank 0 \
  --dist-init-addr "${NODE_02}":20000 \
  --context-length 8192 \
  --max-running-requests 3072 \
  --cuda-graph-max-bs-decode 192 \
  --mem-fraction-static 0.9 \
  --disable-radix-cache \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend nixl &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
