"""Search for training plans: user CPU of whole `planner solve` processes, the plan, its gap, and what a rule answers.

The rule is "least TP, then least PP, then the largest micro-batch that fits", priced by the same costs: 1F1B, ZeRO 1,
no context parallelism, experts over a node, nothing computed again unless nothing fits otherwise. Plans are the fastest
by the costs (`choice: fastest`); one that is preferred where runs were measured takes a search more. Then two pools of
different GPUs with what one of them alone does, and strategies mixed by layer on 64 GPUs.

    python benchmarks/training_search.py
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from processes import user_cpu_s

EXAMPLES = Path(__file__).parent.parent / "examples"
SCHEDULES = "options.search.schedule=[1f1b,interleaved,zb_h1,zb_h2,zb_v,dualpipe,dualpipev]"
FASTEST = "options.choice=fastest"
CONTEXTS = "options.search.cp=[1,2,4,8,16,32,64]"
TENSOR, PIPELINE, MICRO_BATCHES = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem with its overrides, and the user CPU that a solve of it may take."""

    name: str
    problem: str
    overrides: tuple[str, ...]
    limit_s: float


CASES = (
    Case(
        "GPT-3 175B, 4,096 A100",
        "train-gpt3-175b-megascale.yaml",
        ("cluster.pools.0.nodes=512", "options.global_batch=1536", SCHEDULES),
        5.0,
    ),
    Case(
        "the same, every cp",
        "train-gpt3-175b-megascale.yaml",
        ("cluster.pools.0.nodes=512", "options.global_batch=1536", SCHEDULES, CONTEXTS),
        5.0,
    ),
    Case("Llama-3.1-405B, 16,384 H100", "train-llama3-405b-h100.yaml", (SCHEDULES,), 10.0),
    Case("the same, every cp", "train-llama3-405b-h100.yaml", (SCHEDULES, CONTEXTS), 10.0),
    Case("DeepSeek-V3, 2,048 H800", "train-deepseek-v3-h800.yaml", (SCHEDULES,), 10.0),
    Case("the same, every cp", "train-deepseek-v3-h800.yaml", (SCHEDULES, CONTEXTS), 10.0),
)


def solve_cpu_s(case: Case, plan: Path) -> float:
    """User CPU seconds of one `planner solve` of a case."""
    settings = [part for text in (*case.overrides, FASTEST) for part in ("--set", text)]
    return user_cpu_s("solve", EXAMPLES / case.problem, "-o", plan, *settings)


def rule_of_thumb(case: Case) -> float | None:
    """Step time of the rule's plan; None where the rule finds none that fits."""
    from planner import load_problem
    from planner.errors import Infeasible
    from planner.kinds.train.job import job_of
    from planner.kinds.train.search.one_pool import OnePoolSearch
    from planner.progress import Limits

    for fixed in _rules(case):
        resolved = load_problem(EXAMPLES / case.problem, overrides=[*case.overrides, *fixed])
        try:
            result = OnePoolSearch(job_of(resolved), Limits()).run()
        except Infeasible:
            continue
        if result.best is not None:
            return result.best.step_s
    return None


def _rules(case: Case) -> Iterator[Sequence[str]]:
    """Overrides that fix one plan after another in the order of the rule."""
    experts = ["options.search.ep=8"] if "deepseek" in case.problem else []
    sizes = {"train-llama3-405b-h100.yaml": 16384, "train-deepseek-v3-h800.yaml": 2048}
    gpus = 4096 if "cluster.pools.0.nodes=512" in case.overrides else sizes.get(case.problem, 256)
    common = ["options.search.cp=1", "options.search.schedule=1f1b", "options.search.zero_stage=1", *experts]
    for recompute, tp, pp, size in product(("none", "selective", "full"), TENSOR, PIPELINE, MICRO_BATCHES):
        degrees = {"tp": tp, "pp": pp, "micro_batch": size, "dp": gpus // (tp * pp), "recompute": recompute}
        yield [*common, *(f"options.search.{name}={value}" for name, value in degrees.items())]


def search_table() -> None:
    """A row for each case."""
    from planner.plan.reader import read_plan

    print(f"{'problem':28} {'user CPU':>10} {'limit':>6} {'step':>8} {'gap':>7} {'rule':>8} {'plan'}")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            path = Path(folder) / "plan.json"
            took_s = solve_cpu_s(case, path)
            plan = read_plan(path)
            certificate: dict[str, Any] = dict(plan.certificate)
            step_s = certificate["objective"]["value"]
            ruled_s = rule_of_thumb(case)
            shape = plan.roles[0].parallelism
            what = f"tp{shape.tp} cp{shape.cp} pp{shape.pp}x{shape.vpp} dp{shape.dp} ep{shape.ep}"
            what += (
                f" micro-batch {plan.extra['micro_batch']}, {plan.extra['schedule']}, ZeRO {plan.extra['zero_stage']}"
            )
            rule = "-" if ruled_s is None else f"{ruled_s:.3g} s"
            print(
                f"{case.name:28} {took_s:8.2f} s {case.limit_s:4.0f} s {step_s:6.3g} s {certificate['gap']:7.1%}"
                f" {rule:>8} {what}; {certificate['candidates']:,} candidates"
            )


def pools_table() -> None:
    """Two pools of different GPUs: the plan over both, and the best on one of them, the trivial answer."""
    from planner.plan.reader import read_plan

    print("\nLlama-3.1-70B, 128 H100 and 256 A100: uses of two pools")
    with tempfile.TemporaryDirectory() as folder:
        for use in ("[one,stages,replicas]", "one", "stages", "replicas"):
            case = Case(use, "train-llama3-70b-h100-a100.yaml", (f"options.search.pools={use}",), 10.0)
            path = Path(folder) / "plan.json"
            took_s = solve_cpu_s(case, path)
            plan = read_plan(path)
            certificate: dict[str, Any] = dict(plan.certificate)
            pools = ", ".join(f"{r.pool} pp{r.parallelism.pp} dp{r.parallelism.dp}" for r in plan.roles)
            print(
                f"  {use:24} {took_s:5.2f} s CPU, step {certificate['objective']['value']:.3g} s,"
                f" gap {certificate['gap']:.1%}, {pools}; {certificate['candidates']:,} candidates"
            )


def layer_table() -> None:
    """Strategies by layer of a model of 28 layers on 64 GPUs, with less and less memory."""
    from planner.documents.read import given_document
    from planner.kinds.train.job import job_of
    from planner.kinds.train.search.layerwise import plan_layers
    from planner.kinds.train.search.one_pool import OnePoolSearch
    from planner.load.problems import resolve_document
    from planner.progress import Limits

    print("\nQwen2.5-7B, 28 layers, 64 H100: strategies by layer (limit 1 s of user CPU)")
    for share in (0.95, 0.3, 0.2, 0.15):
        data = {
            "schema": "planner.problem/1",
            "kind": "train",
            "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
            "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 8}]},
            "objective": {"minimize": "step_time"},
            "options": {"global_batch": 256, "sequence_tokens": 8192, "memory_utilisation": share},
        }
        job = job_of(resolve_document(given_document(data, "problem"), Path()))
        uniform_s = OnePoolSearch(job, Limits()).run().value
        started_s = time.process_time()
        mixes = plan_layers(job)
        took_s = time.process_time() - started_s
        uniform = "none fits" if uniform_s is None else f"{uniform_s:.3f} s"
        strategies = len(set(mixes.best.strategies)) if mixes.best else 0
        print(
            f"  {share:4.0%} of memory: {took_s:5.2f} s CPU, step {mixes.value:.3f} s with {strategies} strategies,"
            f" gap {1.0 - mixes.bound / mixes.value:.2%}, {uniform} with one for all layers"
        )


if __name__ == "__main__":
    search_table()
    pools_table()
    layer_table()
