#!/usr/bin/env bash
# Plan "plan", sha256:PLAN, by planner 0.1.0
# Flags of vLLM 0.33; addresses: set NODE_00, NODE_01, ... to replace those below.
# Run this anywhere that reaches the nodes, once their scripts answer; clients talk to the routers:
#   port 8500: router of the prefill and decode instances of "deepseek-ai/DeepSeek-V3"
# Planned share of workload "default" to role "prefill": 1
set -euo pipefail

# Sockets are bound to numeric addresses, so names are looked up here; what does not resolve is used as it is.
address() {
  local found
  found=$(getent ahostsv4 "$1" 2>/dev/null | { read -r first _ && printf %s "$first"; }) || true
  printf %s "${found:-$1}"
}
[ -n "${NODE_00:-}" ] || NODE_00=node-00
NODE_00=$(address "$NODE_00")
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

# router of the prefill and decode instances of "deepseek-ai/DeepSeek-V3"
vllm-router \
  --host 0.0.0.0 \
  --port 8500 \
  --prometheus-port 29000 \
  --policy power_of_two \
  --vllm-pd-disaggregation \
  --prefill http://"${NODE_00}":8000 \
  --decode http://"${NODE_02}":8000 &
pids+=("$!")

status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
