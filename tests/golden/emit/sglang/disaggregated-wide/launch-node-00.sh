#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of SGLang 0.5.23; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this on node 0 of pool "h200", "gpu-a.example": node 00 of 4 that the plan uses.
# Start the scripts of all nodes within minutes of each other.
# Then start launch-router.sh once.
set -euo pipefail

# Sockets are bound to numeric addresses, so names are looked up here; what does not resolve is used as it is.
address() {
  local found
  found=$(getent ahostsv4 "$1" 2>/dev/null | { read -r first _ && printf %s "$first"; }) || true
  printf %s "${found:-$1}"
}
[ -n "${NODE_00:-}" ] || NODE_00=gpu-a.example
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
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 8000 \
  --tp-size 8 \
  --ep-size 8 \
  --dist-init-addr 127.0.0.1:20000 \
  --context-length 8192 \
  --max-running-requests 8 \
  --chunked-prefill-size 16384 \
  --mem-fraction-static 0.9 \
  --disable-radix-cache \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend nixl \
  --disaggregation-bootstrap-port 9000 &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
