"""A plan with the load at which it keeps its limits on the streams of the search."""

from dataclasses import dataclass

from planner.kinds.serve.steady.search import Outcome
from planner.kinds.serve.verified.capacity import LoadKept
from planner.kinds.serve.verified.trials import Variants


@dataclass(frozen=True, slots=True)
class Kept:
    """A proposal with the load that it keeps."""

    outcome: Outcome  # at the load that steady state gives it
    variants: Variants
    load: LoadKept

    @property
    def value(self) -> float:
        """In the unit of the mix problem: of goodput what is kept, else the price of all instances."""
        value = self.outcome.result.objective
        assert value is not None
        return value * self.load.scale if self.outcome.formulated.problem.maximising else value

    @property
    def cost(self) -> float:
        """What is to be small: the price, or goodput below 0."""
        return -self.value if self.outcome.formulated.problem.maximising else self.value
