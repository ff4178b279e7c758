"""Generated planning cases, a small one for each kind that the benchmarks by kind read."""

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
from case_kinds import KINDS, small_case

from samples.tables import SEED

Case = dict[str, Any]
BEGINNINGS = {  # how names of cases begin, of kinds with a small case of their own
    "core_attention_balance": "lc",
    "dynamic_cp": "lc",
    "hybrid_sparse_cp": "lc",
    "microbatch_order": "mm",
    "modality_schedule": "mm",
}
WASTE_KEYS = ("big-switch|tp8|p0.02", "khop2|tp16|p0.02", "nvl72|tp32|p0.05", "sip-ring|tp16|p0.05")


def files() -> dict[str, bytes]:
    """The cases by file, and the table of known optima, which is empty."""
    made = {f"{name}_sample": {"kind": kind, **make()} for (name, kind), make in MADE.items()}
    for kind in KINDS:
        if (small := small_case(kind)) is not None:
            made[f"{BEGINNINGS[kind]}_{kind}_sample"] = small
    texts = {f"{name}.json": json.dumps({"case": name, **case}) + "\n" for name, case in made.items()}
    return {name: text.encode() for name, text in {**texts, "optimum.json": "{}\n"}.items()}


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


def _draws(stream: int) -> np.random.Generator:
    return np.random.default_rng((SEED, 51, stream))


def _circuits() -> Case:
    draws, pods = _draws(1), 5
    phases = [
        {
            "name": f"phase{number}",
            "demand": [[a, b, int(draws.integers(1, 8)) * 10**9] for a, b in combinations(range(pods), 2)],
        }
        for number in range(2)
    ]
    return {"pods": pods, "ports": 6, "link_bytes_per_s": 5e10, "switching_s": 0.045, "phases": phases}


def _racks() -> Case:
    draws = _draws(2)
    gradients, activations = ((1e9 * draws.uniform(1, 4, count)).tolist() for count in (2, 1))
    sizes = {"gradient_bytes": gradients, "activation_bytes": activations}
    return {"stages": 2, "replicas": 4, "free_nodes": [4, 3, 2], "uplink_bytes_per_s": [5e10] * 3, **sizes}


def _rings() -> Case:
    draws = _draws(3)
    faulty = sorted({(int(draws.integers(12)), int(draws.integers(2))) for _ in range(2)})
    return {"tors": 12, "lines": 2, "nodes_per_group": 4, "hops": 2, "groups": 4, "faulty": [list(at) for at in faulty]}


def _faults() -> Case:
    draws = _draws(4)
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


def _transfer() -> Case:
    transfer_ms = _draws(5).uniform(1.0, 18.0, 6).round(1)
    compute_ms = (transfer_ms * _draws(6).uniform(0.6, 1.8, 6)).round(1)
    sizes = (10 * transfer_ms).astype(int)
    return {
        **{"transfer_ms": transfer_ms.tolist(), "compute_ms": compute_ms.tolist(), "bytes": sizes.tolist()},
        "buffer_bytes": int(2 * sizes.max()),
    }


def _primitives() -> Case:
    def kind(engine: str, alpha_ms: int, beta_ms: int, max_batch: int) -> Case:
        return {"engine": engine, "alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": max_batch}

    after = {"embed": [], "search": ["embed"], "answer": ["search"]}
    types = {"embed": kind("embed", 12, 6, 16), "search": kind("index", 18, 22, 8), "answer": kind("llm", 200, 12, 8)}
    graph = {name: {"type": name, "after": before} for name, before in after.items()}
    return {"graph": graph, "types": types, "release_ms": [20, 90, 340]}


def _images() -> Case:
    lengths = {
        "images": {"mean": 2.0, "cv": 1.0, "low": 0, "high": 8},
        "text_tokens": {"mean": 120, "cv": 1.0, "low": 8, "high": 2000},
        "output_tokens": {"mean": 120, "cv": 0.8, "low": 4, "high": 600},
    }
    return {
        **{"seed": SEED, "requests": 150, "arrival_cv": 1.0, "gpus": 4, "max_slots": 32, "lengths": lengths},
        **{"image_tokens": 640, "encode_base_s": 0.01, "encode_s_per_image": 0.1, "feature_bytes_per_token": 8192},
        **{"kv_bytes_per_token": 131072, "link_bytes_per_s": 2e10, "prefill_base_s": 0.015},
        **{"prefill_s_per_token": 6e-05, "prefill_s_per_token2": 1e-9, "decode_base_s": 0.014},
        **{"decode_s_per_slot": 0.0002, "ttft_s": 1.2, "tpot_s": 0.045, "attainment": 0.9},
        "rates_per_s": [round(0.4 * step, 1) for step in range(1, 16)],
    }


def _documents() -> Case:
    draws, documents = _draws(7), 40
    requests = np.minimum(draws.geometric(0.08, (240, 2)) - 1, documents - 1).tolist()
    return {
        **{"doc_tokens": draws.integers(200, 1500, documents).tolist(), "train_requests": requests[:120]},
        **{"test_requests": requests[120:], "gpu_tokens": 4000, "host_tokens": 16000, "kv_bytes_per_token": 131072},
        **{"host_bytes_per_s": 2e10, "prefill_s_per_token": 1.1e-4, "prefill_s_per_token2": 8e-9},
    }


def _moves() -> Case:
    draws = _draws(8)
    sizes_gb, loads = draws.choice((8.0, 12.0, 24.0), 6).tolist(), draws.uniform(0.05, 0.25, 6).round(3).tolist()
    models = [
        {"memory_gb": size_gb, "load": load, "gpu": number % 2}
        for number, (size_gb, load) in enumerate(zip(sizes_gb, loads, strict=True))
    ]
    most = round(1.25 * sum(loads) / 3, 4)
    return {"gpus": [{"memory_gb": 80.0}] * 3, "models": models, "apart": [[0, 2]], "max_load": most}


def _adapters() -> Case:
    draws = _draws(9)
    columns = (draws.integers(3, size=8), draws.integers(2, size=8), draws.integers(10, 80, 8))
    requests = [
        {"adapter": adapter, "engine": engine, "blocks": blocks, "exec_s": exec_s}
        for adapter, engine, blocks, exec_s in zip(
            *(column.tolist() for column in columns), draws.exponential(1.0, 8).round(3).tolist(), strict=True
        )
    ]
    engines = [{"adapters": 2, "blocks": 300}, {"adapters": 2, "blocks": 260}]
    return {"adapters": 3, "engines": engines, "requests": requests, "migration_s": 0.05, "blocks_per_s": 400.0}


MADE: dict[tuple[str, str], Callable[[], Case]] = {  # beginning of the name and kind
    ("topo_circuits", "phase_circuits"): _circuits,
    ("topo_racks", "rack_groups"): _racks,
    ("topo_ring", "ring_groups"): _rings,
    ("topo_faults", "fault_capacity"): _faults,
    ("mm_split", "modality_split"): _split,
    ("stage_transfer", "stage_transfer"): _transfer,
    ("workflow_primitives", "workflow_primitives"): _primitives,
    ("pipeline_epd", "pipeline_epd"): _images,
    ("cache_tree", "cache_tree"): _documents,
    ("place_moves", "place_moves"): _moves,
    ("place_adapters", "place_adapters"): _adapters,
}
