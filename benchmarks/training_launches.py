"""Generated training problems, solved, checked and emitted: what the files start, field by field, beside the plan.

Each problem names its engine and draws model, GPUs, batch, precision and what else the engine has: overlap, dispatcher,
graphs, offloads, documents, adapters, capacities. A plan that its own engine's target refuses counts as a miss, since
the space holds what is launched. Every other target either refuses with a reason or says what the step takes there. The
trivial answer is the engine's defaults: how many of the fields it would have right.

    python benchmarks/training_launches.py [--quick] [--seed N] [--problems N]
"""

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "emit"))

from launched_fields import Fields, differences, launched, planned
from launched_problems import numbered, print_totals

from planner.api import solve
from planner.check import check_plan
from planner.emit.registry import emit
from planner.engines.training import TRAINING_ENGINES
from planner.errors import Infeasible, PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.options import TrainOptions
from planner.models.library import find_model
from planner.plan.schema import Envelope

DENSE = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-14B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-32B")
SPARSE = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "mistralai/Mixtral-8x7B-v0.1")
TITAN = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-32B",
)
LARGE = {"meta-llama/Llama-3.1-70B": 4, "Qwen/Qwen3-235B-A22B": 16, "deepseek-ai/DeepSeek-V3": 32, "Qwen/Qwen3-32B": 2,
         "mistralai/Mixtral-8x7B-v0.1": 4}  # fmt: skip
GPUS = ("h100", "h100", "h200", "a100", "b200", "gb200_nvl72", "h800")
PRECISIONS = {"a100": ("bf16",), "b200": ("bf16", "fp8", "mxfp8"), "gb200_nvl72": ("bf16", "mxfp8", "nvfp4")}
DEFAULTS: Fields = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "moe_tp", "vpp", "micro_batch", "instances"), 1),
    **dict.fromkeys(("sequence_parallel", "padded", "tp_comm", "ep_comm", "optimizer_on_host", "in_network"), False),
    **dict.fromkeys(("loads_weights", "grad_reduce", "param_gather"), False),
    **dict.fromkeys(("save_interval", "moved_layers", "adapters", "recompute_layers"), 0),
    "stages": (),
    "recompute": ("none", ()),
    "precision": "bf16",
    "optimizer": "adamw",
    "cuda_graphs": (),
    "p2p": True,
    "zero_stage": 0,
    "context_parallel": None,
    "dispatcher": "alltoall",
    "window": None,
}
"""What the engines do where nothing is said; sizes of the job have no default."""


def drawn(engine: str, draw: random.Random) -> dict[str, Any]:
    """A problem of this engine."""
    known = TRAINING_ENGINES[engine]
    sparse = known.most_ep != 1 and draw.random() < 0.45
    model = draw.choice(TITAN if engine == "torchtitan" else SPARSE if sparse else DENSE)
    gpu = draw.choice(GPUS)
    nodes = LARGE.get(model, 1) * draw.choice((1, 1, 2, 3, 4)) * (2 if gpu.startswith("gb200") else 1)
    task = draw.choice(known.tasks)
    tokens = draw.choice((2048, 4096, 8192, 8192, 32768))
    options: dict[str, Any] = {
        "task": task,
        "global_batch": 16 * draw.choice((4, 6, 8, 16, 32)),
        "sequence_tokens": tokens,
        "precision": draw.choice([each for each in PRECISIONS.get(gpu, ("bf16", "fp8", "fp8_block"))
                                  if each in known.precisions]),
        **_beside(engine, task, model in SPARSE, tokens, draw),
    }  # fmt: skip
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"policy": {"name": model}},
        "cluster": {"pools": [{"gpu": gpu, "nodes": nodes}]},
        "objective": {"minimize": "step_time"},
        "engine": {"name": engine},
        "options": options,
    }


def _beside(engine: str, task: str, sparse: bool, tokens: int, draw: random.Random) -> dict[str, Any]:
    """What a problem asks for beside the job, each seldom."""
    known, options, search = TRAINING_ENGINES[engine], dict[str, Any](), dict[str, Any]()

    def seldom(share: float = 0.2) -> bool:
        return draw.random() < share

    if engine.startswith("megatron"):
        options = _of_megatron(engine, task, sparse, draw)
    if known.packs and task != "pretrain" and seldom(0.4):
        options["documents"] = [{"tokens": tokens // 4, "share": 3}, {"tokens": tokens, "share": 1}]
    if task == "pretrain" and seldom():
        options["reliability"] = {"remote_write": "20GB/s"}
    if options.get("optimizer") != "muon" and seldom():
        allowed = [name for name in known.offloads if name == "optimizer" or not options.get("cuda_graphs")]
        search["offload"] = [draw.choice(allowed)]
    if seldom():
        in_parts = options.get("cuda_graphs") or "ep_comm" in options.get("overlap", ())
        search["recompute"] = "selective" if in_parts else draw.choice(("full", "selective"))
    return {**options, **({"search": search} if search else {})}


def _of_megatron(engine: str, task: str, sparse: bool, draw: random.Random) -> dict[str, Any]:
    """What Megatron-Core's launchers have beside degrees."""
    switches = ["grad_reduce", "param_gather", "p2p", "tp_comm", "ep_comm"]
    shares = (0.8, 1.0, 1.0, 0.4, 0.4 * sparse)
    options: dict[str, Any] = {
        "overlap": [name for name, share in zip(switches, shares, strict=True) if draw.random() < share]
    }
    rare: tuple[tuple[float, str, object], ...] = (
        (0.3 * sparse, "dispatcher", "alltoall"),
        (0.2 * sparse, "experts", {"fullest": 1.5, "capacity": 1.25}),
        (0.3 * (task == "pretrain" and engine == "megatron-lm"), "optimizer", "muon"),
        (0.2 * (task == "pretrain"), "cuda_graphs", True),
        (0.2, "in_network_reduction", True),
        (0.2, "reduce_gradients", "bf16"),
    )
    for share, name, value in rare:
        if draw.random() < share:
            options[name] = value
    return options


def outcome(problem: dict[str, Any], counts: Counter[str], fields: Counter[str]) -> str:
    """One problem from end to end; what became of it, in words."""
    engine = problem["engine"]["name"]
    try:
        plan = solve(problem)
    except Infeasible as none:
        counts["nothing fits"] += 1
        return f"nothing fits: {', '.join(map(str, none.conflict))}"
    except PlannerError as error:
        counts["refused as a problem"] += 1
        return f"refused as a problem: {error.what} ({error.where})"
    decision = TrainDecision.model_validate(plan.decision)
    shape = decision.degrees
    text = (f"tp{shape.tp} pp{shape.pp}x{shape.vpp} cp{shape.cp} dp{shape.dp} ep{shape.ep} mb{decision.micro_batch} "
            f"ZeRO {decision.zero_stage}, {decision.stage_runs[0].recompute.granularity}")  # fmt: skip
    broken = [finding.what for finding in check_plan(plan, decision) if not finding.ok and not finding.skipped]
    try:
        files = emit(plan, decision, engine)
    except PlannerError as error:
        counts["not launched"] += 1
        return f"{text}; NOT LAUNCHED: {error.what}"
    options = TrainOptions.model_validate(plan.inputs["options"])
    arch = find_model(problem["models"]["policy"]["name"])
    apart = differences(engine, files, decision, options, arch)
    wanted = planned(decision, options, arch)
    read = [name for name in launched(engine, files) if name in wanted]
    counts["fields"] += len(read)
    counts["as planned"] += len(read) - len(apart)
    counts["as defaults"] += sum(DEFAULTS.get(name, "") == wanted[name] for name in read)
    counts["launched otherwise" if apart else "launched as planned"] += 1
    counts["checks broken"] += bool(broken)
    fields.update(apart)
    told = (f"{name} {pair}" for name, pair in apart.items())
    return "; ".join([text, *_elsewhere(plan, decision, engine, counts), *told, *(f"CHECK {what}" for what in broken)])


def _elsewhere(plan: Envelope, decision: TrainDecision, engine: str, counts: Counter[str]) -> list[str]:
    """Other targets that say nothing of what they cost."""
    silent = []
    for other in TRAINING_ENGINES:
        if other == engine:
            continue
        try:
            text = "".join(emit(plan, decision, other).values())
        except PlannerError:
            counts["refused elsewhere"] += 1
            continue
        counts["emitted elsewhere"] += 1
        if f"Planned for {engine}" not in text:
            silent.append(f"SILENT {other}")
    counts["silent elsewhere"] += len(silent)
    return silent


def main() -> int:
    """Prints a line a problem and the totals; 1 where a plan is not launched as it is."""
    number, draw = numbered(__doc__)
    counts, fields = Counter[str](), Counter[str]()
    for index in range(number):
        engine = list(TRAINING_ENGINES)[index % len(TRAINING_ENGINES)]
        problem = drawn(engine, draw)
        pool, model = problem["cluster"]["pools"][0], problem["models"]["policy"]["name"].partition("/")[2]
        head = f"{engine:16}{model:18}{pool['nodes']:>4} x {pool['gpu']:12}"
        print(f"{index:3} {head} {problem['options']['precision']:10}{outcome(problem, counts, fields)}", flush=True)
    print_totals(counts, fields, "engines'")
    return int(counts["as planned"] < counts["fields"] or counts["not launched"] + counts["checks broken"] > 0)


if __name__ == "__main__":
    sys.exit(main())
