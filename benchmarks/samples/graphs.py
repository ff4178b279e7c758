"""Generated cases on graphs of stages: functions, primitives, transfers, pipelines of images and of speech."""

import numpy as np

from samples.tables import SEED, Case, case_draws


def _transfer() -> Case:
    transfer_ms = case_draws(5).uniform(1.0, 18.0, 6).round(1)
    compute_ms = (transfer_ms * case_draws(6).uniform(0.6, 1.8, 6)).round(1)
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


def _functions() -> Case:
    """A map, a join of two branches and a stage of one function; milliseconds over functions, and beside them."""
    draws = case_draws(10)

    def stage(from_: list[str], work_ms: float, *, single: bool = False) -> Case:
        shares = draws.dirichlet([1.0, 4.0, 4.0, 2.0])
        parts = zip(("pre", "read", "comp", "write"), shares.tolist(), strict=True)
        both = {name: [round(work_ms * share, 1), round(20.0 * share, 1)] for name, share in parts}
        single_ms = round(sum(map(sum, both.values())), 1) if single else 0.0
        return {"from_": from_, "single": single, "components_ab": both, "single_ms": single_ms}

    stages = {
        "map": stage([], 40_000.0),
        "look": stage([], 9_000.0),
        "join": stage(["map", "look"], 20_000.0),
        "sort": stage(["join"], 1_500.0, single=True),
    }
    return {"stages": stages, "order": [*stages], "server_slots": [6, 5], "max_group": 3, "shm_ratio": 20}


def _chance() -> Case:
    """Two stages after another; a time of each step falls with memory and functions, and the first run is cold."""
    draws, steps = case_draws(11), ("cold", "read", "compute", "write")

    def stage(name: str, parents: list[int], work_s: float) -> Case:
        configs = [[memory_mb, functions] for memory_mb in (1792, 3584, 7168) for functions in (4, 8, 16)]
        base_s_OJ = np.array(
            [
                [1.0, 0.05 * work_s, work_s * 1792 / memory_mb / functions, 0.02 * work_s]
                for memory_mb, functions in configs
            ]
        )
        runs = [(base_s_J * draws.lognormal(0.0, 0.2, (3, len(steps)))).round(4).tolist() for base_s_J in base_s_OJ]
        return {"name": name, "parents": parents, "parallel": True, "configs": configs, "seconds": runs}

    return {
        **{"steps": [*steps], "run_probability": [0.1, 0.45, 0.45], "latency_s": 13.0, "probability": 0.95},
        **{"stages": [stage("split", [], 60.0), stage("join", [0], 40.0)]},
        **{"usd_per_gb_s": 1.7e-5, "usd_per_function": 2e-7},
    }


def _speech() -> Case:
    def option(name: str, usd_per_h: float, **figures: float) -> Case:
        return {"name": name, "usd_per_h": usd_per_h, **figures}

    lengths = {
        "audio_s": {"mean": 5.0, "cv": 0.8, "low": 1, "high": 30},
        "reply_tokens": {"mean": 150, "cv": 0.7, "low": 20, "high": 600},
    }
    options = {
        "encoder": [
            option("small", 1.0, base_s=0.02, per_audio_s=0.01),
            option("large", 3.0, base_s=0.01, per_audio_s=0.004),
        ],
        "prefill": [
            option("small", 2.0, base_s=0.03, per_token_s=2e-4),
            option("large", 4.0, base_s=0.02, per_token_s=6e-5),
        ],
        "decode": [option("8 slots", 2.0, slots=8, step_s=0.02), option("32 slots", 4.0, slots=32, step_s=0.015)],
        "vocoder": [
            option("small", 1.0, base_s=0.03, per_token_s=2e-3),
            option("large", 2.0, base_s=0.02, per_token_s=9e-4),
        ],
    }
    return {
        **{"seed": SEED, "requests": 150, "rate_per_s": 4.0, "arrival_cv": 1.5, "lengths": lengths, "options": options},
        **{"tokens_per_audio_s": 25.0, "prompt_tokens": 200, "chunk_tokens": 25, "first_chunks": [10, 25]},
        **{"vocoder_context_tokens": 25, "jitter_s": 0.05, "quantile": 0.95, "first_audio_s": 1.0, "late_share": 0.02},
        "max_replicas": dict.fromkeys(options, 6),
    }


MADE = {  # beginning of the name and kind
    ("stage_transfer", "stage_transfer"): _transfer,
    ("workflow_primitives", "workflow_primitives"): _primitives,
    ("workflow_groups", "workflow_groups"): _functions,
    ("workflow_chance", "workflow_chance"): _chance,
    ("pipeline_epd", "pipeline_epd"): _images,
    ("pipeline_speech", "pipeline_speech"): _speech,
}
