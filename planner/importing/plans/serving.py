"""A serving deployment as the problem that it answers and the plan that it is.

The problem pins every axis to what runs; the plan holds as many sequences as caches have room for, and its figures are
those of steady state at the stated load. Nothing is proven of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.costs.rates.calibration import load_calibration
from planner.errors import PlannerError
from planner.importing.plans.question import Question
from planner.importing.plans.shapes import EngineRole, usable_share, with_batch
from planner.importing.plans.tiers import cache_of, tier_notes
from planner.importing.plans.unpriced import KV_FORMATS, loaded_weights, require_prefixes_kept, unpriced_notes
from planner.importing.records import AHEAD, RELEASE, Reading

if TYPE_CHECKING:
    from planner.kinds.serve.deployed.instances import Instances
    from planner.kinds.serve.steady.search import ServeSetting
    from planner.plan.schema import Envelope
    from planner.problem.resolve import Resolved


@dataclass(frozen=True, slots=True)
class ServingCase:
    """A deployment with its problem: roles, the instances that they are, and the engine's defaults they rest on."""

    reading: Reading
    document: Mapping[str, Any]  # of the problem
    resolved: "Resolved"
    roles: tuple[EngineRole, ...]
    instances: tuple["Instances", ...]
    notes: tuple[str, ...]

    @property
    def rate_per_s(self) -> float | None:
        """Requests that come."""
        load = self.resolved.workloads[0].spec.load
        return None if load is None else load.rate_per_s


def serving_problem(reading: Reading, question: Question) -> dict[str, Any]:
    """The problem as a document, its search left open. Raises PlannerError for what nobody said."""
    fields = reading.fields
    roles = fields["roles"]
    require_said(reading, question)
    require_prefixes_kept(reading, question.workload)
    model = {"name": question.model or fields["model"]}
    if question.model is not None and Path(question.model).exists():
        model = {"config": question.model}
    kinds = {KV_FORMATS.get(str(role["kv_dtype"])) for role in roles if role["kv_dtype"]} - {None}
    if len(kinds) == 1:
        model["kv_cache"] = kinds.pop()
    weights = loaded_weights(reading, model)
    if weights is not None:
        model["weights"] = weights
    engine: dict[str, Any] = {"name": fields["engine"]}
    ahead = {role.get(AHEAD) for role in roles}
    if len(ahead) == 1 and None not in ahead:
        engine[AHEAD] = ahead.pop()
    if RELEASE in reading.beside:
        engine["version"] = reading.beside[RELEASE].version
    for setting, field in (("memory_utilisation", "memory_utilisation"), ("max_context_tokens", "max_model_len")):
        stated = {role[field] for role in roles} - {None}
        if stated and not (setting == "memory_utilisation" and fields["engine"] != "vllm"):
            engine[setting] = min(stated)
    cache = cache_of(reading, question)
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "name": "imported",
        "models": {"model": model},
        "cluster": {"pools": [cluster_of(reading, question)]},
        "workloads": [{**question.workload, **({"slo": dict(question.slo)} if question.slo else {})}],
        "engine": engine,
        **question.costs,
        **({} if cache is None else {"cache": cache, "objective": {"minimize": "cost"}}),
        "options": {"modes": ["colocated" if all(r["role"] == "colocated" for r in roles) else "disaggregated"]},
    }


def cluster_of(reading: Reading, question: Question) -> dict[str, Any]:
    """The pool: as given, completed by the type and number of GPUs that the artifact names."""
    pool = dict(question.cluster)
    pool.setdefault("gpu", reading.fields.get("gpu_type"))
    if pool["gpu"] is None or ("nodes" not in pool and "gpus" not in pool and reading.fields.get("gpus") is None):
        raise _unsaid(reading, question, ()) or PlannerError("no GPUs are known", where="--cluster")
    if "nodes" not in pool and "gpus" not in pool:
        pool |= _whole(str(pool["gpu"]), int(reading.fields["gpus"]))
    return pool


_ASKED = {
    "which model it runs": "--model NAME",
    "on which GPUs": "--cluster gpu=h100,nodes=4",
    "on how many GPUs": "--cluster gpu=h100,nodes=4",
    "which requests come": "--workload input=1500,output=300,rate=20/s",
    "at which rate requests come": "--workload input=1500,output=300,rate=20/s",
    "which limits they have": "--slo ttft.p99=2s,itl=50ms",
}


def require_said(reading: Reading, question: Question, *, judged: bool = False) -> None:
    """Raises PlannerError that names everything which neither the artifact nor the question says.

    A load that is `judged` has a rate, or clients, and limits too.
    """
    load = question.workload.get("load")
    rated = isinstance(load, Mapping) and bool({"rate", "rate_per_s", "concurrency"} & load.keys())
    missing = ["which requests come"] if not question.workload else []
    if judged and question.workload and not rated:
        missing.append("at which rate requests come")
    if judged and not question.slo:
        missing.append("which limits they have")
    lacking = _unsaid(reading, question, missing)
    if lacking is not None:
        raise lacking


def _unsaid(reading: Reading, question: Question, others: Sequence[str]) -> PlannerError | None:
    """The error that names what is missing; None where nothing is."""
    fields, pool = reading.fields, question.cluster
    missing = [] if question.model or fields.get("model") else ["which model it runs"]
    missing += [] if "gpu" in pool or fields.get("gpu_type") else ["on which GPUs"]
    missing += [] if {"nodes", "gpus"} & pool.keys() or fields.get("gpus") else ["on how many GPUs"]
    missing += others
    if not missing:
        return None
    flags = " ".join(dict.fromkeys(_ASKED[each] for each in missing))
    return PlannerError(f"the artifact does not say {', '.join(missing)}", hint=f"give it: `{flags}`")


def _whole(gpu: str, count: int) -> dict[str, int]:
    """GPUs as a pool can hold them: a part of a node, else whole nodes."""
    from planner.hardware.library import find_node

    a_node = find_node(gpu, where="gpu_type").num_gpus
    return {"gpus": count} if count <= a_node else {"nodes": -(-count // a_node)}


def resolved_problem(document: Mapping[str, Any]) -> "Resolved":
    """A problem document validated and looked up."""
    from planner.documents.read import given_document
    from planner.load.problems import resolve_document

    return resolve_document(given_document(json.loads(json.dumps(document)), "problem"), Path())


def serving_case(reading: Reading, question: Question) -> ServingCase:
    """The deployment on its machines under its load. Raises PlannerError for fields that are open and names unknown."""
    document = serving_problem(reading, question)
    case = _case(reading, question, document)
    held = case.instances
    while (share := _share_around(case, held)) is not None:
        shared = {**document, "engine": {**document["engine"], "memory_utilisation": share}}
        case, before = _case(reading, question, shared), held
        held = _held(case, before)
        if held == before:
            break
    return case


def _share_around(case: ServingCase, instances: "Sequence[Instances]") -> float | None:
    """The share of a device that the engine may use in all, by steps of these instances; None for vLLM."""
    engine = case.resolved.problem.engine
    overheads = load_calibration(case.resolved.problem.costs.calibration).engine(engine.name, engine.version)
    shares = (
        usable_share(role, part, overheads.workspace_bytes) for role, part in zip(case.roles, instances, strict=True)
    )
    return min((share for share in shares if share is not None), default=None)


def _held(case: ServingCase, instances: "Sequence[Instances]") -> "tuple[Instances, ...]":
    """The instances with the sequences that their caches have room for; as they are where one cannot run."""
    from planner.kinds.serve.deployed.instances import setting_around, type_of, types_at_hand

    try:
        setting = setting_around(case.resolved, instances)
        known = types_at_hand(setting)
        return tuple(with_batch(part, type_of(setting, known, part).max_batch) for part in instances)
    except PlannerError:
        return tuple(instances)


def _case(reading: Reading, question: Question, document: Mapping[str, Any]) -> ServingCase:
    resolved = resolved_problem(document)
    (arch,), pool = resolved.models.values(), resolved.pools[0]
    gpu = pool.node.accelerator
    engine = resolved.problem.engine
    roles = tuple(EngineRole(engine.name, role, arch, gpu, engine.version) for role in reading.fields["roles"])
    pairs = [role.instances() for role in roles]
    used = sum(part.replicas * part.shape.devices for part, _ in pairs)
    if used > pool.num_gpus:
        raise PlannerError(
            f"the roles need {used} GPUs, the cluster has {pool.num_gpus}", where="--cluster", hint="give more nodes"
        )
    told = unpriced_notes(reading, question, pool.node.num_gpus)
    notes = tuple(dict.fromkeys([*told, *(text for _, texts in pairs for text in texts)]))
    return ServingCase(reading, document, resolved, roles, tuple(part for part, _ in pairs), notes)


def plan_of_serving(reading: Reading, question: Question) -> "tuple[Envelope, tuple[str, ...]]":
    """The plan that the artifact is, under the stated load, and the engine's defaults that it rests on.

    Raises PlannerError for what cannot run.
    """
    from planner.kinds.serve.deployed.instances import outcome_of, setting_around
    from planner.kinds.serve.plan.certificate import objective
    from planner.kinds.serve.plan.decode import steady_plan
    from planner.kinds.serve.steady.points import DECODE_BATCHES
    from planner.kinds.serve.verified.verifiable import REPRICED, estimated
    from planner.plan.restated import unproven

    case = serving_case(reading, question)
    document = case.document
    if case.rate_per_s is None:
        raise PlannerError("a plan of what runs needs a rate of requests", where="--workload", hint="add `rate=20/s`")
    around = _with_tiers(setting_around(case.resolved, case.instances))
    first = outcome_of(around, case.instances, case.rate_per_s)
    held = [candidate.max_batch for candidate in first.formulated.candidates]
    instances = [with_batch(part, batch) for part, batch in zip(case.instances, held, strict=True)]
    try:
        setting = _fixed(document, _axes(instances))
        outcome = outcome_of(setting, instances, case.rate_per_s)
    except PlannerError:  # full batches that prefill cannot keep up with are no type of the search: smaller ones are
        setting = _fixed(document, _axes(instances, DECODE_BATCHES))
        outcome = outcome_of(setting, instances, case.rate_per_s)
    value = outcome.objective
    assert value is not None
    plan = estimated(steady_plan(setting, outcome, unproven(objective(outcome, value)), ()), REPRICED)
    short = (
        f"{part.function}: caches have room for {own.max_batch} of {part.max_batch} sequences"
        for part, own in zip(case.instances, instances, strict=True)
        if own.max_batch < part.max_batch
    )
    return plan, (*case.notes, *short, *tier_notes(reading, question))


def _fixed(document: Mapping[str, Any], axes: Mapping[str, list[int]]) -> "ServeSetting":
    """The problem priced on these axes alone."""
    from planner.kinds.serve.deployed.instances import setting_around

    options = {**document["options"], **axes}
    objective = document.get("objective", {"minimize": "gpus"})
    resolved = resolved_problem({**document, "objective": objective, "options": options})
    return _with_tiers(setting_around(resolved, []))


def _with_tiers(setting: "ServeSetting") -> "ServeSetting":
    """The setting with all the memory that its problem offers: what the artifact has."""
    spec = setting.resolved.problem.cache
    if spec is None:
        return setting
    from planner.kinds.serve.cached.choices import prefix_choices_of
    from planner.kinds.serve.cached.solve import with_memory

    cached = prefix_choices_of(setting.resolved).of([tier.max_units for tier in spec.tiers])
    if cached is None:
        raise PlannerError(
            "a tier would give more in a window than its bandwidth", where="--cache", hint="give more bandwidth"
        )
    return with_memory(setting, cached)


def _axes(instances: "Sequence[Instances]", smaller: Sequence[int] = ()) -> dict[str, list[Any]]:
    """What the instances have on every axis, and batches `smaller` than theirs."""
    from planner.kinds.serve.deployed.instances import copies_axis

    axes: dict[str, list[Any]] = {
        name: sorted({getattr(part.shape, name) for part in instances}) for name in ("tp", "pp", "dp", "ep")
    }
    for name in ("max_batch", "chunk_tokens"):
        values = sorted({getattr(part, name) for part in instances} - {0})
        if name == "max_batch" and values:
            values = sorted({*values, *(batch for batch in smaller if batch < values[-1])})
        axes |= {name: values} if values else {}
    return axes | copies_axis(instances)
