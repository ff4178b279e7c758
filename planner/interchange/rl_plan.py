"""File format of RL plans in the benchmark (docs/rl-problems.md), read and written."""

import json
from dataclasses import replace
from typing import TypeVar

from planner.documents.read import Document
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.horizon import plan_named
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.planned import plan_of as plan_of_decision
from planner.kinds.rl.proof import HEURISTIC, proven_problem
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_options, recorded_problem
from planner.rl.document_part import DocumentPart
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlEvaluation, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.search.search import RlSolution, proven_status
from planner.schema.base import Where
from planner.schema.keys import validated

PlanDocument = dict[str, object]
Plan = TypeVar("Plan")
ALONE = RlMode("disaggregated", "sync")
FILE = "plan.json"
HORIZON_SCHEMA = "planner.rl_horizon_plan/1"


def plan_document(plan: RlPlan) -> PlanDocument:
    """`plan` as the JSON document of the benchmark; `train` is null where only generation is planned."""
    document: PlanDocument = {
        "placement": plan.mode.placement,
        "sync": plan.mode.sync,
        "gen": groups_document(plan.groups),
    }
    if len(plan.groups) > 1:
        document["tail_fraction"] = plan.tail_fraction
    document["train"] = None if plan.training is None else training_document(plan.training)
    return document


def groups_document(groups: tuple[GenerationGroup, ...]) -> list[dict[str, object]]:
    """Replicas as data."""
    return [{"pool": group.option.pool, "tp": group.option.tp, "replicas": group.replicas} for group in groups]


def training_document(training: TrainingChoice) -> dict[str, object]:
    """Training as data."""
    option = training.option
    return {"pool": option.pool, "tp": option.tp, "pp": option.pp, "dp": training.dp}


def read_plan(document: Document, problem: RlProblem) -> RlPlan:
    """The plan in `document`, a plan of `planner solve` too, on the curves of `problem`.

    Raises PlannerError for what the problem has no curve for.
    """
    if is_envelope(document):
        return plan_of_envelope(envelope_of(document), problem)
    return plan_of(DocumentPart(document, document.data), problem)


def is_envelope(document: Document) -> bool:
    """Whether a document is a plan of `planner solve`, and no plan of the benchmark."""
    return isinstance(document.data, dict) and "certificate" in document.data


def envelope_of(document: Document) -> Envelope:
    """The plan of kind `rl` in `document`; raises PlannerError for one of another kind, or that is not valid."""
    envelope = validated(Envelope, document.data, Where(lambda: document.lines, document.source))
    if envelope.kind != "rl":
        raise PlannerError(
            f"is a plan of kind `{envelope.kind}`", where=document.source, hint="name a plan of the problem"
        )
    return envelope


def plan_of(top: DocumentPart, problem: RlProblem) -> RlPlan:
    """The plan in `top` on the curves of `problem`; raises PlannerError as `read_plan` does."""
    wanted = (top.text("placement"), top.text("sync"))
    mode = next((mode for mode in problem.modes if (mode.placement, mode.sync) == wanted), None)
    if mode is None and problem.training:
        known = ", ".join(f"{mode.placement} with {mode.sync}" for mode in problem.modes)
        raise top.refuse("this placement and synchrony are not allowed together", f"use {known}", "sync")
    groups = tuple(group_of(part, problem) for part in top.parts("gen"))
    if len(groups) > 2:
        raise top.refuse(f"{len(groups)} generation groups", "give one or two", "gen")
    training = training_of(top.part("train"), problem) if problem.training else None
    return RlPlan(mode or RlMode("disaggregated", "sync"), groups, training, top.number("tail_fraction", 0.0))


def group_of(part: DocumentPart, problem: RlProblem) -> GenerationGroup:
    """The generation group in `part`; raises PlannerError where `problem` has no such curve."""
    pool, tp = part.text("pool"), part.count("tp")
    for option in problem.generation:
        if (option.pool, option.tp) == (pool, tp):
            return GenerationGroup(option, part.count("replicas"))
    known = ", ".join(f"tp {option.tp} on {option.pool}" for option in problem.generation)
    raise part.refuse(f"no generation curve for tp {tp} on `{pool}`", f"known: {known}")


def training_of(part: DocumentPart, problem: RlProblem) -> TrainingChoice:
    """The training in `part`; raises PlannerError where `problem` has no such curve."""
    wanted = (part.text("pool"), part.count("tp"), part.count("pp"))
    for option in problem.training:
        if (option.pool, option.tp, option.pp) == wanted:
            return TrainingChoice(option, part.count("dp"))
    known = ", ".join(f"tp {option.tp} pp {option.pp} on {option.pool}" for option in problem.training)
    raise part.refuse(f"no training curve for tp {wanted[1]} pp {wanted[2]} on `{wanted[0]}`", f"known: {known}")


def plan_of_envelope(envelope: Envelope, given: RlProblem) -> RlPlan:
    """The plan of an envelope on the curves of the problem that it was solved from.

    Raises PlannerError where the problem has no such curves or mode.
    """
    decision = RlDecision.model_validate(envelope.decision)
    alone = not given.training  # generation alone has one mode, whatever its name
    plan = plan_of_decision(decision, replace(given, modes=(ALONE,)) if alone else given)
    if plan is None:
        raise PlannerError("is no plan of this problem", where="decision.roles", hint="solve the problem again")
    return replace(plan, mode=given.modes[0]) if alone else plan


def solution_of(envelope: Envelope, given: RlProblem, gap: float = 0.0) -> RlSolution[RlPlan]:
    """The plan of an envelope on the curves of its problem, with what its certificate proves within a share `gap`."""
    plan = plan_of_envelope(envelope, given)
    return certified(envelope, plan, evaluate(given, plan), gap)


def certified(envelope: Envelope, plan: Plan, evaluation: RlEvaluation, gap: float) -> RlSolution[Plan]:
    """A plan as its certificate proves it."""
    certificate = envelope.certificate
    bound = evaluation.objective if certificate.bound is None else certificate.bound
    counts = [certificate.proof.get(name) for name in ("priced_exactly", "excluded_by_bound", HEURISTIC)]
    seen, pruned, unproven = (count if isinstance(count, int) else 0 for count in counts)
    status = proven_status(evaluation.objective, bound, gap)
    return RlSolution(
        status, certificate.stop_reason, plan, evaluation, certificate.bound, seen, pruned, 0.0, unproven=unproven
    )


def rl_plan_files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """`plan.json`: a plan of measured curves in the form of the benchmark, over training time where it has periods."""
    assert isinstance(decision, RlDecision)
    searched, _ = measured_problem(envelope)
    if decision.horizon:
        plans = [plan_named(step, searched) for step in decision.horizon]
        periods = [
            {"iterations": step.iterations, "changed": list(step.changed), "plan": plan_document(plan)}
            for step, plan in zip(decision.horizon, plans, strict=True)
            if plan is not None
        ]
        return {FILE: json.dumps({"schema": HORIZON_SCHEMA, "periods": periods}, indent=2) + "\n"}
    return {FILE: json.dumps(plan_document(plan_of_envelope(envelope, searched)), indent=2) + "\n"}


def measured_problem(envelope: Envelope) -> tuple[RlProblem, RlOptions]:
    """What was searched, and the options that say what; raises PlannerError for a problem that names models."""
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, RlOptions)
    if problem is None or options is None or problem.models:
        raise PlannerError(
            "the benchmark has plans of measured curves, and this problem names models",
            where="inputs.models",
            hint="emit it for a launcher",
        )
    return proven_problem(envelope, problem, options)[0], options
