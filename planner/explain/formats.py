"""What is not judged of a plan's number formats: how accurate answers and training are in them.

A plan runs in the formats that its problem states, or that the checkpoint has: none is picked that was not allowed.
"""

from collections.abc import Iterator

from planner.explain.facts import Fact
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem

CHECKPOINTS_OWN = ("bf16", "fp16", "fp32")  # formats that training works in without further choices


def format_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """One fact a model that is served, and one a training, in formats that were stated for it."""
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        return
    for key, model in problem.models.items():
        parts = [f"{model.weights} weights"] if model.weights is not None else []
        parts += [f"a {model.kv_cache} KV cache"] if model.kv_cache is not None else []
        if parts:
            what = f"accuracy is not judged: `{key}` runs with {' and '.join(parts)}, as the problem states"
            about = (key, "weights", "kv_cache", "accuracy")
            yield Fact("note", f"{what}; the catalog holds no published evaluation in these formats", about)
    precision = getattr(decision, "precision", None)
    if isinstance(precision, str) and precision not in CHECKPOINTS_OWN:
        what = f"accuracy is not judged: training runs in {precision}, as the problem states"
        yield Fact("note", what, ("precision", "accuracy"))
