"""Ten public training recipes: whether each is in the space, its price against what was published, and our plan's.

planner/alternatives/recipes/training.csv has the recipes and sources (Megatron-Bridge, NeMo, torchtitan; 8B to 671B,
H100 to GB200). Each is a problem that names its engine, solved twice: with what the recipe states fixed, and free. The
recommended plan lies in a measured region where some measured run of the same kind of model on GPUs of that generation
has its ZeRO stage, and others as many stages and context ranks, as large micro-batches and as few expert ranks. What
runs beside computing, and dispatchers, are those of Megatron-Bridge's scripts/performance. All rows are among those
that rates are fitted to; benchmarks/training.py prices each by a fit without its family and code.

    .venv/bin/python benchmarks/training_recipes.py
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from inputs import SHARED, exit_code, required
from sealed_groups import rows_of

from planner.api import solve
from planner.costs.training.config import TrainingConfig, machine_of
from planner.errors import PlannerError
from planner.estimate.training_rows import config_of_row
from planner.hardware.library import find_node
from planner.kinds.train.decision import TrainDecision
from planner.models.architecture import Architecture, MoeFfn
from planner.models.library import find_model
from planner.plan.schema import Envelope

MEASURED = SHARED / "training" / "measured.csv"
RECIPES = Path(__file__).parent.parent / "planner" / "alternatives" / "recipes" / "training.csv"
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "zero_stage")
PRICE, LOSS = 0.15, 1.03  # how far a price may be off, and how much slower a plan may be than its recipe
Row = dict[str, str]


FUSED = {"megatron_graphs": {"fused_experts": True}}
"""What releases that capture whole steps of models with experts run within their products, and no launcher here has."""


@dataclass(frozen=True)
class Outcome:
    """One recipe; seconds of a step."""

    row: Row
    refused: str  # why it is not in the space; empty where it is
    priced_s: float = 0.0
    mfu: float = 0.0  # as priced
    best: Envelope | None = None

    @property
    def published_s(self) -> float:
        return float(self.row["step_time_s"])

    @property
    def published_mfu(self) -> float:
        return self.mfu * self.priced_s / self.published_s

    @property
    def off(self) -> float:
        return self.priced_s / self.published_s - 1.0

    @property
    def ratio(self) -> float:
        """Of the recommended plan's step to the recipe's, both as priced."""
        assert self.best is not None
        return value(self.best, "step_time_s") / self.priced_s


def problem(row: Row, *, fixed: bool) -> dict[str, Any]:
    """The recipe as a problem, its decisions fixed or free."""
    stated: dict[str, Any] = {name: int(row[name]) for name in DEGREES if row[name]}
    stated |= {name: row[name] for name in ("schedule", "recompute") if row[name]}
    switches = ["grad_reduce", "param_gather", "p2p", "tp_comm", *row["beside"].split()]
    tensors = {"overlap": switches} if row["engine"] != "torchtitan" else {}
    options: dict[str, Any] = {
        "global_batch": int(row["global_batch"]),
        "sequence_tokens": int(row["sequence_tokens"]),
        "precision": row["precision"],
        **tensors,
        **({"dispatcher": row["dispatcher"]} if row["dispatcher"] else {}),
        **({"code": {"era": row["era"]} | FUSED.get(row["era"], {})} if row["era"] else {}),
        **({"search": stated, "memory_utilisation": 1.0} if fixed else {}),
    }
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "name": row["id"],
        "models": {"policy": {"name": row["model"]}},
        "cluster": {"pools": [{"gpu": row["gpu"], "gpus": int(row["num_gpus"])}]},
        "objective": {"minimize": "step_time"},
        **({"engine": {"name": row["engine"]}} if row["engine"] else {}),
        "options": options,
    }


def value(plan: Envelope, metric: str) -> float:
    return next(each.value for each in plan.predictions if each.metric == metric)


def outcome(row: Row) -> Outcome:
    """The recipe priced, and the plan that `solve` recommends."""
    try:
        made = solve(problem(row, fixed=True))
    except PlannerError as error:
        return Outcome(row, error.what)
    best = solve(problem(row, fixed=False))
    return Outcome(row, "", value(made, "step_time_s"), value(made, "mfu"), best)


@cache
def measured() -> tuple[TrainingConfig, ...]:
    """What the runs of measured.csv state; those that cannot be read are left out."""
    return tuple(_measured())


def _measured() -> Iterator[TrainingConfig]:
    for row in rows_of(required(MEASURED)):
        try:
            yield config_of_row(row).config
        except PlannerError:
            continue


def in_region(row: Row, plan: Envelope) -> bool:
    """Whether measured runs surround the plan."""
    decision, sparse = TrainDecision.model_validate(plan.decision), has_experts(find_model(row["model"]))
    generation, shape = machine_of(find_node(row["gpu"])).generation, decision.degrees
    near = [run for run in measured() if run.machine.generation == generation and has_experts(run.arch) == sparse]
    return (
        any(run.zero_stage == decision.zero_stage and (run.pp > 1) == (shape.pp > 1) for run in near)
        and any(run.micro_batch >= decision.micro_batch for run in near)
        and any(run.pp >= shape.pp for run in near)
        and any(run.cp >= shape.cp for run in near)
        and any(run.ep <= shape.ep for run in near)
        and any(run.schedule == decision.schedule for run in near)
    )


def has_experts(arch: Architecture) -> bool:
    return any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)


def plan_text(plan: Envelope) -> str:
    decision = TrainDecision.model_validate(plan.decision)
    shape = decision.degrees
    experts = f" ep{shape.ep}" if shape.ep > 1 else ""
    context = f" cp{shape.cp}" if shape.cp > 1 else ""
    return (
        f"tp{shape.tp} pp{shape.pp} x {shape.vpp}{context} dp{shape.dp}{experts} mb{decision.micro_batch} "
        f"ZeRO {decision.zero_stage}"
    )


def main() -> int:
    """Prints a line a recipe; 1 where a target is missed."""
    required(MEASURED)
    outcomes, missed = [], []
    print(f"{'recipe':46}{'published':>11}{'priced':>9}{'off':>8}{'plan/recipe':>13}  measured region, plan")
    for row in rows_of(RECIPES):
        made = outcome(row)
        name = f"{row['release']}, {row['model'].partition('/')[2]}, {row['num_gpus']} {row['gpu']}"
        if made.refused or made.best is None:
            print(f"{name:46.46}{made.published_s:>9.2f} s  not in the space: {made.refused}")
            missed.append(f"`{row['id']}` is not in the space")
            continue
        outcomes.append(made)
        near = in_region(row, made.best)
        print(
            f"{name:46.46}{made.published_s:>9.2f} s{made.priced_s:>7.2f} s{made.off:>+8.1%}"
            f"{made.ratio:>13.3f}  {'yes' if near else 'no'}, {plan_text(made.best)}",
            flush=True,
        )
        missed += [f"the price of `{row['id']}` is {made.off:+.1%} off"] * (abs(made.off) > PRICE)
        missed += [f"the plan of `{row['id']}` is slower than its recipe"] * (made.ratio > LOSS)
        missed += [f"`{row['id']}` has another plan where nothing is measured"] * (made.ratio < 1 / LOSS and not near)
    middle = median(made.published_mfu for made in outcomes)
    trivial = mean(abs(made.published_mfu / middle - 1.0) for made in outcomes)
    print(
        f"{len(outcomes)} in the space; mean error {mean(abs(made.off) for made in outcomes):.1%} of rows that were "
        "fitted to (benchmarks/training.py leaves the family of each out); "
        f"one utilisation for all ({middle:.1%}): {trivial:.1%}"
    )
    print("missed: " + "; ".join(missed) if missed else "all targets met")
    return exit_code(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
