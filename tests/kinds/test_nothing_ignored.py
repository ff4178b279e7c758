"""Every field of the problem, limit, flag and variable, for each kind of plan: two values with two plans, or a refusal.

`READ` holds the overrides of two problems for every field that a kind says it reads (`planner.kinds.<kind>.reads`); all
others are refused. The names come from the schemas, so that a new field stands here or fails.
"""

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from option_cases import LAUNCHED, MIXED, OPTIONS, SIMULATED
from schema_leaves import FIELDS, leaves
from static_level import solve

from planner.check import check_plan
from planner.cli.main import built_command, main
from planner.documents.files import digest
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.registry import find_kind, kind_names
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.problem.reads import FLAGS, unread_fields
from planner.problem.recorded import AtHand
from planner.problem.schema import Problem
from planner.progress import Limits
from planner.schema.base import Where

NOT_THE_PLAN = ("inputs", "digests", "seed", "software")  # these repeat the problem

BASES: dict[str, str] = {
    "serve": """
        models: {m: {name: Qwen/Qwen3-8B}}
        cluster: {pools: [{gpu: h100_sxm, gpus: 2}]}
        workloads: [{input_tokens: 512, output_tokens: 128, slo: {ttft: 1s, tpot: 50ms}}]
        objective: {maximize: goodput_per_gpu}
        options: {modes: [colocated], tp: [1, 2], pp: [1], max_batch: [64], chunk_tokens: [2048]}""",
    "train": """
        models: {m: {name: Qwen/Qwen3-0.6B}}
        cluster: {pools: [{gpu: h100_sxm, nodes: 1}]}
        objective: {minimize: step_time}
        options:
          global_batch: 16
          sequence_tokens: 2048
          search: {tp: [1, 2], pp: [1, 2], cp: 1, zero_stage: 1, micro_batch: 1, schedule: 1f1b}""",
    "rl": """
        models: {m: {name: Qwen/Qwen3-0.6B}}
        cluster: {pools: [{gpu: h100_sxm, nodes: 1}]}
        workloads: [{input_tokens: 256, output_tokens: {mean: 500, cv: 0.5}}]
        objective: {minimize: iteration_time}
        options:
          algorithm: grpo
          prompts: 16
          samples_per_prompt: 2
          iterations: 1
          arrangements: [colocated]
          generation_tp: [1]
          training_tp: [1]
          training_pp: [1]
          max_running: 16""",
    "experts": """
        models: {m: {name: Qwen/Qwen3-30B-A3B}}
        cluster: {pools: [{gpu: h200, nodes: 1}]}
        objective: {minimize: imbalance}
        options: {ep: 4, slots_per_rank: 33, loads: loads.npz}""",
    "place": """
        models: {m: {name: Qwen/Qwen3-8B}}
        cluster: {pools: [{gpu: h100_sxm, gpus: 2}]}
        workloads:
          - {input_tokens: 512, output_tokens: 32, load: {rate: 20/s, arrival_cv: 3}, slo: {latency: {p1: 60s}}}
        objective: {maximize: attainment}
        options: {simulated_requests: 200, max_batch: 8}""",
}

TWO_POOLS = "cluster={pools: [{gpu: h100_sxm, gpus: 2}, {gpu: h200, gpus: 2}], links: [%s]}"
TWO_MODELS = "models={m: {name: Qwen/Qwen3-8B}, n: {name: Qwen/Qwen3-4B}}"
LINK = "{pools: [h100_sxm, h200], bandwidth: 10GB/s}"
ONE_NODE, TWO_NODES = "cluster.pools=[{gpu: h100_sxm, nodes: 1}]", "cluster.pools=[{gpu: h100_sxm, nodes: 2}]"
NAMED = TWO_NODES + " ; cluster.pools.0.out_of_service=[a] ; cluster.pools.0.node_names=[%s]"

Case = tuple[str, str]
"""Overrides of two problems, parted by ` ; `; an empty text leaves the base as it is."""

DEVICES: dict[str, Case] = {
    "models.*.name": ("", "models.m.name=Qwen/Qwen3-1.7B"),
    "models.*.config": ("models={m: {config: dense-8}}", "models={m: {config: dense-12}}"),
    "cluster.pools.*.gpu": ("", "cluster.pools.0.gpu=a100_sxm"),
    "cluster.pools.*.name": ("", "cluster.pools.0.name=hall"),
    "cluster.pools.*.nodes": (ONE_NODE, TWO_NODES),
    "cluster.pools.*.gpus": (
        "cluster.pools=[{gpu: h100_sxm, gpus: 4}]",
        "cluster.pools=[{gpu: h100_sxm, gpus: 8}]",
    ),
    "cluster.pools.*.gpus_per_node": (
        TWO_NODES + " ; cluster.pools.0.gpus_per_node=2",
        TWO_NODES + " ; cluster.pools.0.gpus_per_node=4",
    ),
    "cluster.pools.*.out_of_service": (TWO_NODES, TWO_NODES + " ; cluster.pools.0.out_of_service=[0]"),
    "cluster.pools.*.node_names": (NAMED % "a, b", NAMED % "b, a"),
}


def _limits(time: str) -> dict[str, Case]:
    """Limits on a time of requests, by statistic, each so tight that it binds."""
    statistics = ("mean", "p50", "p90", "p95", "p99")
    tight = {
        "tpot": ("12ms",) * 5, "itl": ("12ms", "9ms", "12ms", "12ms", "12ms"), "latency": ("1.6s",) * 5,
        "ttft": ("66ms", "66ms", "75ms", "80ms", "90ms"),
    }[time]  # fmt: skip
    return {
        f"workloads.*.slo.{time}.{name}_s": (
            f"workloads.0.slo={{{time}: {{{name}: 60s}}}}",
            f"workloads.0.slo={{{time}: {{{name}: {limit}}}}}",
        )
        for name, limit in zip(statistics, tight, strict=True)
    }


def _lengths(side: str) -> dict[str, Case]:
    field = f"workloads.0.{side}"
    return {
        f"workloads.*.{side}": (f"{field}=400", f"{field}=500"),
        f"workloads.*.{side}.low": (f"{field}={{low: 100, high: 900}}", f"{field}={{low: 500, high: 900}}"),
        f"workloads.*.{side}.high": (f"{field}={{low: 100, high: 900}}", f"{field}={{low: 100, high: 990}}"),
        f"workloads.*.{side}.mean": (f"{field}={{mean: 100, cv: 1}}", f"{field}={{mean: 120, cv: 1}}"),
        f"workloads.*.{side}.cv": (f"{field}={{mean: 100, cv: 1}}", f"{field}={{mean: 100, cv: 2}}"),
        f"workloads.*.{side}.shape": (f"{field}={{shape: sharegpt}}", f"{field}={{shape: azure-code}}"),
    }


def _traced(side: str) -> dict[str, Case]:
    field = f"workloads.0.{side}"
    return {
        f"workloads.*.{side}.trace": (f"{field}={{trace: a.csv}}", f"{field}={{trace: b.csv}}"),
        f"workloads.*.{side}.column": (f"{field}={{trace: a.csv}}", f"{field}={{trace: a.csv, column: other}}"),
    }


APART = "options.modes=[disaggregated] ; cluster.pools=[{gpu: h100_sxm, nodes: 2, gpus_per_node: 1}]"
SHARED = (
    TWO_MODELS
    + " ; workloads=[{name: a, model: %s, input_tokens: 512, output_tokens: 128, share: %s},"
    + " {name: b, model: m, input_tokens: 64, output_tokens: 512}]"
)

WIDE = "cluster.pools=[{gpu: h100_sxm, nodes: 2, gpus_per_node: 1}]"
STAGES = "options.search.pools=stages ; options.search.pp=[2] ; "
SPLIT = "options.arrangements=[disaggregated] ; "
HORIZON = "options.horizon={periods: [{iterations: 2}], generation_change: 9s, training_change: 9s}"

ONE_PASS = "options={simulated_requests: 200, batching: false} ; workloads.0.output_tokens=1"
BOTH_PLACED = (
    TWO_MODELS
    + " ; workloads=[{name: a, model: %s, input_tokens: 512, output_tokens: 32, load: {rate: 10/s},"
    + " slo: {latency: {p1: 500ms}}},"
    + " {name: b, model: %s, input_tokens: 64, output_tokens: 99, load: {rate: 4/s}, slo: {latency: {p1: 1s}}}]"
)


LAYERED = (
    "options={layers: {max_stages: 2}} ; objective={maximize: tokens_per_s_per_gpu}"
    " ; workloads=[{name: a, input_tokens: 512, output_tokens: 32}] ; models.m.name=Qwen/Qwen3-32B"
    " ; cluster={pools: [{gpu: l40s, nodes: 1, gpus_per_node: 1%s}, {gpu: a100_sxm, nodes: 1, gpus_per_node: 1%s}],"
    " links: [%s]}"
)
JOINT = "{pools: [l40s, a100_sxm], bandwidth: %s}"


def _placed_limits(time: str, loose: str, tight: str) -> dict[str, Case]:
    """Limits on a time of requests that are on time or not; a mean is of no request."""
    field = f"workloads.0.slo={{{time}: {{%s: %s}}}}"
    stated = {
        f"workloads.*.slo.{time}.{name}_s": (field % (name, loose), field % (name, tight))
        for name in ("p50", "p90", "p95", "p99")
    }
    return {**stated, f"workloads.*.slo.{time}.mean_s": (field % ("mean", loose), REFUSED)}


TIGHT = "cluster.pools.0.nodes=2 ; options.ep=16 ; options.slots_per_rank=8"
AHEAD = (
    "options.arrangements=[colocated, disaggregated] ; options.max_staleness=1"
    " ; options.generation_tp=[1, 2, 4] ; options.training_tp=[1, 2, 4]"
)
REFUSED = "refused by its own rule"


def _wired(options: str) -> dict[str, Case]:
    """Groups of nodes in one scale-up domain, around a node that is out where their rule shows."""

    def joined(links: str, nodes: int = 4, out: str = "1") -> str:
        pool = f"{{gpu: h100_sxm, nodes: {nodes}, gpus_per_node: 1, out_of_service: [{out}]"
        return f"cluster.pools=[{pool}, topology: {{scale_up: {{{links}}}}}}}] ; {options}"

    name, ring = "cluster.pools.*.topology.scale_up", "kind: ring, hops: 1, group: 2"
    return {
        f"{name}.kind": (joined("kind: fixed, group: 2"), joined("kind: switch, group: 2")),
        f"{name}.group": (
            joined("kind: ring, hops: 1, group: 2", out=""),
            joined("kind: ring, hops: 1, group: 3", out=""),
        ),
        f"{name}.hops": (joined(ring), joined("kind: ring, hops: 2, group: 2")),
        f"{name}.unit": (joined("kind: switch, group: 2"), joined("kind: switch, group: 2, unit: 2")),
        f"{name}.bandwidth_bytes_per_s": (joined(ring), joined(ring + ", bandwidth: 1GB/s")),
    }


def _racked(options: str) -> dict[str, Case]:
    """Racks of a node each, or one of both, with uplinks."""

    def racked(topology: str) -> str:
        return f"cluster.pools=[{{gpu: h100_sxm, nodes: 2, gpus_per_node: 1, topology: {{{topology}}}}}] ; {options}"

    name, apart = "cluster.pools.*.topology", "racks: [1, 1], uplink: 1GB/s"
    return {
        f"{name}.racks": (racked(apart), racked("racks: [2], uplink: 1GB/s")),
        f"{name}.uplink_bytes_per_s": (racked(apart), racked("racks: [1, 1], uplink: 100MB/s")),
    }


def _switched() -> dict[str, Case]:
    """Racks of a node each, whose circuits send new weights."""

    def joined(racks: str, **changed: str) -> str:
        circuits = {"ports": "2", "link": "10MB/s", "switching": "1s"} | changed
        written = ", ".join(f"{name}: {value}" for name, value in circuits.items())
        pool = f"{{gpu: h100_sxm, nodes: 2, topology: {{racks: {racks}, circuits: {{{written}}}}}}}"
        return f"{SPLIT} ; cluster.pools=[{pool}]"

    name, apart = "cluster.pools.*.topology", joined("[1, 1]")
    return {
        f"{name}.racks": (apart, joined("[2]")),
        f"{name}.circuits.ports": (apart, joined("[1, 1]", ports="1")),
        f"{name}.circuits.link_bytes_per_s": (apart, joined("[1, 1]", link="1MB/s")),
        f"{name}.circuits.switching_s": (apart, joined("[1, 1]", switching="5s")),
    }


def _railed(options: str) -> dict[str, Case]:
    """Rails of a node each, or of both."""

    def railed(rails: str) -> str:
        pool = f"{{gpu: h100_sxm, nodes: 2, gpus_per_node: 1, topology: {{rails: {{{rails}}}}}}}"
        return f"cluster.pools=[{pool}] ; {options}"

    name = "cluster.pools.*.topology.rails"
    return {
        f"{name}.nodes": (railed("nodes: 1, oversubscription: 8"), railed("nodes: 2, oversubscription: 8")),
        f"{name}.oversubscription": (railed("nodes: 1, oversubscription: 8"), railed("nodes: 1, oversubscription: 64")),
    }


READ: dict[str, dict[str, Case]] = {
    "serve": {
        **DEVICES,
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "cluster.pools.*.usd_per_gpu_hour": ("", "cluster.pools.0.price=3USD/h"),
        "cluster.pools.*.fabric": (APART, APART + " ; cluster.pools.0.fabric=hdr200"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (APART, APART + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.pools.*.oversubscription": (APART, APART + " ; cluster.pools.0.oversubscription=8"),
        **_wired("options.tp=[2]"),
        **_racked("options={tp: [1], pp: [2]}"),
        **_railed("options={tp: [1], pp: [2]}"),
        "cluster.links.*.bandwidth_bytes_per_s": (
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK,
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK.replace("10GB/s", "1GB/s"),
        ),
        "cluster.links.*.latency_s": (
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK,
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK.replace("10GB/s", "10GB/s, latency: 1ms"),
        ),
        "cluster.links.*.pools": (
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK,
            "options.modes=[disaggregated] ; " + TWO_POOLS % "",
        ),
        "availability.level": ("", "availability=n+1"),
        "availability.per": (TWO_NODES + " ; availability.per=role", TWO_NODES + " ; availability.per=node"),
        "workloads.*.name": ("", "workloads.0.name=other"),
        "workloads.*.model": (SHARED % ("m", 1), SHARED % ("n", 1)),
        "workloads.*.share": (SHARED % ("n", 1), SHARED % ("n", 3)),
        **_lengths("input_tokens"),
        **_lengths("output_tokens"),
        **_traced("input_tokens"),
        **_traced("output_tokens"),
        "workloads.*.prefix_hits": ("", "workloads.0.prefix_hits=50%"),
        "workloads.*.load.rate_per_s": ("workloads.0.load={rate: 2/s}", "workloads.0.load={rate: 3/s}"),
        "workloads.*.load.concurrency": ("workloads.0.load={concurrency: 2}", "workloads.0.load={concurrency: 3}"),
        "workloads.*.load.arrival_cv": (
            "workloads.0.load={rate: 9/s}",
            "workloads.0.load={rate: 9/s, arrival_cv: 3}",
        ),
        **_limits("ttft"),
        **_limits("tpot"),
        **_limits("itl"),
        **_limits("latency"),
        "workloads.*.slo.attainment": (
            "workloads.0.slo={ttft: {p50: 80ms}, attainment: 90%}",
            "workloads.0.slo={ttft: {p50: 80ms}, attainment: 95%}",
        ),
        "workloads.*.slo.confidence": ("", "workloads.0.slo.confidence=90%"),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "engine.max_context_tokens": ("", "engine.max_context_tokens=2000"),
        "engine.async_scheduling": ("", "engine.async_scheduling=false"),
        "engine.host_cache_bytes_per_gpu": (
            "workloads.0.prefix_hits=50%",
            "workloads.0.prefix_hits=50% ; engine.host_cache=8GB",
        ),
        "costs.profiles": ("", "costs.profiles=[profiles]"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.maximize": ("", "objective.maximize=tokens_per_s_per_gpu"),
        "objective.minimize": (
            "workloads.0.load={rate: 1/s} ; objective={minimize: gpus}",
            "workloads.0.load={rate: 1/s} ; cluster.pools.0.price=3USD/h ; objective={minimize: cost}",
        ),
        "objective.pareto": ("", "objective={pareto: [tokens_per_s_per_gpu, tokens_per_s_per_user]}"),
        "limits.gpus": ("", "limits.gpus=1"),
        "limits.usd_per_hour": (
            "cluster.pools.0.price=3USD/h",
            "cluster.pools.0.price=3USD/h ; limits.price=4USD/h",
        ),
        "seed": (SIMULATED + " ; seed=1", SIMULATED + " ; seed=2"),
    },
    "train": {
        **DEVICES,
        "name": ("", "name=other"),
        "cluster.pools.*.fabric": (WIDE, WIDE + " ; cluster.pools.0.fabric=hdr200"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (WIDE, WIDE + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.pools.*.oversubscription": (WIDE, WIDE + " ; cluster.pools.0.oversubscription=8"),
        **_wired("options.search={tp: 2, pp: 1, cp: 1}"),
        **_racked("options.search={tp: 1, pp: 1, dp: 2, cp: 1, zero_stage: 1, micro_batch: 1}"),
        "cluster.links.*.pools": (STAGES + TWO_POOLS % LINK, STAGES + TWO_POOLS % ""),
        "cluster.links.*.bandwidth_bytes_per_s": (
            STAGES + TWO_POOLS % LINK,
            STAGES + TWO_POOLS % LINK.replace("10GB/s", "1GB/s"),
        ),
        "cluster.links.*.latency_s": (
            STAGES + TWO_POOLS % LINK,
            STAGES + TWO_POOLS % LINK.replace("10GB/s", "10GB/s, latency: 1ms"),
        ),
        "costs.profiles": ("", "costs.profiles=[profiles]"),
        "costs.calibration": ("", "costs.calibration=none"),
        "engine.name": ("engine.name=megatron-lm", "engine.name=torchtitan"),
        "engine.version": ("engine.name=megatron-lm", 'engine={name: megatron-lm, version: "0.1"}'),
        "objective.maximize": ("", "objective={maximize: tokens_per_s_per_gpu}"),
        "objective.minimize": ("", "objective={maximize: tokens_per_s_per_gpu}"),
        "limits.gpus": ("", "limits.gpus=4"),
    },
    "rl": {
        **DEVICES,
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "cluster.pools.*.usd_per_gpu_hour": (
            "objective.minimize=cost ; cluster.pools.0.price=2USD/h",
            "objective.minimize=cost ; cluster.pools.0.price=3USD/h",
        ),
        **_switched(),
        "cluster.pools.*.fabric": (TWO_NODES, TWO_NODES + " ; cluster.pools.0.fabric=hdr200"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (TWO_NODES, TWO_NODES + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.links.*.pools": (SPLIT + TWO_POOLS % LINK, SPLIT + TWO_POOLS % ""),
        "cluster.links.*.bandwidth_bytes_per_s": (
            SPLIT + TWO_POOLS % LINK,
            SPLIT + TWO_POOLS % LINK.replace("10GB/s", "1GB/s"),
        ),
        "cluster.links.*.latency_s": (
            SPLIT + TWO_POOLS % LINK,
            SPLIT + TWO_POOLS % LINK.replace("10GB/s", "10GB/s, latency: 100ms"),
        ),
        "workloads.*.model": ("workloads.0.model=m", TWO_MODELS + " ; options.actor=m ; workloads.0.model=n"),
        **_lengths("input_tokens"),
        **_lengths("output_tokens"),
        **{
            name: (case[0], REFUSED)
            for side in ("input_tokens", "output_tokens")
            for name, case in _traced(side).items()
        },
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "costs.profiles": ("", "costs.profiles=[profiles]"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.maximize": (
            "cluster.pools.0.price=2USD/h",
            "cluster.pools.0.price=2USD/h ; objective={maximize: tokens_per_usd}",
        ),
        "objective.minimize": (
            "cluster.pools.0.price=2USD/h",
            "cluster.pools.0.price=2USD/h ; objective={minimize: cost}",
        ),
        "limits.gpus": ("", "limits.gpus=4"),
        "current": (HORIZON, HORIZON + " ; current=plan.json"),
        "seed": ("seed=1", "seed=2"),
    },
    "experts": {
        "name": ("", "name=other"),
        "models.*.name": ("", "models.m.name=Qwen/Qwen3-30B-A3B-FP8"),
        "models.*.config": ("models={m: {config: experts-512}}", "models={m: {config: experts-768}}"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "cluster.pools.*.gpu": ("", "cluster.pools.0.gpu=h100_sxm"),
        "cluster.pools.*.name": ("", "cluster.pools.0.name=hall"),
        "cluster.pools.*.nodes": (
            "",
            "cluster.pools.0={gpu: h200, nodes: 2} ; options.ep=16 ; options.slots_per_rank=10",
        ),
        "cluster.pools.*.gpus": ("cluster.pools=[{gpu: h200, gpus: 4}]", "cluster.pools=[{gpu: h200, gpus: 2}]"),
        "cluster.pools.*.gpus_per_node": (
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [0]}]",
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [0], gpus_per_node: 4}]",
        ),
        "cluster.pools.*.node_names": (
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [a], node_names: [a, b]}]",
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [a], node_names: [b, a]}]",
        ),
        "cluster.pools.*.out_of_service": (
            "cluster.pools=[{gpu: h200, nodes: 2}]",
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [0]}]",
        ),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("", "engine.version=v1"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "objective.minimize": ("", "objective={minimize: gpus}"),
        "seed": (TIGHT + " ; seed=1", TIGHT + " ; seed=2"),
    },
    "place": {
        **DEVICES,
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "workloads.*.name": ("", "workloads.0.name=other"),
        "workloads.*.model": (BOTH_PLACED % ("m", "n"), BOTH_PLACED % ("n", "m")),
        **_lengths("input_tokens"),
        **_lengths("output_tokens"),
        **_traced("input_tokens"),
        **_traced("output_tokens"),
        "workloads.*.load.rate_per_s": ("workloads.0.load={rate: 60/s}", "workloads.0.load={rate: 50/s}"),
        "workloads.*.load.arrival_cv": ("", "workloads.0.load.arrival_cv=2"),
        **_placed_limits("ttft", "60s", "1ms"),
        **_placed_limits("tpot", "60s", "1ms"),
        **_placed_limits("latency", "60s", "1ms"),
        "workloads.*.slo.attainment": (
            "workloads.0.slo={latency: {p1: 300ms}, attainment: 1%}",
            "workloads.0.slo={latency: {p1: 300ms}, attainment: 99.9%}",
        ),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.maximize": ("", "objective={maximize: goodput_per_gpu}"),
        "objective.minimize": ("", "objective={minimize: gpus}"),
        "limits.gpus": ("", "limits.gpus=1"),
        "seed": ("seed=1", "seed=2"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (
            LAYERED % ("", "", ""),
            LAYERED % (", nic_bandwidth: 1MB/s", "", ""),
        ),
        "cluster.pools.*.usd_per_gpu_hour": (
            MIXED % (3, 3, 2, 1, 1, 0),
            (MIXED % (3, 3, 2, 1, 1, 0)).replace("1.9", "3"),
        ),
        "cluster.links.*.pools": (LAYERED % ("", "", ""), LAYERED % ("", "", JOINT % "1MB/s")),
        "cluster.links.*.bandwidth_bytes_per_s": (
            LAYERED % ("", "", JOINT % "1MB/s"),
            LAYERED % ("", "", JOINT % "2MB/s"),
        ),
        "cluster.links.*.latency_s": (
            LAYERED % ("", "", JOINT % "1MB/s"),
            LAYERED % ("", "", JOINT.replace("%s", "1MB/s, latency: 1ms")),
        ),
    },
}

LIMITS: dict[str, dict[str, tuple[Limits, Limits, str]]] = {
    "serve": {
        "time_limit_s": (Limits(), Limits(time_limit_s=1e-9), ""),
        "gap": (Limits(), Limits(gap=0.9), TWO_NODES + " ; options={pp: [1], chunk_tokens: [2048]}"),
        "seed": (Limits(seed=1), Limits(seed=2), SIMULATED),
        "backend": (Limits(), Limits(backend="mathopt-highs"), ""),
    },
    "train": {
        "time_limit_s": (Limits(), Limits(time_limit_s=0.0), ""),
        "gap": (Limits(), Limits(gap=0.9), ONE_NODE + " ; options.search={}"),
    },
    "rl": {
        "time_limit_s": (Limits(), Limits(time_limit_s=0.0), ""),
        "gap": (Limits(), Limits(gap=0.9), AHEAD),
        "seed": (Limits(seed=1), Limits(seed=2), ""),
    },
    "experts": {"gap": (Limits(), Limits(gap=0.5), ""), "seed": (Limits(seed=1), Limits(seed=2), TIGHT)},
    "place": {
        "seed": (Limits(seed=1), Limits(seed=2), ""),
        "time_limit_s": (Limits(), Limits(time_limit_s=1e-9), MIXED % (3, 3, 2, 1, 1, 1)),
    },
}
"""Two limits that give two plans of a problem; `threads` must not change a plan, and has tests of its own."""

GIVEN = {
    "time_limit_s": Limits(time_limit_s=60.0),
    "gap": Limits(gap=0.1),
    "seed": Limits(seed=7),
    "threads": Limits(threads=2),
    "backend": Limits(backend="pulp-cbc"),
}
KINDS = tuple(name for name in kind_names() if find_kind(name).solvable)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the files that the problems name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("problems")
    draw = np.random.default_rng(0)
    loads = {name: draw.lognormal(0, 0.8, (2, 48, 128)) * 1000 for name in ("load", "one", "two")}
    np.savez(path / "loads.npz", load=loads["load"])
    np.savez(path / "both.npz", one=loads["one"], two=loads["two"])
    np.savez(path / "windows.npz", load=loads["one"][:1] * draw.lognormal(0, 0.5, (8, 48, 128)))
    np.savez(path / "resident.npz", np.tile(np.arange(132) % 128, (48, 1)))
    (path / "a.csv").write_text("input_tokens,output_tokens,other\n100,100,50\n200,90,60\n")
    (path / "b.csv").write_text("input_tokens,output_tokens,other\n150,120,50\n200,90,60\n")
    for name, fields_of_config in _configs().items():
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps(fields_of_config))
    table = path / "profiles" / "h100_sxm" / "gemm" / "vllm" / "1.0.0" / "gemm_perf.parquet"
    table.parent.mkdir(parents=True)
    sizes = {
        "m": [1, 1, 65536, 65536],
        "n": [64, 262144] * 2,
        "k": [64, 64, 65536, 65536],
        "latency": [1.0, 2.0, 3.0, 4.0],
    }
    pq.write_table(pa.table({"gemm_dtype": ["bfloat16"] * 4, **sizes}), table)
    (path / "plan.json").write_text(_running(path))
    return path


def _configs() -> dict[str, dict[str, Any]]:
    """Small models by the folder of their config.json."""
    common = {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "intermediate_size": 3072,
    }
    routed = {"num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "decoder_sparse_step": 1}
    dense = {f"dense-{n}": {"model_type": "qwen3", "num_hidden_layers": n, **common} for n in (8, 12)}
    sparse = {
        f"experts-{width}": {"model_type": "qwen3_moe", "moe_intermediate_size": width, **routed, **common}
        for width in (512, 768)
    }
    return dense | sparse


def _running(folder: Path) -> str:
    """The plan that runs before a horizon: one with other degrees than the base allows."""
    return solved(folder, "rl", HORIZON + " ; options.generation_tp=[2]").model_dump_json(by_alias=True)


def written(kind: str, changes: str) -> tuple[dict[str, Any], list[str]]:
    """The base problem of a kind, and overrides as `--set` takes them."""
    return base(kind), [text for text in changes.split(" ; ") if text]


@cache
def _base_json(kind: str) -> str:
    """Read once: YAML takes as long as the check of what it says."""
    return json.dumps({"schema": "planner.problem/1", "kind": kind, **yaml.safe_load(BASES[kind])})


def base(kind: str) -> dict[str, Any]:
    """The base problem of a kind, for its caller alone."""
    problem: dict[str, Any] = json.loads(_base_json(kind))
    return problem


def solved(folder: Path, kind: str, changes: str, limits: Limits | None = None) -> Envelope:
    data, overrides = written(kind, changes)
    return solve(resolve_document(given_document(data, "problem"), folder, overrides=overrides), limits)


@cache
def outcome(folder: Path, kind: str, changes: str, limits: Limits | None = None) -> object:
    """What a user gets, without what repeats the problem; the name of the solver stays."""
    try:
        envelope = solved(folder, kind, changes, limits)
    except (PlannerError, Infeasible, Stopped) as answer:
        return str(answer)
    told = envelope.model_dump(mode="json", exclude=set(NOT_THE_PLAN))
    return {**told, "solver": envelope.software.solver}


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_holds_every_field_that_a_kind_reads_and_no_other(kind: str) -> None:
    reads = find_kind(kind).reads
    assert set(READ[kind]) == {name for name in FIELDS if reads.reads(name)}
    assert set(LIMITS[kind]) | ({"threads"} & reads.limits) == reads.limits
    assert set(GIVEN) == set(FLAGS) == {field.name for field in fields(Limits)} - {"tell"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in READ[kind]],
)
def test_two_values_of_a_field_that_is_read_have_two_plans(folder: Path, kind: str, name: str) -> None:
    first, second = READ[kind][name]
    if second is REFUSED:
        data, overrides = written(kind, first)
        with pytest.raises(PlannerError, match=r"workloads\.0"):
            solve(resolve_document(given_document(data, "problem"), folder, overrides=overrides))
        return
    one_way, other_way = (outcome(folder, kind, changes) for changes in (first, second))
    assert not (isinstance(one_way, str) and isinstance(other_way, str)), (one_way, other_way)
    assert one_way != other_way


@pytest.mark.parametrize("kind", KINDS)
def test_the_options_of_a_kind_all_stand_in_the_table(kind: str) -> None:
    assert {*OPTIONS[kind], *LAUNCHED.get(kind, ())} == set(leaves(find_kind(kind).options))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in OPTIONS[kind]])
def test_two_values_of_an_option_have_two_plans(folder: Path, kind: str, name: str) -> None:
    one_way, other_way = (outcome(folder, kind, changes) for changes in OPTIONS[kind][name])
    assert isinstance(one_way, dict)
    assert one_way != other_way


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_is_not_read_is_refused_with_what_to_do(kind: str) -> None:
    """All fields of the schema at once, each with a value that the schema takes."""
    reads, where = find_kind(kind).reads, Where({}, "problem")
    refused = {}
    for problem in EVERYTHING:
        engine = problem["engine"] | ({"name": "megatron-lm"} if kind == "train" else {})
        for error in unread_fields(reads, Problem.model_validate(problem | {"kind": kind, "engine": engine}), where):
            refused[error.where.removeprefix("problem: ")] = error.hint
    assert all(refused.values())
    patterns = {_pattern(place) for place in refused}
    assert patterns == {name for name in FIELDS if not reads.reads(name)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_inputs_of_a_plan_are_a_problem_with_the_same_plan(folder: Path, kind: str) -> None:
    plan = solved(folder, kind, "")
    again = solve(resolve_document(given_document(plan.inputs, "inputs"), folder))
    assert (again.inputs, again.decision, again.predictions) == (plan.inputs, plan.decision, plan.predictions)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("train", "seed", 7), ("train", "limits", {"usd_per_hour": 1e9}), ("experts", "limits", {"gpus": 3})],
)
def test_what_the_inputs_of_a_plan_set_and_nobody_reads_fails_its_check(
    folder: Path, kind: str, name: str, value: object
) -> None:
    plan = solved(folder, kind, "")
    inputs: dict[str, Any] = {**plan.inputs, name: value}
    digests = plan.digests.model_copy(update={"problem": digest(inputs)})
    for envelope, failing in ((plan, set()), (plan.model_copy(update={"inputs": inputs, "digests": digests}), {name})):
        decision = find_kind(kind).decision.model_validate(envelope.decision)
        findings = check_plan(envelope, decision, hand=AtHand((folder,)))
        unread = {finding.where for finding in findings if finding.rule == "inputs.read"}
        assert {".".join(place.split(".")[:2]) for place in unread} == {f"inputs.{name}" for name in failing}


def _pattern(place: str) -> str:
    keys = place.split(".")
    return ".".join(
        "*" if key.isdigit() or (index == 1 and keys[0] == "models") else key for index, key in enumerate(keys)
    )


STATISTICS = {f"{name}_s": 1.0 for name in ("mean", "p50", "p90", "p95", "p99")}
LENGTHS = (8, {"low": 1, "high": 2}, {"mean": 8, "cv": 1}, {"trace": "a.csv", "column": "other"}, {"shape": "s"})
EVERYTHING: list[dict[str, Any]] = [
    {
        "schema": "planner.problem/1",
        "name": "plan",
        "models": {"m": {"name": "m", "weights": "fp8", "kv_cache": "fp8"}, "n": {"config": "n"}},
        "cluster": {
            "pools": [
                {
                    "gpu": "h200", "name": "a", "nodes": 2, "gpus_per_node": 8, "node_names": ["a", "b"],
                    "out_of_service": [0], "usd_per_gpu_hour": 1.0, "fabric": "f", "nic_bandwidth_bytes_per_s": 1e9,
                    "oversubscription": 2.0,
                    "topology": {
                        "racks": [1, 1], "uplink_bytes_per_s": 1e9, "rails": {"nodes": 1, "oversubscription": 2.0},
                        "scale_up": {"kind": "ring", "hops": 1, "group": 1, "bandwidth_bytes_per_s": 1e9},
                        "circuits": {"ports": 1, "link_bytes_per_s": 1e9, "switching_s": 0.1},
                    },
                },
                {
                    "gpu": "h200", "name": "b", "gpus": 8,
                    "topology": {"scale_up": {"kind": "switch", "group": 1, "unit": 1}},
                },
            ],
            "links": [{"pools": ["a", "b"], "bandwidth_bytes_per_s": 1e9, "latency_s": 1.0}],
        },
        "workloads": [
            {
                "name": str(index), "model": "m", "input_tokens": length, "output_tokens": length, "share": 2.0,
                "priority": 1, "load": load, "prefix_hits": 0.5,
                "slo": {
                    "ttft": STATISTICS, "tpot": STATISTICS, "itl": STATISTICS, "latency": STATISTICS, "attainment": 0.9,
                    "confidence": 0.9,
                },
            }
            for index, (length, load) in enumerate(
                zip(LENGTHS, ({"rate_per_s": 1.0, "arrival_cv": 2.0}, {"concurrency": 1}, *[None] * 3), strict=True)
            )
        ],
        "engine": {"name": "sglang", "version": "1", "memory_utilisation": 0.5, "max_context_tokens": 4096,
                   "async_scheduling": False, "host_cache_bytes_per_gpu": 8e9},
        "availability": {"level": "n+1", "per": "node"},
        "costs": {"profiles": ["p"], "calibration": "none"},
        "objective": objective,
        "limits": {"gpus": 1, "usd_per_hour": 1.0},
        "current": "plan.json",
        "seed": 1,
    }
    for objective in (
        {"maximize": "goodput_per_gpu"},
        {"minimize": "gpus"},
        {"pareto": ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]},
    )
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in LIMITS[kind]])
def test_two_values_of_a_limit_that_is_read_have_two_plans(folder: Path, kind: str, name: str) -> None:
    first, second, changes = LIMITS[kind][name]
    assert outcome(folder, kind, changes, first) != outcome(folder, kind, changes, second)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in FLAGS])
def test_a_limit_that_is_not_read_is_refused_by_its_flag(folder: Path, kind: str, name: str) -> None:
    if name in find_kind(kind).reads.limits:
        return
    with pytest.raises(PlannerError, match="do not read") as raised:
        solved(folder, kind, "", GIVEN[name])
    assert raised.value.where == FLAGS[name]
    assert raised.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_backend_is_refused_everywhere(folder: Path, kind: str) -> None:
    with pytest.raises(PlannerError, match="unknown backend `nonsense`"):
        solved(folder, kind, "", Limits(backend="nonsense"))


@pytest.mark.parametrize(
    ("kind", "changes", "limits", "told"),
    [
        ("experts", "options.policy=realtime ; seed=3", None, "with `policy: realtime`"),
        ("experts", "options.groups=4", None, "`options.groups` has no effect with `policy: static`"),
        ("train", "options.lora_rank=4", None, "without `task: lora`"),
        ("train", "engine.name=sglang", None, "`sglang` serves"),
        ("train", "options.reliability={remote_write: 1GB/s, slow_speed: 0.5}", None, "without `slow_nodes`"),
        ("train", "options.optimizer=sgd", None, "`sgd` have no cost"),
        ("rl", "options.late_change=1s", None, "without `late_thresholds`"),
        ("serve", "options.simulated_requests=1000", None, "without `judged_by: simulation`"),
        ("serve", "options.micro_batches=[2]", None, "without `attention-ffn`"),
        ("place", "options.pp=[1]", None, "where engines batch"),
        ("place", ONE_PASS + " ; options.max_batch=4", None, "with `batching: false`"),
        ("place", ONE_PASS + " ; models.m.kv_cache=fp8", None, "answer in one pass"),
        ("experts", "options.policy=realtime", Limits(gap=0.1), "with `policy: realtime`"),
        ("rl", HORIZON, Limits(time_limit_s=1.0), "on a horizon"),
        ("rl", HORIZON, Limits(gap=0.1), "on a horizon"),
        ("rl", "", Limits(threads=2), "without `fused_training`"),
        ("serve", "", Limits(threads=2), "`mathopt-gscip` runs on one thread"),
        ("serve", "", Limits(threads=2, backend="mathopt-highs"), "`mathopt-highs` runs on one thread"),
    ],
)
def test_what_other_choices_leave_without_effect_is_refused(
    folder: Path, kind: str, changes: str, limits: Limits | None, told: str
) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solved(folder, kind, changes, limits)
    assert raised.value.where
    assert raised.value.hint


def test_threads_reach_the_backend_that_can_use_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.solvers.backends import pulp_cbc
    from planner.solvers.backends.model import LinearModel
    from planner.solvers.backends.outcome import BackendLimits, BackendOutcome

    run, seen = pulp_cbc.run, set[int]()

    def listen(model: LinearModel, limits: BackendLimits) -> BackendOutcome:
        seen.add(limits.threads)
        return run(model, limits)

    monkeypatch.setattr(pulp_cbc, "run", listen)
    solved(folder, "serve", "", Limits(threads=2, backend="pulp-cbc"))
    assert seen == {2}


NOT_LIMITS = {"problem", "output", "as_json", "overrides", "level", "profiles", "show_config", "verbose"}
NOT_LIMITS |= {"fix", "most", "fewest_shapes", "running", "loss", "moves"}
"""What else `planner solve` takes: fields of the problem by other names, which plans are wanted, and where they go."""


def test_every_flag_of_solve_is_a_limit_that_some_kind_reads_or_names_fields_of_the_problem() -> None:
    verb = built_command().commands["solve"]
    flags = {parameter.opts[0] for parameter in verb.params if parameter.name not in NOT_LIMITS}
    assert flags == set(FLAGS.values())
    read = {parameter.envvar for parameter in verb.params if parameter.envvar} - {"PLANNER_LEVEL"}
    assert read | {"PLANNER_PROFILES"} == set(VARIABLES)


VARIABLES = {
    "PLANNER_TIME_LIMIT": ("time_limit_s", "9s"),
    "PLANNER_GAP": ("gap", "9%"),
    "PLANNER_SEED": ("seed", "9"),
    "PLANNER_THREADS": ("threads", "2"),
    "PLANNER_BACKEND": ("backend", "pulp-cbc"),
    "PLANNER_PROFILES": ("costs.profiles", "profiles"),
}


@pytest.mark.parametrize(("kind", "variable"), [(kind, variable) for kind in KINDS for variable in VARIABLES])
def test_a_variable_that_is_not_read_is_refused_by_its_name(
    folder: Path, kind: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value = VARIABLES[variable]
    if find_kind(kind).reads.reads(name):
        return
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(written(kind, "")[0]))
    monkeypatch.setenv(variable, value)
    assert main(["solve", str(path)]) == 2
    error = capsys.readouterr().err
    assert variable in error.partition(": ")[2].partition(": ")[0]
    assert "do not read" in error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["absent", "dense-8"])
def test_a_catalog_that_is_none_is_refused_by_the_name_of_its_variable(
    folder: Path, kind: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_CATALOG", str(folder / wrong))
    with pytest.raises(PlannerError) as raised:
        solved(folder, kind, "")
    assert raised.value.where == "PLANNER_CATALOG"
