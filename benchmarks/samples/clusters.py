"""Generated cases on clusters: models and layers on GPUs, jobs that share them, and a day of a fleet."""

import gzip
import json

import numpy as np

from samples.tables import Case, case_draws

ARRIVALS = "place_models_sample.arrivals_us.csv.gz"
RATES_PER_S = (6.0, 4.0, 3.0, 2.0)
LATENCY_S, WEIGHT_BYTES, GPU_BYTES = 0.1, 2.4e9, 6e9  # of a model on a GPU
SPAN_S = 100.0


def files() -> dict[str, bytes]:
    """What the cases name beside themselves."""
    return {ARRIVALS: arrivals()}


def models() -> Case:
    """Four models on four GPUs that hold two each, alone or over two GPUs by operators or in stages."""
    profiles = {}
    for op, pp in ((1, 1), (1, 2), (2, 1), (2, 2)):
        stage_s = LATENCY_S / pp / op**0.8
        stages = {
            "stage_latency_s_by_batch": {"1": [stage_s] * pp},
            "stage_weight_bytes": [WEIGHT_BYTES / op / pp] * pp,
        }
        profiles[f"op{op}_pp{pp}"] = {"op": op, "pp": pp, **stages}
    served = [
        {"name": f"m{number}", "profile": "small", "slo_s": 5.0 * LATENCY_S, "rate_rps": rate, "cv": 3.0}
        for number, rate in enumerate(RATES_PER_S)
    ]
    return {
        "cluster": {"num_gpus": 4, "gpus_per_node": 4, "mem_budget_bytes_per_gpu": GPU_BYTES},
        "profiles": {"small": profiles},
        "models": served,
        "arrival": {"duration_s": SPAN_S, "eval_arrivals": ARRIVALS},
    }


def models_text() -> str:
    return json.dumps({"case": "models_sample", "kind": "multi_model_placement", **models()}) + "\n"


def arrivals() -> bytes:
    """Microseconds and model of each request."""
    draws = case_draws(12)
    drawn = [
        (int(1e6 * at_s), model)
        for model, rate in enumerate(RATES_PER_S)
        for at_s in np.cumsum(draws.gamma(1 / 9, 9 / rate, int(2 * rate * SPAN_S)))
        if at_s < SPAN_S
    ]
    text = "us,model\n" + "".join(f"{us},{model}\n" for us, model in sorted(drawn))
    return gzip.compress(text.encode(), mtime=0)


def _layers() -> Case:
    """Twelve layers on four nodes of two kinds; thin links between two regions."""
    rates = {f"n{node}": 2_400.0 if node < 2 else 1_200.0 for node in range(4)}
    nodes = {name: {"tokens_per_s_by_layers": {str(k): rate / k for k in range(1, 9)}} for name, rate in rates.items()}
    links = {f"n{a}_n{b}": 5e4 if a // 2 == b // 2 else 400.0 for a in range(4) for b in range(4) if a != b}
    ends = {key: 1e8 for name in nodes for key in (f"source_{name}", f"{name}_sink")}
    return {"num_layers": 12, "nodes": nodes, "edge_capacity_tokens_per_s": {**links, **ends}}


def _mix() -> Case:
    """Three types of GPUs for three by two buckets: the dearer, the better at long prompts."""
    draws = case_draws(13)
    info = {}
    for name, usd_per_h, rate, falls in (
        ("small", 0.7, 5.0, 1.6),
        ("middle", 1.0, 6.0, 1.3),
        ("large", 4.0, 24.0, 1.0),
    ):
        info[name] = {
            "cost": usd_per_h,
            "tputs": [[rate / (i + 1) ** falls / (o + 1) for o in range(2)] for i in range(3)],
        }
    shares = draws.dirichlet(np.ones(6)).round(3).reshape(3, 2)
    return {"gpu_info": info, "workload_distribution": shares.tolist(), "total_request_rate": 60, "slice_factor": 3}


def _moves() -> Case:
    draws = case_draws(8)
    sizes_gb, loads = draws.choice((8.0, 12.0, 24.0), 6).tolist(), draws.uniform(0.05, 0.25, 6).round(3).tolist()
    models = [
        {"memory_gb": size_gb, "load": load, "gpu": number % 2}
        for number, (size_gb, load) in enumerate(zip(sizes_gb, loads, strict=True))
    ]
    most = round(1.25 * sum(loads) / 3, 4)
    return {"gpus": [{"memory_gb": 80.0}] * 3, "models": models, "apart": [[0, 2]], "max_load": most}


def _adapters() -> Case:
    draws = case_draws(9)
    columns = (draws.integers(3, size=8), draws.integers(2, size=8), draws.integers(10, 80, 8))
    requests = [
        {"adapter": adapter, "engine": engine, "blocks": blocks, "exec_s": exec_s}
        for adapter, engine, blocks, exec_s in zip(
            *(column.tolist() for column in columns), draws.exponential(1.0, 8).round(3).tolist(), strict=True
        )
    ]
    engines = [{"adapters": 2, "blocks": 300}, {"adapters": 2, "blocks": 260}]
    return {"adapters": 3, "engines": engines, "requests": requests, "migration_s": 0.05, "blocks_per_s": 400.0}


def _share() -> Case:
    """Jobs of one and two GPUs beside production jobs, which may lose 3 %."""
    draws, kinds = case_draws(14), ("attention", "conv")

    def drawn(low: float, high: float) -> float:
        return round(float(draws.uniform(low, high)), 3)

    gpus = [{"kind": kinds[gpu % 2], "busy": drawn(0.4, 0.9), "free_gb": drawn(8.0, 40.0)} for gpu in range(6)]
    jobs = [
        {
            **{"name": f"job{job}", "gang": 1 + job % 2, "weight": drawn(0.5, 2.5), "busy": drawn(0.3, 1.0)},
            **{"memory_gb": drawn(10.0, 40.0), "contention": {kind: drawn(0.005, 0.08) for kind in kinds}},
        }
        for job in range(5)
    ]
    losses = {"over_loss": 0.5, "spill_loss": 0.04, "spill_slow": 0.5, "production_loss": 0.03}
    return {"gpus": gpus, "jobs": jobs, "rates": [0.2, 0.4, 0.6, 0.8, 1.0], **losses}


def _elastic() -> Case:
    """Jobs of several logical workers on idle GPUs of two types, one 1.5 to 2.5 times as slow."""
    draws = case_draws(15)
    jobs = []
    for number, workers in enumerate((4, 6, 8)):
        fast_s, times = (float(figure) for figure in draws.uniform((0.2, 1.5), (0.5, 2.5)))
        worker_s = {"fast": round(fast_s, 3), "slow": round(fast_s * times, 3)}
        most = {"fast": 3, "slow": 2}
        figures = {"worker_s": worker_s, "most_workers": most, "reference_s": worker_s["fast"]}
        jobs.append({"name": f"job{number}", "workers": workers, "weight": 1.0 + number / 2.0, **figures})
    return {"types": ["fast", "slow"], "gpus": [4, 6], "jobs": jobs, "least_speed": 0.2}


def _day() -> Case:
    """A service whose load swells at noon beside a training job that is paid up to a target; 12 hours of 8 nodes."""
    hours, nodes = 12, 8
    load = [round(20.0 + 35.0 * float(np.sin(np.pi * hour / (hours - 1)) ** 2), 2) for hour in range(hours)]
    chat = {
        **{"name": "chat", "type": "serving", "allowed": [*range(1, nodes + 1)], "load": load, "by_node": True},
        **{"speed": [10.0 * n for n in range(nodes + 1)], "usd_per_unit": 4.0, "usd_per_miss": 12.0, "startup_h": 0.2},
    }
    train = {
        **{"name": "train", "type": "batch", "allowed": [0, 2, 4], "speed": [n**0.9 for n in range(nodes + 1)]},
        **{"usd_per_unit": 30.0, "usd_per_missing": 50.0, "target": 20.0, "startup_h": 0.25, "by_node": False},
    }
    return {"nodes": nodes, "hours": hours, "jobs": [chat, train], "start": [4, 4]}


MADE = {  # beginning of the name and kind
    ("place_models", "multi_model_placement"): models,
    ("place_layers", "hetero_layer_placement"): _layers,
    ("place_mix", "gpu_mix"): _mix,
    ("place_moves", "place_moves"): _moves,
    ("place_adapters", "place_adapters"): _adapters,
    ("fleet_share", "fleet_share"): _share,
    ("fleet_elastic", "fleet_elastic"): _elastic,
    ("fleet_day", "fleet_day"): _day,
}
