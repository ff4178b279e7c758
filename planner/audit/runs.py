"""Benchmark runs that would settle an audit: commands of vLLM's load generator at the rates in question.

`vllm bench serve` drives any engine with an OpenAI interface. What its report does not tell stands in its metadata,
under the names that `planner calibrate` knows.
"""

import shlex
from collections.abc import Iterator, Sequence

from planner.engines.serving.registry import SERVING_ENGINES
from planner.kinds.serve.deployed.instances import Instances
from planner.plan.records import BY_NUMBER
from planner.problem.resolve import Resolved

LEAST_REQUESTS, SECONDS = 200, 120.0
URL = "http://127.0.0.1:8000"


def bench_commands(resolved: Resolved, parts: Sequence[Instances], rates_per_s: Sequence[float]) -> list[str]:
    """One run a rate; none of a deployment that has several roles of one side, which no report tells apart."""
    sides = [part.function for part in parts]
    if len(set(sides)) < len(sides) or (len(parts) > 1 and set(sides) != {"prefill", "decode"}):
        return []
    (workload,) = resolved.workloads
    (spec,) = resolved.problem.models.values()
    backend, commands = SERVING_ENGINES[resolved.problem.engine.name].bench_backend, []
    for rate in rates_per_s:
        words = [
            "vllm", "bench", "serve", "--backend", backend, "--base-url", URL,
            "--model", spec.name or str(spec.config), "--dataset-name", "random",
            "--random-input-len", f"{workload.input.mean_tokens:.0f}",
            "--random-output-len", f"{workload.output.mean_tokens:.0f}", "--ignore-eos",
            "--request-rate", f"{rate:.3g}", "--num-prompts", str(max(LEAST_REQUESTS, round(rate * SECONDS))),
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99",
            "--save-result", "--result-filename", f"rate-{rate:.3g}.json",
            "--metadata", *_facts(resolved, parts),
        ]  # fmt: skip
        commands.append(shlex.join(words))
    return commands


def _facts(resolved: Resolved, parts: Sequence[Instances]) -> Iterator[str]:
    yield f"system={resolved.pools[0].node.accelerator.name}"
    yield f"gpus={sum(part.replicas * part.shape.devices for part in parts)}"
    for part in parts:
        shape, side = part.shape, f"{part.function}_" if len(parts) > 1 else ""
        degrees = {"tp": shape.tp, "pp": shape.pp, "dp": shape.dp, "moe_ep": shape.ep, "workers": part.replicas}
        yield from (f"{side}{name}={size}" for name, size in degrees.items() if size > 1 or name == "tp")
        if shape.redundant != BY_NUMBER:
            yield f"{side}redundant_experts={shape.redundant}"
