"""`planner show`: prints a summary of a plan on one screen."""

from planner.cli.options import Json, Output, Perfetto, PlanFile, Verbose
from planner.cli.output import refuse_unwritable, write_data, write_spans
from planner.cli.render.plan import render_plan


def show(
    plan: PlanFile,
    verbose: Verbose = False,
    perfetto: Perfetto = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show a plan: what to launch, limits and predictions, money, proof, and a map of who stands where.

    With --json the plan itself is printed, in the one layout that planner writes. With --perfetto what it states over
    time is written as a trace: the passes of a training pipeline, or the phases of an RL iteration.

    Examples:

      planner show plan.json

      planner show plan.json --json | jq .decision.roles

      planner show train.json --perfetto step.json
    """
    from planner.check.inputs import pools_of
    from planner.cli.render.map import render_map
    from planner.load.problems import load_plan
    from planner.plan.placement import require_countable
    from planner.plan.store import plan_json
    from planner.problem.recorded import recorded_problem
    from planner.timelines.plans import plan_spans

    refuse_unwritable(perfetto)
    envelope, decision = load_plan(plan)
    write_spans(perfetto, lambda: plan_spans(envelope, decision))
    if as_json:
        write_data(plan_json(envelope), output)
        return 0
    parts = [render_plan(envelope, decision, verbose=verbose)]
    if decision.placement:
        require_countable(decision.placement)
        problem = recorded_problem(envelope.inputs)
        parts.append(render_map(decision, pools_of(problem) if problem is not None else {}))
    write_data("\n\n".join(parts), output)
    return 0
