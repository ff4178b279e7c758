"""Answers frozen: decisions, objectives, bounds and checks of all examples and of seeded problems of every kind.

A change that only moves or renames code leaves every answer as it was. `python benchmarks/snapshots.py` solves and
checks everything again and names each answer that differs from `benchmarks/data/snapshots.json`; `--freeze` writes
that file anew, which a change of costs or of search does on purpose. `--only serve-` takes what begins so.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).parent.parent
FROZEN = ROOT / "benchmarks" / "data" / "snapshots.json"
PROBLEMS_PER_KIND, PROCESSES = 40, 2
DIGITS = 9  # of a float in an answer; the last bits of sums may differ between processors

DENSE = ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B")
EXPERTS = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B")
PRICED = ("serve", "rl")  # kinds whose plans depend on prices
GPUS = ("h100", "h200", "a100_sxm", "b200", "l40s")


def _problem(kind: str, seed: int, model: str, gpu: str, draw: random.Random) -> dict[str, Any]:
    """What problems of all kinds have: a name, a model, a pool."""
    nodes, price = draw.choice((1, 2, 4)), f"{draw.randint(1, 6)}USD/h"
    return {
        "schema": "planner.problem/1",
        "kind": kind,
        "name": f"{kind}-{seed}",
        "models": {"m": {"name": model}},
        "cluster": {
            "pools": [{"name": "pool", "gpu": gpu, "nodes": nodes} | ({"price": price} if kind in PRICED else {})]
        },
    }


def serve_problem(seed: int, folder: Path) -> dict[str, Any]:
    """Goodput, GPUs or cost of one model, dense or with experts, open loads and closed ones, drafts and overlap."""
    draw = random.Random(f"serve/{seed}")
    model = draw.choice(DENSE + EXPERTS)
    problem = _problem("serve", seed, model, draw.choice(GPUS[:4]), draw)
    problem["models"]["m"] |= draw.choice(({}, {"weights": "fp8"}, {"weights": "fp8", "kv_cache": "fp8"}))
    lengths = [{"mean": draw.choice((300, 1000, 4000)), "cv": draw.choice((0.0, 0.5, 1.0))} for _ in range(2)]
    statistic = draw.choice(("mean", "p90", "p95", "p99"))
    workload: dict[str, Any] = {
        "name": "w",
        "input_tokens": lengths[0],
        "output_tokens": lengths[1] | {"mean": draw.choice((100, 400, 1000))},
        "slo": {
            "ttft": {statistic: draw.choice(("500ms", "2s", "5s"))},
            "tpot": {"mean": draw.choice(("25ms", "60ms"))},
        },
    }
    aim = draw.choice(("goodput", "gpus", "cost", "clients", "pareto"))
    problem["objective"] = {"maximize": "goodput_per_gpu"}
    if aim in ("gpus", "cost"):
        workload["load"] = {"rate": f"{draw.choice((0.5, 2, 8))}/s"}
        problem["objective"] = {"minimize": aim}
    elif aim == "clients":
        workload["load"] = {"concurrency": draw.choice((16, 128))}
        workload["slo"] = {"ttft": {"mean": "4s"}, "tpot": {"mean": "60ms"}}
        problem["objective"] = {"minimize": "gpus"}
    problem["workloads"] = [workload]
    options: dict[str, Any] = {"pp": [1, 2], "max_batch": [16, 64, 256], "chunk_tokens": [2048, 8192]}
    if draw.random() < 0.2:
        options["speculation"] = {"method": "stated", "acceptance": 0.7, "draft_step": "1ms", "draft_tokens": [0, 2]}
    elif model in EXPERTS and draw.random() < 0.5:
        options["overlap"] = ["off", "two-batch"]
    if draw.random() < 0.15:
        problem["cluster"]["pools"].append({"name": "other", "gpu": "l40s", "nodes": 1, "price": "1USD/h"})
        problem["cluster"]["links"] = [{"pools": ["pool", "other"], "bandwidth": "100Gb/s", "latency": "20us"}]
    return problem | {"options": options}


def train_problem(seed: int, folder: Path) -> dict[str, Any]:
    """Step times of dense models and of experts, with every switch that the search has, on one pool or two."""
    draw = random.Random(f"train/{seed}")
    model = draw.choice((*DENSE, "Qwen/Qwen3-30B-A3B"))
    problem = _problem("train", seed, model, draw.choice(("h100", "a100_sxm", "h800_sxm")), draw)
    problem["cluster"]["pools"][0]["nodes"] = draw.choice((1, 2, 4, 8))
    tokens = draw.choice((2048, 4096, 8192))
    options: dict[str, Any] = {"global_batch": draw.choice((32, 64, 256)), "sequence_tokens": tokens}
    options["precision"] = (
        draw.choice(("bf16", "bf16", "fp8")) if "100" in problem["cluster"]["pools"][0]["gpu"] else "bf16"
    )
    if problem["cluster"]["pools"][0]["gpu"] == "a100_sxm":
        options["precision"] = "bf16"
    search: dict[str, Any] = draw.choice(
        (
            {},
            {"schedule": ["1f1b", "interleaved", "zb_h1"]},
            {"schedule": ["zb_h2", "zb_v", "1f1b"], "pp": [2, 4]},
            {"schedule": ["dualpipe", "dualpipev", "1f1b"]},
            {"zero_stage": [0, 1, 2, 3], "recompute": ["none", "full"]},
            {"context_parallel": ["ring", "all_gather", "ulysses"], "cp": [1, 2]},
            {"offload": ["optimizer", "activations"], "layers": "even"},
        )
    )
    if model in DENSE and draw.random() < 0.15:
        search = {"layerwise": True}
        problem["cluster"]["pools"][0]["nodes"] = 1
    elif draw.random() < 0.15:
        problem["cluster"]["pools"].append({"name": "other", "gpu": "a100_sxm", "nodes": 2})
        problem["cluster"]["pools"][0] |= {"gpu": "h100", "nodes": 2}
        options["precision"] = "bf16"
    elif draw.random() < 0.2:
        options["lengths"] = [{"tokens": tokens // 4, "share": 3}, {"tokens": tokens, "share": 1}]
    elif draw.random() < 0.2:
        options["task"], options["lora_rank"] = "lora", 16
    elif draw.random() < 0.2:
        options |= {"train_tokens": 1e11, "reliability": {"remote_write": "10GB/s"}}
    elif draw.random() < 0.2:
        options["batch_ramp"] = [{"global_batch": options["global_batch"] // 2, "tokens": 1e9}]
        options["train_tokens"] = 1e11
    if draw.random() < 0.2:
        options["overlap"] = ["grad_reduce", "param_gather", "p2p", "tp_comm"]
    return problem | {"objective": {"minimize": "step_time"}, "options": options | {"search": search}}


def rl_problem(seed: int, folder: Path) -> dict[str, Any]:
    """Iterations and cost of small policies: staleness, tools, tails, fusion, horizons."""
    draw = random.Random(f"rl/{seed}")
    problem = _problem("rl", seed, draw.choice(("Qwen/Qwen2.5-7B", "Qwen/Qwen3-8B")), "h800_sxm", draw)
    problem["cluster"]["pools"][0]["nodes"] = draw.choice((2, 4))
    problem["models"] = {"policy": problem["models"]["m"]}
    output = {"mean": draw.choice((800, 2500)), "cv": draw.choice((0.5, 0.9))}
    problem["workloads"] = [{"input_tokens": 512, "output_tokens": output}]
    options: dict[str, Any] = {
        "algorithm": "grpo",
        "prompts": draw.choice((32, 64)),
        "samples_per_prompt": 8,
        "minibatches": draw.choice((1, 4)),
        "max_staleness": draw.choice((0, 0, 1, 2)),
        "generation_tp": [1, 2],
    }
    options |= draw.choice(({}, {"reference": "policy"}))
    extra = draw.choice(("none", "tools", "tails", "fusion", "late", "partial", "horizon", "hybrid", "ppo"))
    if extra == "tools":
        options["tools"] = {
            "calls": 2,
            "wait": "3s",
            "observation_tokens": 100,
            "priorities": ["fifo", "longest_first"],
        }
    elif extra == "tails":
        options |= {"tail_fractions": [0.1, 0.2], "length_error": 0.3}
    elif extra == "fusion":
        options |= {"max_staleness": 0, "reference": "policy", "fusion_thresholds": [0.1, 0.3]}
    elif extra == "late":
        options |= {"max_staleness": 0, "late_thresholds": [0.1, 0.3]}
    elif extra == "partial":
        options |= {"over_sampling": 1.25, "partial_rollouts": True}
    elif extra == "horizon":
        periods = [{"iterations": 50, "output_scale": scale} for scale in (0.5, 1, 2)]
        options["horizon"] = {"periods": periods, "generation_change": "60s", "training_change": "300s"}
    elif extra == "hybrid":
        options["arrangements"] = ["colocated", "disaggregated", "hybrid"]
    elif extra == "ppo":
        problem["models"] = {"actor": {"name": "Qwen/Qwen2.5-7B"}, "critic": {"name": "Qwen/Qwen2.5-7B"}}
        problem["workloads"][0]["model"] = "actor"
        options |= {
            "algorithm": "ppo",
            "reference": "actor",
            "samples_per_prompt": 1,
            "max_staleness": 0,
            "prompts": 256,
        }
        options["fused_training"] = True
    return problem | {"objective": {"minimize": draw.choice(("iteration_time", "cost"))}, "options": options}


def experts_problem(seed: int, folder: Path) -> dict[str, Any]:
    """Layouts of 128 or 256 experts under skewed loads, by every policy."""
    draw = random.Random(f"experts/{seed}")
    numbers = np.random.default_rng(seed)
    model, layers, experts = draw.choice((("Qwen/Qwen3-30B-A3B", 48, 128), ("deepseek-ai/DeepSeek-V3", 58, 256)))
    policy = draw.choice(("static", "static", "periodic", "realtime"))
    ep = draw.choice((8, 16) if experts == 128 else (16, 32))
    loads = numbers.gamma(draw.choice((0.5, 2.0)), size=(draw.choice((1, 3)), layers, experts)) * 1000
    path = folder / f"experts-{seed}.npz"
    np.savez(path, load=loads.round())
    problem = _problem("experts", seed, model, "h800_sxm", draw)
    problem["cluster"]["pools"][0]["nodes"] = max(ep // 8, 1)
    slots = experts // ep + (draw.choice((0, 1, 2)) if ep == 32 or experts == 128 else 0)
    options: dict[str, Any] = {"ep": ep, "slots_per_rank": slots, "policy": policy, "loads": str(path)}
    if policy == "periodic":
        options["interval"] = "600s"
    if policy != "realtime" and draw.random() < 0.3 and policy == "periodic":
        options["groups"] = 8
    return problem | {"objective": {"minimize": "imbalance"}, "options": options}


DRAWN: dict[str, Callable[[int, Path], dict[str, Any]]] = {
    "serve": serve_problem,
    "train": train_problem,
    "rl": rl_problem,
    "experts": experts_problem,
}


def list_names(prefix: str = "") -> list[str]:
    """Every example that is a problem of one solve, and the seeded problems, whose names are `kind-seed`."""
    examples = [path.name for path in sorted((ROOT / "examples").glob("*.yaml")) if not path.name.startswith("sweep")]
    names = [*examples, *(f"{kind}-{seed}" for kind in DRAWN for seed in range(PROBLEMS_PER_KIND))]
    return [name for name in names if name.startswith(prefix)]


def answer(name: str) -> dict[str, Any]:
    """What `solve` and `check` say to one problem, as plain data with rounded floats and a digest of the decision."""
    from planner import Infeasible, PlannerError, Stopped
    from planner.api import solve

    with tempfile.TemporaryDirectory() as folder:
        try:
            if name.endswith(".yaml"):
                if _agentic(ROOT / "examples" / name):
                    return {"status": "another schema"}
                envelope = solve(ROOT / "examples" / name, level="static")
            else:
                kind, _, seed = name.partition("-")
                envelope = solve(DRAWN[kind](int(seed), Path(folder)), level="static")
        except Infeasible as infeasible:
            return {"status": "infeasible", "conflict": list(infeasible.conflict)}
        except Stopped as stopped:
            return {"status": "stopped", "reason": stopped.reason}
        except PlannerError as error:
            return {"status": "refused", "why": str(error).replace(folder, "FOLDER").replace(f"{ROOT}/", "")}
        return _judged(envelope, Path(folder))


def _agentic(path: Path) -> bool:
    return bool(yaml.safe_load(path.read_text()).get("schema") != "planner.problem/1")


def _judged(envelope: Any, folder: Path) -> dict[str, Any]:  # noqa: ANN401 - an envelope, whatever module holds its class
    from planner.check import check_plan
    from planner.kinds.registry import find_kind
    from planner.problem.recorded import AtHand

    decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
    plan = json.loads(envelope.model_dump_json())
    judged = check_plan(envelope, decision, base=folder, hand=AtHand((folder, ROOT / "examples")))
    findings = [(finding.rule, finding.where, finding.verdict) for finding in judged]
    certificate = plan["certificate"]
    return {
        "status": certificate["status"],
        "objective": _rounded(certificate["objective"]),
        "bound": _rounded(certificate["bound"]),
        "candidates": certificate["candidates"],
        "decision": _digest(plan["decision"]),
        "predictions": _digest(plan["predictions"]),
        "checked": len(findings),
        "failed": sorted({rule for rule, _, verdict in findings if verdict in ("failed", "unverifiable")}),
        "findings": _digest(sorted(map(list, findings))),
    }


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(below) for key, below in value.items()}
    return [_rounded(below) for below in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:  # noqa: ANN401 - JSON
    text = json.dumps(_rounded(value), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _answers(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    with ProcessPoolExecutor(PROCESSES) as pool:
        yield from zip(names, pool.map(answer, names, chunksize=1), strict=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare with what is frozen, or freeze; 1 when an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--freeze", action="store_true", help="write the answers of today")
    parser.add_argument("--only", default="", metavar="PREFIX", help="names that begin so, such as `train-`")
    given = parser.parse_args(argv)
    os.chdir(ROOT)
    started, names = time.perf_counter(), list_names(given.only)
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    differing = 0
    for name, new in _answers(names):
        if given.freeze:
            frozen[name] = new
        elif frozen.get(name) != new:
            differing += 1
            old = frozen.get(name, {})
            fields = {key: (old.get(key), new.get(key)) for key in {*old, *new} if old.get(key) != new.get(key)}
            print(f"{name}: {fields}", flush=True)
    if given.freeze:
        FROZEN.write_text(json.dumps(frozen, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    statuses = [answer["status"] for name, answer in frozen.items() if name in set(names)]
    counts = {status: statuses.count(status) for status in sorted(set(map(str, statuses)))}
    print(f"{len(names)} answers {counts}, {differing} differ, {time.perf_counter() - started:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
