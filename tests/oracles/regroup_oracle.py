"""Steps of a regrouping followed one by one, against what each must leave standing."""

from collections import Counter
from collections.abc import Sequence

from planner.solvers.placement.regroup import Regroup, Step


def broken_by(problem: Regroup, steps: Sequence[Step]) -> str | None:
    """What the steps break, in words, or None where they lead from what stands to what is to stand."""
    state, least = problem.now, problem.least()
    for number, step in enumerate(steps, 1):
        if (step.copy in state) == step.brought:
            return f"step {number} {'brings what stands' if step.brought else 'drops what does not stand'}"
        state = state | {step.copy} if step.brought else state - {step.copy}
        full = [device for device, taken in problem.taken(state).items() if taken > problem.memory_bytes * (1.0 + 1e-9)]
        if full:
            return f"step {number} leaves device {full[0][1]} of `{full[0][0]}` with more than it holds"
        counts = Counter(copy.model for copy in state)
        bare = [model for model, number_of in least.items() if counts[model] < number_of]
        if bare:
            return f"step {number} leaves `{bare[0]}` with {counts[bare[0]]} of {least[bare[0]]} copies"
    return None if state == problem.target else "the steps end elsewhere"
