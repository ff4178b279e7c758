"""What simulation found of instance types: the share that they keep of what steady state allows them."""

from dataclasses import dataclass, field, replace

from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.search import Outcome
from planner.kinds.serve.verified.capacity import LoadKept

BLAMED = {
    "ttft": frozenset({"colocated", "prefill"}),
    "tpot": frozenset({"colocated", "decode", "attention"}),
    "itl": frozenset({"colocated", "decode", "attention"}),
}
"""By the time that a broken limit is on, the functions whose instances are too few; all for other times."""
LEAST_SHARE = 0.05


@dataclass(slots=True)
class Learnt:
    """Shares of what steady state allows that instance types keep in simulation, by place in the list of candidates."""

    candidates: tuple[Candidate, ...]
    own: dict[int, float] = field(default_factory=dict)
    barred: dict[int, int] = field(default_factory=dict)  # the most instances that have a regular place

    def learn(self, proposal: Outcome, load: LoadKept) -> None:
        """Takes over what a proposal keeps, of the types that its binding limits are about.

        The load that it keeps is a share of what it was given, and that one of what steady state allows these types.
        """
        about = frozenset[str]().union(*(BLAMED.get(time, frozenset()) for time in load.binding))
        everyone = load.scale >= 1.0 or not about or bool(load.binding - set(BLAMED))
        used = [row for row, count in enumerate(proposal.solution.counts) if count]
        rows = [row for row in used if everyone or self.candidates[row].function in about]
        fullest = min(max((self._busy(proposal, row) for row in rows), default=1.0), 1.0)
        for row in rows:
            self.own[row] = self.own.get(row, self.share(row)) * max(load.scale * fullest, LEAST_SHARE)

    def _busy(self, proposal: Outcome, row: int) -> float:
        """The share of what is known that a type keeps which a proposal asks of it."""
        solution, rates_per_s = proposal.solution, self.candidates[row].rates_per_s
        loads = zip(solution.load_per_s[row], rates_per_s, strict=True)
        asked = sum(load / rate for load, rate in loads if load > 0.0 and rate > 0.0)
        return asked / solution.counts[row] / max(self.share(row), LEAST_SHARE)

    def share(self, row: int, *, carried: bool = True) -> float:
        """What is known of a type, or of its shape, or, where `carried`, the most that any of its function keeps."""
        if row in self.own:
            return self.own[row]
        candidate = self.candidates[row]
        alike = [r for r in self.own if self.candidates[r].function == candidate.function]
        same = [r for r in alike if self.candidates[r].shape == candidate.shape]
        return max((self.own[r] for r in same or (alike if carried else ())), default=1.0)

    def corrected(self, outcome: Outcome, *, carried: bool) -> Outcome:
        """The outcome's mix problem with rates as they are kept, of shapes not simulated too where `carried`."""
        problem = outcome.searched
        shapes = []
        for row, shape in enumerate(problem.shapes):
            share = self.share(row, carried=carried)
            most = self.barred.get(row, shape.max_instances)
            rates = tuple(rate * share for rate in shape.rate_per_s)
            shapes.append(replace(shape, rate_per_s=rates, max_instances=most))
        return replace(outcome, searched=replace(problem, shapes=tuple(shapes)))
