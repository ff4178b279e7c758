#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Settings of TensorRT-LLM 1.3.
# Run this on node 0 of pool "h200".
# Clients of "Qwen/Qwen3-8B" share their requests over node-01:8000, node-01:8001.
# Planned share of workload "default" to role "prefill": 0.5
# Planned share of workload "default" to role "colocated": 0.5
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]:-.}")"

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
trtllm-serve Qwen/Qwen3-32B \
  --host 0.0.0.0 \
  --port 8000 \
  --backend pytorch \
  --config config-prefill.yaml &
pids+=("$!")

# decode/0
CUDA_VISIBLE_DEVICES=2,3 \
trtllm-serve Qwen/Qwen3-32B \
  --host 0.0.0.0 \
  --port 8001 \
  --backend pytorch \
  --config config-decode.yaml &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
