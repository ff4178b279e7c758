"""A training run as the problem that it answers, every decision that it states fixed, and the plan that it is."""

from typing import TYPE_CHECKING, Any

from planner.engines.training import TRAINING_ENGINES, usual_engine
from planner.errors import PlannerError
from planner.importing.formats.megatron import ALL_GATHER, told_dropout
from planner.importing.plans.models import heads_for_later_tokens, model_entry
from planner.importing.plans.question import Question
from planner.importing.plans.serving import cluster_of, resolved_problem
from planner.importing.records import UNPRICED, Reading

if TYPE_CHECKING:
    from planner.plan.schema import Envelope

DEGREES = ("tp", "pp", "cp", "ep", "dp", "vpp")
DECISIONS = ("micro_batch", "zero_stage", "zero_shards", "recompute", "recompute_modules", "recompute_layers",
             "context_parallel", "moe_tp", "sequence_parallel", "layers", "schedule")  # fmt: skip
OPTIONS = ("overlap", "reduce_gradients", "dispatcher", "optimizer", "dropout", "experts", "in_network_reduction",
           "cuda_graphs", "task", "lora_rank")  # fmt: skip
PRECISIONS = ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4")


def training_problem(reading: Reading, question: Question) -> dict[str, Any]:
    """The problem as a document, its decisions fixed. Raises PlannerError for what nobody said."""
    fields = reading.fields
    batch, sequence = (_asked(fields, question, name) for name in ("global_batch", "sequence"))
    precision = reading.beside.get("format") or fields["precision"]
    options: dict[str, Any] = {"global_batch": batch, "sequence_tokens": sequence, "search": decisions(reading)}
    if precision in PRECISIONS:
        options["precision"] = precision
    options |= {name: reading.beside[name] for name in OPTIONS if reading.beside.get(name) is not None}
    if options.get("dispatcher") == ALL_GATHER:
        options["dispatcher"] = "alltoall"
    model, heads = model_entry(stated_model(reading), question.model), reading.beside.get("mtp")
    if heads is not None and heads_for_later_tokens(model):
        options["mtp"] = heads > 0
    if reading.beside.get("offload_optimizer"):
        options["search"]["offload"] = ["optimizer"]
    engine = {"engine": {"name": fields["engine"]}} if fields["engine"] in TRAINING_ENGINES else {}
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "name": "imported",
        "models": {"policy": model},
        "cluster": {"pools": [_whole_cluster(reading, question)]},
        "objective": {"minimize": "step_time"},
        **question.costs,
        "options": options,
        **engine,
    }


def stated_model(reading: Reading) -> object:
    """The model as the artifact has it: a name, or all sizes that it states."""
    stated = reading.fields["model"]
    return {**stated, **reading.beside.get("sizes", {})} if isinstance(stated, dict) else stated


def training_notes(reading: Reading, question: Question) -> list[str]:
    """What the plan of a run takes for what the artifact has."""
    notes, beside = [], reading.beside
    stated, precision = stated_model(reading), reading.fields["precision"]
    if question.model is None and isinstance(stated, dict):
        notes.append(f"{model_entry(stated, None)['name']} stands for the sizes that the artifact states")
    if reading.fields["engine"] not in TRAINING_ENGINES:
        usual = usual_engine(beside.get("task") or "pretrain", towers=False)
        notes.append(f"priced as {usual.name} would run it: {reading.fields['engine']} has no costs of its own")
    if precision == "fp16":
        notes.append("fp16 is priced as bf16")
    if beside.get("dispatcher") == ALL_GATHER:
        notes.append("tokens that the artifact gathers for their experts are priced as sent all to all")
    if beside.get("mtp"):
        known = heads_for_later_tokens(model_entry(stated, question.model))
        if known != beside["mtp"]:
            notes.append(f"{beside['mtp']} heads for further tokens (MTP) are priced as the {known} of the model")
    if beside.get("dropout"):
        kept = told_dropout(beside["dropout"])
        notes.append(f"{kept} is kept, by default too: masks are priced, and not the time that they take")
    if "layers" in beside and beside["layers"] is None:
        notes.append("layers of the stages are laid out anew")
    if "context_parallel" in beside and beside["context_parallel"] is None and (reading.fields["cp"] or 1) > 1:
        notes.append("how context-parallel ranks exchange keys and values is chosen anew")
    if "cuda_graphs" in beside and beside["cuda_graphs"] is None:
        notes.append("what is captured as CUDA graphs is chosen anew")
    unpriced = [*(f"`{name}` computed again" for name in beside.get("kept_after_all", ())), *beside.get(UNPRICED, ())]
    if unpriced:
        notes.append(f"not priced, and not in the plan: {', '.join(unpriced)}")
    return notes


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
