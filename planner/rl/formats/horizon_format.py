"""File format of RL problems and plans over training time (docs/rl-problems.md), read and written."""

from planner.documents.read import Document
from planner.rl.formats.benchmark_plan import PlanDocument, plan_document, plan_of
from planner.rl.formats.benchmark_problem import placed_errors, problem_of, read_batches
from planner.rl.formats.document_part import DocumentPart
from planner.rl.plan import RlPlan
from planner.rl.problem import validate
from planner.rl.search.horizon import ChangeCosts, HorizonProblem, Period, changes_on_the_way

SCHEMA = "planner.rl_horizon_plan/1"


def is_horizon(document: Document) -> bool:
    """Whether the document states lengths period by period."""
    workload = document.data.get("workload") if isinstance(document.data, dict) else None
    return isinstance(workload, dict) and workload.get("periods") is not None


def read_horizon(document: Document) -> HorizonProblem:
    """The problem in `document`. Raises PlannerError naming file, line and field, with a value that would work."""
    top = DocumentPart(document, document.data)
    if not isinstance(document.data, dict):
        raise top.refuse("must be a mapping", "write a problem of docs/rl-problems.md")
    if top.text("stage", "full") != "full":
        raise top.refuse("a horizon is planned for generation and training together", "write `stage: full`", "stage")
    workload = top.part("workload")
    periods = tuple(
        Period(read_batches(part, workload), part.count("iterations")) for part in workload.parts("periods")
    )
    problem = problem_of(top, tuple(batch for period in periods for batch in period.batches))
    with placed_errors(document, {"batches": ("workload", "periods")}):
        validate(problem)
    change = top.part("change")
    costs = ChangeCosts(change.number("generation_s"), change.number("training_s"), change.number("circuit_s", 0.0))
    running = plan_of(top.part("current"), problem) if "current" in top else None
    return HorizonProblem(problem, periods, costs, running)


def horizon_plan_document(given: HorizonProblem, plans: tuple[RlPlan, ...]) -> PlanDocument:
    """`plans`, one a period, each in the form of the benchmark and with what changes on entering its period."""
    changes = changes_on_the_way(given.running, plans)
    return {
        "schema": SCHEMA,
        "periods": [
            {"iterations": period.iterations, "changed": list(changed), "plan": plan_document(plan)}
            for period, changed, plan in zip(given.periods, changes, plans, strict=True)
        ],
    }


def read_horizon_plan(document: Document, given: HorizonProblem) -> tuple[RlPlan, ...]:
    """The plan of every period; raises PlannerError where periods or curves are not those of the problem."""
    top = DocumentPart(document, document.data)
    if not isinstance(document.data, dict):
        raise top.refuse("must be a mapping", "give a plan that `planner rl horizon` wrote")
    parts = top.parts("periods")
    if len(parts) != len(given.periods):
        raise top.refuse(
            f"plans of {len(parts)} periods, the problem has {len(given.periods)}",
            f"give {len(given.periods)} periods",
            "periods",
        )
    return tuple(plan_of(part.part("plan"), given.problem) for part in parts)
