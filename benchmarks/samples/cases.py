"""Generated planning cases, a small one for each kind that the benchmarks by kind read."""

import json
from collections.abc import Callable
from itertools import combinations

from case_kinds import KINDS, small_case

from samples import caches, clusters, graphs
from samples.tables import Case, case_draws

BEGINNINGS = {  # how names of cases begin, of kinds with a small case of their own
    "core_attention_balance": "lc",
    "dynamic_cp": "lc",
    "hybrid_sparse_cp": "lc",
    "microbatch_order": "mm",
    "modality_schedule": "mm",
}
WASTE_KEYS = ("big-switch|tp8|p0.02", "khop2|tp16|p0.02", "nvl72|tp32|p0.05", "sip-ring|tp16|p0.05")


def files() -> dict[str, bytes]:
    """The cases by file, what they name beside themselves, and the table of known optima, which is empty."""
    made = {f"{name}_sample": {"kind": kind, **make()} for (name, kind), make in MADE.items()}
    for kind in KINDS:
        if (small := small_case(kind)) is not None:
            made[f"{BEGINNINGS[kind]}_{kind}_sample"] = small
    texts = {f"{name}.json": json.dumps({"case": name, **case}) + "\n" for name, case in made.items()}
    beside = {**caches.files(), **clusters.files()}
    return {name: text.encode() for name, text in {**texts, "optimum.json": "{}\n"}.items()} | beside


def waste() -> str:
    """hbd_mc_2880gpu.json: ratios of a small cluster; those to compare with are what the same module makes."""
    from case_kinds.hbd_waste import architecture_of, healthy_by_trial, ratios

    case: Case = {"kind": "hbd_waste", "nodes": 144, "gpus_per_node": 4, "trials": 50}
    results = {}
    for key in WASTE_KEYS:
        name, size, share = key.split("|")
        healthy, m = healthy_by_trial(case, float(share.removeprefix("p"))), int(size.removeprefix("tp")) // 4
        results[key] = ratios(architecture_of(name, 4), healthy, m)
    return json.dumps({"case": "waste_sample", **case, "results": results}) + "\n"


def _circuits() -> Case:
    draws, pods = case_draws(1), 5
    phases = [
        {
            "name": f"phase{number}",
            "demand": [[a, b, int(draws.integers(1, 8)) * 10**9] for a, b in combinations(range(pods), 2)],
        }
        for number in range(2)
    ]
    return {"pods": pods, "ports": 6, "link_bytes_per_s": 5e10, "switching_s": 0.045, "phases": phases}


def _racks() -> Case:
    draws = case_draws(2)
    gradients, activations = ((1e9 * draws.uniform(1, 4, count)).tolist() for count in (2, 1))
    sizes = {"gradient_bytes": gradients, "activation_bytes": activations}
    return {"stages": 2, "replicas": 4, "free_nodes": [4, 3, 2], "uplink_bytes_per_s": [5e10] * 3, **sizes}


def _rings() -> Case:
    draws = case_draws(3)
    faulty = sorted({(int(draws.integers(12)), int(draws.integers(2))) for _ in range(2)})
    return {"tors": 12, "lines": 2, "nodes_per_group": 4, "hops": 2, "groups": 4, "faulty": [list(at) for at in faulty]}


def _faults() -> Case:
    draws = case_draws(4)
    begun = [(int(draws.integers(48)), float(draws.uniform(0, 95)), float(draws.exponential(3.0))) for _ in range(20)]
    architectures = [
        {"name": "nvl72", "kind": "switch", "unit": 9, "link_cost_per_node": 3.2},
        {"name": "2-hop ring", "kind": "k-hop", "hops": 2, "link_cost_per_node": 1.0},
        {"name": "fixed ring", "kind": "fixed-ring", "link_cost_per_node": 0.7},
    ]
    return {
        **{"nodes": 48, "gpus_per_node": 8, "tp": 32, "groups": 8, "availability": 0.95, "horizon_days": 100.0},
        **{"node_cost": 25.0, "architectures": architectures},
        "faults": [[node, at, min(at + days, 99.0)] for node, at, days in sorted(begun)],
    }


def _split() -> Case:
    modules = [
        {
            **{"name": name, "layers": layers, "parameter_bytes": parameter_bytes, "trained": True},
            "seconds_per_sample": {str(tp): seconds / tp**0.9 for tp in (1, 2, 4)},
            "activation_bytes_per_sample": activation_bytes,
        }
        for name, layers, seconds, parameter_bytes, activation_bytes in (
            ("encoder", 8, 0.5, 1e9, 2e9),
            ("llm", 16, 2.0, 1.4e10, 8e9),
            ("generator", 8, 0.8, 2e9, 3e9),
        )
    ]
    hardware = {"memory_bytes": 7.2e10, "nic_bytes_per_s": 4.5e10}
    sizes = {"gpus": 16, "global_batch": 64, "micro_batch": 1, "side_micro_batches_in_flight": 2}
    return {**sizes, "hardware": hardware, "modules": modules}


MADE: dict[tuple[str, str], Callable[[], Case]] = {  # beginning of the name and kind
    ("topo_circuits", "phase_circuits"): _circuits,
    ("topo_racks", "rack_groups"): _racks,
    ("topo_ring", "ring_groups"): _rings,
    ("topo_faults", "fault_capacity"): _faults,
    ("mm_split", "modality_split"): _split,
    **graphs.MADE,
    **caches.MADE,
    **clusters.MADE,
}
