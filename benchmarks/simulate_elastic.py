"""Elastic sequence parallelism (LoongServe, arXiv:2404.09526) against static plans on a mix of short and long contexts.

Llama 3.1 8B on the eight H100s of a node, lengths of Mooncake's conversations (../shared/data/traces; no prefix is
kept), Poisson arrivals. A request is on time if its first token comes within `BASE_S` and `SLOWER` times what its
prompt takes alone on all eight GPUs, and its later tokens within `TPOT_S` on average. The highest rate with 90 % on
time, for the plan that `planner solve` finds, for every other static fleet of equal engines, and for elastic instances.
"""

from dataclasses import replace
from functools import cache

import numpy as np
from inputs import trace_file

from planner.api import solve
from planner.arrays import Floats, Ints
from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.options import ServeDecision
from planner.models.library import find_model
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.operation import ElasticEngines
from planner.simulate.fleet.step_grid import StepGrid, step_grid
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.traces import read_trace
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

TRACE = ("mooncake_fast25_conversation.jsonl.gz", "mooncake-conversation")
MODEL, GPUS, LONGEST, SEQUENCES = "meta-llama/Llama-3.1-8B-Instruct", 8, 120_000, 256
COUNT, SEED, WANTED = 400, 1, 0.9
BASE_S, SLOWER, TPOT_S = 0.5, 5.0, 0.05
CHUNKS = (2048, 8192)


@cache
def grid(tp: int, chunk: int) -> StepGrid:
    """Step times of an instance of tp GPUs."""
    node, arch, calibration = find_node("h100"), find_model(MODEL), load_calibration()
    pricer = make_pricer(
        Pool("h100", node, 1),
        arch,
        engine="vllm",
        version=None,
        calibration=calibration,
        store=None,
    )
    overheads = calibration.engine("vllm")
    return step_grid(
        arch,
        pricer,
        Shards.of(tp),
        overheads,
        most_sequences=SEQUENCES,
        longest_tokens=2 * LONGEST,
        chunk_tokens=chunk,
    )


def kv_tokens(tp: int) -> int:
    """Tokens that the cache of an instance holds."""
    node, arch, shards = find_node("h100"), find_model(MODEL), Shards.of(tp)
    used = float(weight_bytes(arch, shards)[0] + activation_bytes(arch, shards, 8192.0, 64.0)[0])
    room = node.accelerator.memory_bytes * 0.92 - used - load_calibration().engine("vllm").workspace_bytes
    return int(room / float(kv_cache_bytes(arch, shards, np.array([1.0]))[0]))


def engine(tp: int, chunk: int, role: str = "colocated") -> Instance:
    """A static engine."""
    node, arch = find_node("h100"), find_model(MODEL)
    token_bytes = float(kv_cache_bytes(arch, Shards.of(tp), np.array([1.0]))[0])
    return Instance(
        grid(tp, chunk),
        kv_tokens(tp),
        role=role,
        token_budget=chunk,
        most_sequences=SEQUENCES,
        link_tokens_per_s=node.scale_up_bandwidth_bytes_per_s / token_bytes,
        link_latency_s=node.scale_up_latency_s,
    )


def elastic(tp: int) -> Fleet:
    """Instances of tp GPUs that can work together."""
    node, arch = find_node("h100"), find_model(MODEL)
    instance = engine(tp, LONGEST)
    rules = ElasticEngines(instance.link_tokens_per_s, 2 * len(arch.layers) * node.scale_up_latency_s)
    return Fleet((replace(instance, token_budget=8192),) * (GPUS // tp), elastic=rules)


@cache
def lengths() -> tuple[Ints, Ints]:
    """Requests of the trace, drawn."""
    trace = read_trace(trace_file(*TRACE), drop_empty=True)
    short = np.flatnonzero(trace.input_tokens + trace.output_tokens <= LONGEST)
    drawn = np.random.default_rng(SEED).choice(short, COUNT)
    return trace.input_tokens[drawn], trace.output_tokens[drawn]


def load(rate_per_s: float) -> Requests:
    """The same requests at any rate."""
    gaps = np.random.default_rng(SEED + 1).exponential(1.0, COUNT)
    return Requests.open_stream(np.cumsum(gaps) / rate_per_s, *lengths())


@cache
def own_s() -> Floats:
    """Seconds that each prompt takes alone on all GPUs."""
    alone = grid(GPUS, LONGEST)
    return np.array([alone.prefill_s(tokens, (tokens + 1.0) / 2.0) for tokens in lengths()[0].tolist()])


def attainment(result: SimulationResult) -> float:
    """Share of the requests on time."""
    on_time = result.ttft_s <= BASE_S + SLOWER * own_s()
    return float(np.mean(on_time & (np.isnan(result.tpot_s) | (result.tpot_s <= TPOT_S))))


def highest(fleet: Fleet) -> float:
    """The highest rate with enough requests on time, by bisection; 0 if there is none."""
    low, high = 0.0, 16.0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if attainment(simulate(fleet, load(middle))) >= WANTED else (low, middle)
    return low


def statics() -> dict[str, Fleet]:
    """Equal engines on eight GPUs, and every split into prefill and decode of equal degree."""
    fleets = {}
    for tp in (1, 2, 4, 8):
        count = GPUS // tp
        for chunk in CHUNKS:
            for routing in ("least-loaded", "length-aware"):
                name = f"{count} x tp{tp}, chunk {chunk}, {routing}"
                fleets[name] = Fleet((engine(tp, chunk),) * count, routing=routing)
        for prefill in range(1, count):
            first, last = engine(tp, 8192, "prefill"), engine(tp, 8192, "decode")
            name = f"{prefill} + {count - prefill} x tp{tp}, apart, length-aware"
            fleets[name] = Fleet((first,) * prefill + (last,) * (count - prefill), routing="length-aware")
    return fleets


def solved() -> tuple[str, Fleet]:
    """The plan that `planner solve` finds for the mix: name, and its fleet on these lengths."""
    inputs, outputs = lengths()
    problem = {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": MODEL}},
        "cluster": {"pools": [{"gpu": "h100", "gpus": GPUS}]},
        "workloads": [
            {
                "input_tokens": {"mean": float(inputs.mean()), "cv": float(inputs.std() / inputs.mean())},
                "output_tokens": {"mean": float(outputs.mean()), "cv": float(outputs.std() / outputs.mean())},
                "slo": {"ttft": {"p90": "5s"}, "tpot": {"mean": "50ms"}},
            }
        ],
        "objective": {"maximize": "goodput_per_gpu"},
    }
    envelope = solve(problem, level="static")
    decision = ServeDecision.model_validate(envelope.decision)
    fleet = fleet_of_plan(envelope, decision, load(1.0), Policies()).fleet
    parts = [f"{role.replicas} x tp{role.parallelism.tp} {role.function}" for role in decision.roles]
    return ", ".join(parts), fleet


def main() -> None:
    """Prints the highest rates."""
    inputs, outputs = lengths()
    print(f"{COUNT} requests: {inputs.mean():,.0f} in ({inputs.max():,} at most), {outputs.mean():,.0f} out")
    rates = {name: highest(fleet) for name, fleet in statics().items()}
    for name, rate in sorted(rates.items(), key=lambda item: -item[1])[:6]:
        print(f"  static, {name:44} {rate:.2f}/s")
    name, fleet = solved()
    print(f"  what `planner solve` finds, {name:33} {highest(fleet):.2f}/s")
    for tp in (1, 2, 4):
        rate = highest(elastic(tp))
        print(f"  elastic, {f'{GPUS // tp} x tp{tp}':53} {rate:.2f}/s")


if __name__ == "__main__":
    main()
