"""File format of RL plans in the benchmark (docs/rl-problems.md), read and written."""

from planner.documents.read import Document
from planner.rl.formats.document_part import DocumentPart
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem

PlanDocument = dict[str, object]


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
    """The plan in `document` on the curves of `problem`. Raises PlannerError for what the problem has no curve for."""
    return plan_of(DocumentPart(document, document.data), problem)


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
