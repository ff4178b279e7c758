"""Policies against what is simple and good: least-loaded routing and continuous batching in order of arrival.

Llumnix (arXiv:2406.03243): how many engines keep the same P99. FastServe (arXiv:2305.05920): the highest rate at the
same P95, within the host memory of the node. Llama 3.1 70B on two H100s (KV cache is scarce), requests of Azure's
conversations (../shared/data/traces) at gamma arrivals. LoongServe: `simulate_elastic.py`.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from inputs import trace_file

from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import step_grid
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.traces import read_trace
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

TRACE = ("azure_llm_2023_conv.csv.gz", "azure-conversation")
MODEL, TP, CHUNK, SEQUENCES = "meta-llama/Llama-3.1-70B-Instruct", 2, 2048, 256
COUNT, SEED, CV = 10_000, 3, 2.0
ENGINES, RATE_PER_ENGINE = 32, 2.1  # of the fleet whose P99 is to be kept


def engine() -> Instance:
    """One engine of the model with the cache that its weights leave, and half of its share of host memory."""
    node, arch, calibration = find_node("h100"), find_model(MODEL), load_calibration()
    shards, pool = Shards.of(TP), Pool("h100", node, 1)
    pricer = make_pricer(pool, arch, engine="vllm", version=None, calibration=calibration, store=None)
    overheads = calibration.engine("vllm")
    grid = step_grid(
        arch, pricer, shards, overheads, most_sequences=SEQUENCES, longest_tokens=16_384, chunk_tokens=CHUNK
    )
    used = float(weight_bytes(arch, shards)[0] + activation_bytes(arch, shards, 512.0, 64.0)[0])
    room = node.accelerator.memory_bytes * 0.92 - used - overheads.workspace_bytes
    token_bytes = float(kv_cache_bytes(arch, shards, np.array([1000.0]))[0]) / 1000.0
    host = node.host_memory_bytes / node.num_gpus / 2
    return Instance(
        grid,
        int(room / token_bytes),
        token_budget=CHUNK,
        most_sequences=SEQUENCES,
        host_kv_tokens=int(host / token_bytes),
        swap_tokens_per_s=node.pcie_bandwidth_bytes_per_s / token_bytes,
        link_tokens_per_s=node.nic_bandwidth_bytes_per_s / token_bytes,
        link_latency_s=node.nic_latency_s,
    )


def load(rate_per_s: float, count: int = COUNT, seed: int = SEED) -> Requests:
    """Requests of the trace, drawn, that fit; the same draws at every rate."""
    trace = read_trace(trace_file(*TRACE))
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(trace), count)
    inputs, outputs = trace.input_tokens[drawn], trace.output_tokens[drawn]
    return Requests.open_stream(arrivals("gamma", rate_per_s, count, cv=CV, seed=seed), inputs, outputs)


def p(values: np.ndarray, quantile: float) -> float:
    """A quantile of what is known; infinite where something has not been answered."""
    return float("inf") if np.isnan(values).any() else float(np.quantile(values, quantile))


def per_token_s(result: SimulationResult) -> np.ndarray:
    """Latency of a request for each token that it got: what FastServe and Llumnix normalise to."""
    return result.e2e_s / result.requests.output_tokens


def fewest(fleet_of: Callable[[int], Fleet], requests: Requests, limits: dict[str, float]) -> int:
    """The fewest engines whose P99s of TTFT, or of latency a token, keep their limits; by bisection."""
    low, high = 1, 2 * ENGINES
    while low < high:
        middle = (low + high) // 2
        result = simulate(fleet_of(middle), requests)
        tails = {"ttft": p(result.ttft_s, 0.99), "token": p(per_token_s(result), 0.99)}
        good = all(tails[name] <= limit for name, limit in limits.items())
        low, high = (low, middle) if good else (middle + 1, high)
    return low


def llumnix(instance: Instance) -> None:
    """Engines for the P99 that least-loaded routing has with `ENGINES`."""
    requests = load(ENGINES * RATE_PER_ENGINE)
    fleets: dict[str, Callable[[int], Fleet]] = {
        "least loaded": lambda n: Fleet((instance,) * n),
        "round robin": lambda n: Fleet((instance,) * n, routing="round-robin"),
        "power of two": lambda n: Fleet((instance,) * n, routing="power-of-two"),
        "length-aware (true lengths)": lambda n: Fleet((instance,) * n, routing="length-aware"),
        "freeness": lambda n: Fleet((instance,) * n, routing="freeness"),
        "freeness, migration each 0.2 s": lambda n: Fleet((instance,) * n, routing="freeness", migration_period_s=0.2),
        "least loaded, migration each 0.2 s": lambda n: Fleet((instance,) * n, migration_period_s=0.2),
    }
    rate = ENGINES * RATE_PER_ENGINE
    print(f"Llumnix: {ENGINES} engines of {instance.kv_tokens:,} KV tokens, {rate:g} requests/s, CV {CV:g}")
    base = simulate(fleets["least loaded"](ENGINES), requests)
    limits = {"ttft": p(base.ttft_s, 0.99), "token": p(per_token_s(base), 0.99)}
    ttft = {"ttft": limits["ttft"]}
    both = f"{limits['ttft']:.2f} s, and for {limits['token'] * 1e3:.0f} ms a token too"
    print(f"  engines for P99 TTFT {both}; P99s of {ENGINES} engines")
    for name, fleet_of in fleets.items():
        result = simulate(fleet_of(ENGINES), requests)
        print(
            f"  {name:36} {fewest(fleet_of, requests, ttft):3} {fewest(fleet_of, requests, limits):3}"
            f"   {p(result.ttft_s, 0.99):6.2f} s {p(per_token_s(result), 0.99) * 1e3:5.0f} ms a token"
            f" {int(result.preemptions.sum()):5} preemptions {int(result.migrations.sum()):5} migrations"
        )


def highest(fleet: Fleet, limit_s: float) -> float:
    """The highest rate at which P95 of the latency a token keeps its limit; by bisection on common draws."""
    low, high = 0.05, 8.0
    for _ in range(12):
        middle = (low + high) / 2
        result = simulate(fleet, load(middle, count=2000))
        low, high = (middle, high) if p(per_token_s(result), 0.95) <= limit_s else (low, middle)
    return low


def fastserve(instance: Instance) -> None:
    """Rates at three limits of the latency a token."""
    swapping = replace(instance, preemption="swap")
    fleets = {
        "continuous batching, in order": Fleet((instance,)),
        "shortest predicted (true lengths)": Fleet((instance,), queueing="shortest-predicted"),
        "feedback, caches to host memory": Fleet((swapping,), queueing="feedback", quantum_s=1.0),
        "feedback, a sixteenth of host memory": Fleet(
            (replace(swapping, host_kv_tokens=instance.host_kv_tokens // 16),), queueing="feedback", quantum_s=1.0
        ),
        "feedback, caches computed again": Fleet((instance,), queueing="feedback", quantum_s=1.0),
    }
    print(
        f"FastServe: one engine, {instance.host_kv_tokens:,} tokens of host memory; "
        "highest rate at P95 of latency a token"
    )
    for name, fleet in fleets.items():
        rates = "  ".join(f"{limit * 1e3:4.0f} ms: {highest(fleet, limit):.3f}/s" for limit in (0.1, 0.2, 0.5))
        print(f"  {name:36} {rates}")


def main() -> None:
    """Prints both comparisons."""
    instance = engine()
    llumnix(instance)
    fastserve(instance)


if __name__ == "__main__":
    main()
