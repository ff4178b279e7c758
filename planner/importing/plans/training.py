"""A training run as the problem that it answers, every decision that it states fixed, and the plan that it is."""

from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.importing.plans.models import model_entry
from planner.importing.plans.question import Question
from planner.importing.plans.serving import cluster_of, resolved_problem
from planner.importing.records import Reading

if TYPE_CHECKING:
    from planner.plan.schema import Envelope

ENGINES = ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed")
DEGREES = ("tp", "pp", "cp", "ep", "dp", "vpp")
DECISIONS = ("micro_batch", "zero_stage", "recompute", "sequence_parallel")


def training_problem(reading: Reading, question: Question) -> dict[str, Any]:
    """The problem as a document, its decisions fixed. Raises PlannerError for what nobody said."""
    fields = reading.fields
    batch, sequence = (_asked(fields, question, name) for name in ("global_batch", "sequence"))
    precision = fields["precision"]
    options: dict[str, Any] = {"global_batch": batch, "sequence_tokens": sequence, "search": decisions(reading)}
    if precision in ("bf16", "fp8"):
        options["precision"] = precision
    if reading.beside.get("offload_optimizer"):
        options["search"]["offload"] = ["optimizer"]
    engine = {"engine": {"name": fields["engine"]}} if fields["engine"] in ENGINES else {}
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "name": "imported",
        "models": {"policy": model_entry(fields["model"], question.model)},
        "cluster": {"pools": [_whole_cluster(reading, question)]},
        "objective": {"minimize": "step_time"},
        **question.costs,
        "options": options,
        **engine,
    }


def _asked(fields: Any, question: Question, name: str) -> int:  # noqa: ANN401 - plain data
    value = fields[name] if fields[name] is not None else question.workload.get(name)
    if not isinstance(value, int):
        raise PlannerError(
            f"the artifact does not say its {name.replace('_', ' ')}",
            where=name,
            hint=f"write `--workload {name}=1024`",
        )
    return value


def _whole_cluster(reading: Reading, question: Question) -> dict[str, Any]:
    pool = cluster_of(reading, question)
    gpus = reading.fields.get("gpus")
    if gpus and "nodes" in pool and "gpus_per_node" not in pool and not question.cluster.get("nodes"):
        pool.pop("nodes")
        pool["gpus"] = gpus
    return pool


def decisions(reading: Reading) -> dict[str, Any]:
    """What the artifact decides, by the names of `options.search`; what it leaves to its launcher stays free."""
    known = {name: reading.fields[name] for name in DEGREES if isinstance(reading.fields.get(name), int)}
    if known.get("vpp") is None and reading.fields.get("engine") == "megatron-lm":
        known["vpp"] = 1
    known |= {name: reading.beside[name] for name in DECISIONS if reading.beside.get(name) is not None}
    if isinstance(reading.fields.get("micro_batch"), int):
        known["micro_batch"] = reading.fields["micro_batch"]
    return known


def plan_of_training(reading: Reading, question: Question) -> "Envelope":
    """The plan that the artifact is; raises Infeasible where it does not fit, PlannerError for what is open."""
    from planner.api import solve

    return solve(resolved_problem(training_problem(reading, question)))
