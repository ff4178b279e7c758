#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Settings of TensorRT-LLM 1.3.
# Run this on node 1 of pool "h200".
# Clients of "Qwen/Qwen3-32B" share their requests over node-00:8000, node-00:8001, node-01:8000.
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

# colocated/2
CUDA_VISIBLE_DEVICES=0,1,2,3 \
trtllm-serve Qwen/Qwen3-32B \
  --host 0.0.0.0 \
  --port 8000 \
  --backend pytorch \
  --config config-colocated.yaml &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
