"""What `estimate` and `solve` say of the same plan: training steps and memory, and what own runs tell of serving.

Random feasible training plans are priced by both. Drawn are models, GPUs, schedules, stages of a rank, ZeRO and hybrid
sharding, recomputation, context and expert parallelism, overlaps, offload and precision. What a table of runs can state
(layers laid out evenly, no offload, all ranks sharing the states) goes through a row of such a table as well. Serving:
`own_runs_equal.py`.

    python benchmarks/estimate_equals_solve.py            # 2,000 plans
    python benchmarks/estimate_equals_solve.py --quick    # 60
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from own_runs_equal import compared_runs

from planner.arrays import Floats
from planner.costs.training.config import RecomputeConfig, even_layout
from planner.costs.training.memory import memory
from planner.costs.training.step import step_time
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.estimate.training_rows import completed, config_of_row
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.choice_layouts import lay_out
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.job import TrainJob, job_of
from planner.kinds.train.space.space import Space, schedules, space_of
from planner.kinds.train.space.states import CONTEXTS, ShardShape, kept_states
from planner.kinds.train.space.tables import CostTable, sharing_of, ways_of
from planner.load.problems import resolve_document

PLANS, QUICK = 2_000, 60
WITHIN = 0.01
MODELS = (
    "meta-llama/Meta-Llama-3.1-8B", "openai/gpt-3-175b", "google/gemma-3-12b-it", "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b", "Qwen/Qwen2.5-7B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
)  # fmt: skip
GPUS = ("h100_sxm", "h800_sxm", "a100_sxm", "b200", "gb200_nvl72")
OVERLAPS = ("grad_reduce", "param_gather", "p2p", "tp_comm", "ep_comm")
SCHEDULES = ("1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev")


@dataclass(frozen=True, slots=True)
class Compared:
    """One plan with both prices, seconds and bytes of its ranks; `row_s` and `row_R` where a row can state it."""

    evaluation: Evaluation
    estimate_s: float
    estimate_R: Floats
    row_s: float | None
    row_R: Floats | None

    @property
    def error(self) -> float:
        """The larger distance from what `solve` says."""
        own = self.evaluation.step_s
        return max(abs(value / own - 1.0) for value in (self.estimate_s, self.row_s) if value is not None)

    @property
    def memory_error(self) -> float:
        """The largest distance of any rank's bytes from what `solve` says."""
        own_R = self.evaluation.memory.total_R
        priced = [bytes_R for bytes_R in (self.estimate_R, self.row_R) if bytes_R is not None]
        return max(float(np.abs(bytes_R / own_R - 1.0).max()) for bytes_R in priced)


def compared_plans(count: int, seed: int = 0) -> Iterator[Compared]:
    """`count` random feasible plans with their prices."""
    draw, number = random.Random(seed), 0
    while number < count:
        evaluation = _drawn(draw)
        if evaluation is not None:
            number += 1
            row, config = row_of(evaluation), evaluation.config
            stated = None if row is None else completed(config_of_row(row))
            yield Compared(
                evaluation,
                step_time(config).step_s,
                memory(config).total_R,
                None if stated is None else step_time(stated).step_s,
                None if stated is None else memory(stated).total_R,
            )


def _drawn(draw: random.Random) -> Evaluation | None:
    """A random plan; None where it does not fit."""
    model, gpu, nodes = draw.choice(MODELS), draw.choice(GPUS), draw.choice((1, 2, 4, 16))
    tokens, batch = draw.choice(((4096, 64), (8192, 128), (32768, 32)))
    precision = "bf16" if gpu == "a100_sxm" else draw.choice(("bf16", "fp8"))
    overlap = OVERLAPS[:4] if draw.random() < 0.5 else tuple(name for name in OVERLAPS if draw.random() < 0.6)
    shape = draw.choice(_shapes(model, gpu, nodes, tokens, batch) or (None,))
    if shape is None:
        return None
    options = {
        "global_batch": batch, "sequence_tokens": tokens, "precision": precision, "overlap": list(overlap),
        "task": draw.choice(("pretrain", "pretrain", "sft", "lora")),
        "search": {
            "schedule": list(SCHEDULES),
            "offload": draw.choice(([], ["optimizer", "activations"])),
            "zero_shards": draw.choice((["all"], ["all", 8])),
        },
    }  # fmt: skip
    choice = _choice(draw, _job(model, gpu, nodes, options), *shape)
    counts = None if choice is None else lay_out(choice)
    if choice is None or counts is None:
        return None
    if draw.random() < 0.5:  # as most tables have it
        counts = even_layout(choice.table.job.arch.num_layers, choice.pp * choice.vpp, False)
    evaluation = evaluate(choice, counts)
    return evaluation if fits(evaluation) else None


@cache
def _shapes(model: str, gpu: str, nodes: int, tokens: int, batch: int) -> tuple[tuple[ShardShape, int, int], ...]:
    """Legal (shape, pp, dp)."""
    try:
        space = space_of(_job(model, gpu, nodes, {"global_batch": batch, "sequence_tokens": tokens}))
    except (Infeasible, PlannerError):
        return ()
    return tuple(_shape(space, place) for place in range(len(space.tp)))


def _shape(space: Space, place: int) -> tuple[ShardShape, int, int]:
    columns = (space.tp, space.cp, space.ep, space.etp, space.micro_batch, space.context, space.pp, space.dp)
    tp, cp, ep, etp, micro_batch, context, pp, dp = (int(column[place]) for column in columns)
    return ShardShape(tp, cp, ep, etp, micro_batch, CONTEXTS[context]), pp, dp


def _job(model: str, gpu: str, nodes: int, options: Mapping[str, Any]) -> TrainJob:
    data = {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"policy": {"name": model}},
        "cluster": {"pools": [{"gpu": gpu, "nodes": nodes}]},
        "objective": {"minimize": "step_time"},
        "options": dict(options),
    }
    return job_of(resolve_document(given_document(data, "problem"), Path()))


def _choice(draw: random.Random, job: TrainJob, shape: ShardShape, pp: int, dp: int) -> PlanChoice | None:
    """Schedule, sharding, offload and recomputation of this shape, at random; None where no schedule suits it."""
    batches = job.options.global_batch // (dp * shape.micro_batch)
    runs = list(schedules(job, pp, batches, (1, 2, 3, 4)))
    if not runs:
        return None
    name = draw.choice(sorted({schedule for schedule, _ in runs}))
    schedule, vpp = draw.choice([run for run in runs if run[0] == name])
    table = CostTable(job, shape)
    zero_stage, shards, offload = draw.choice(list(kept_states(job, shape, dp, pp)))
    plain = [(table.mode(RecomputeConfig()), 0), (table.mode(RecomputeConfig("full")), 0)]
    mode, whole = draw.choice(plain if draw.random() < 0.6 else ways_of(table, pp * vpp, vpp).modes)
    sharing = sharing_of(table, dp, zero_stage, offload, shards)
    return PlanChoice(table, sharing, pp, dp, schedule, vpp, zero_stage, offload, mode, whole, shards)


def row_of(evaluation: Evaluation) -> dict[str, str] | None:
    """The row of a table that states this plan; None where its columns cannot."""
    config, options = evaluation.config, evaluation.choice.table.job.options
    stages, recompute = config.pp * config.vpp, config.recompute
    unstated = (
        config.offload,
        config.zero_ranks,
        recompute.granularity == "selective" or recompute.num_layers,
        config.zero_stage == 2 and config.pp > 1,  # a pipeline that scatters gradients behind every micro-batch
        config.arch.num_layers % stages,
    )
    if any(unstated) or even_layout(config.arch.num_layers, stages, False) != evaluation.counts_S:
        return None
    switched = set(OVERLAPS if config.schedule.startswith("dualpipe") else OVERLAPS[:4])
    if set(options.overlap) != switched or config.context_parallel != "ring":
        return None
    model = {"deepseek-ai/DeepSeek-V3": "deepseek-v3"}.get(config.arch.name, config.arch.name)
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
    kinds = {"zb_h1": "zb-h1", "zb_h2": "zb-h2", "zb_v": "zb-v"}
    return {
        "id": "plan", "model": model, "gpu": config.machine.node.name, "num_gpus": str(config.num_gpus),
        "seq": str(config.sequence_tokens), "gbs": str(config.global_batch), "mbs": str(config.micro_batch),
        "zero": f"ZeRO-{config.zero_stage}", "precision": config.precision, "task": config.task,
        "schedule": kinds.get(config.schedule, config.schedule), "recompute": config.recompute.granularity,
        "reduce_gradients": "fp32" if config.framework.reduce_bytes == 4.0 else "bf16",
        **{name: str(getattr(config, name)) for name in names},
    }  # fmt: skip


def main() -> int:
    """Print how far apart both are; 1 where any plan is further than `WITHIN`."""
    count = QUICK if "--quick" in sys.argv[1:] else PLANS
    plans = list(compared_plans(count))
    errors, of_memory = (np.array([getattr(plan, name) for plan in plans]) for name in ("error", "memory_error"))
    kinds = Counter(plan.evaluation.choice.schedule for plan in plans)
    rows = sum(plan.row_s is not None for plan in plans)
    print(f"{count} feasible plans ({rows} of them through a row of a table): {dict(sorted(kinds.items()))}")
    for what, apart in (("step", errors), ("memory", of_memory)):
        mean, tail, most = apart.mean(), np.quantile(apart, 0.99), apart.max()
        print(f"|estimate / solve - 1|, {what}: mean {mean:.1e}, 99th percentile {tail:.1e}, most {most:.1e}")
    for plan in sorted(plans, key=lambda plan: -max(plan.error, plan.memory_error))[:5]:
        if max(plan.error, plan.memory_error) > WITHIN:
            solved = plan.evaluation
            print(f"  {plan.estimate_s:.4g} s, row {plan.row_s}, solve {solved.step_s:.4g} s: {solved.config}")
            print(f"    {plan.estimate_R.tolist()} bytes, row {plan.row_R}, solve {solved.memory.total_R.tolist()}")
    return int(max(errors.max(), of_memory.max(), _serving()) > WITHIN)


def _serving() -> float:
    """Print how far apart both take own runs of serving; the most."""
    told = list(compared_runs())
    worst, many = max(told, key=lambda each: each.error), sum(each.instances > 1 for each in told)
    print(f"{len(told)} serving plans ({many} with several instances that decode), own runs near them:")
    print(f"|estimate / solve - 1|: most {worst.error:.1e}, of {worst.title}")
    return worst.error


if __name__ == "__main__":
    raise SystemExit(main())
