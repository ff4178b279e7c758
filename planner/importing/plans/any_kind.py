"""The plan that an artifact is, whatever its kind."""

from typing import TYPE_CHECKING, Any

from planner.importing.plans.question import Question
from planner.importing.records import Reading

if TYPE_CHECKING:
    from planner.plan.schema import Envelope


def plan_of_reading(reading: Reading, question: Question) -> "tuple[Envelope, tuple[str, ...]]":
    """The plan with its problem, and what it rests on that the artifact does not say.

    Raises PlannerError for what is open, Infeasible for what does not fit.
    """
    from planner.importing.plans.post_training import plan_of_rl, rl_notes
    from planner.importing.plans.serving import plan_of_serving
    from planner.importing.plans.training import plan_of_training, training_notes

    if reading.fields["kind"] == "serve":
        return plan_of_serving(reading, question)
    if reading.fields["kind"] == "train":
        return plan_of_training(reading, question), tuple(training_notes(reading, question))
    return plan_of_rl(reading, question), tuple(rl_notes(reading))


def problem_of_reading(reading: Reading, question: Question) -> dict[str, Any]:
    """The problem as a document for a file."""
    from planner.importing.plans.post_training import rl_problem
    from planner.importing.plans.serving import serving_case
    from planner.importing.plans.training import training_problem

    if reading.fields["kind"] == "serve":
        return dict(serving_case(reading, question).document)
    return (training_problem if reading.fields["kind"] == "train" else rl_problem)(reading, question)
