"""Benchmark runs that would settle an audit: commands of the engine's own load generator at the rates in question."""

import shlex
from collections.abc import Sequence

from planner.problem.resolve import Resolved

LEAST_REQUESTS, SECONDS = 200, 120.0
BACKENDS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "openai"}


def bench_commands(resolved: Resolved, model: str, rates_per_s: Sequence[float], gpus: int, degrees: str) -> list[str]:
    """One `vllm bench serve` a rate, whose report `planner calibrate` reads; facts that it lacks stand in it."""
    (workload,), pool = resolved.workloads, resolved.pools[0]
    commands = []
    for rate in rates_per_s:
        words = [
            "vllm", "bench", "serve", "--backend", BACKENDS[resolved.problem.engine.name], "--model", model,
            "--dataset-name", "random",
            "--random-input-len", f"{workload.input.mean_tokens:.0f}",
            "--random-output-len", f"{workload.output.mean_tokens:.0f}", "--ignore-eos",
            "--request-rate", f"{rate:.3g}", "--num-prompts", str(max(LEAST_REQUESTS, round(rate * SECONDS))),
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99",
            "--save-result", "--result-filename", f"rate-{rate:.3g}.json",
            "--metadata", f"system={pool.node.accelerator.name}", f"gpus={gpus}", *degrees.split(),
        ]  # fmt: skip
        commands.append(shlex.join(words))
    return commands
