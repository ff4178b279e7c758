"""Instances judged in simulation: the load that they keep within the limits, and the times at a load.

The streams are those on which the search judges its proposals (`verified.trials`), the same for all that is compared;
what is recommended is confirmed on others that nothing was chosen on.
"""

import itertools
import math
import time
from dataclasses import dataclass, field

from planner.kinds.serve.plan.decode import proposal
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.kinds.serve.verified.budget import Budget
from planner.kinds.serve.verified.capacity import LoadKept, load_kept
from planner.kinds.serve.verified.confirm import Confirmed, confirm
from planner.kinds.serve.verified.shared_streams import SharedStreams
from planner.kinds.serve.verified.trials import Trials, Variants
from planner.progress import Limits
from planner.simulate.judge.limits import Judgement

STREAM_REQUESTS = 5_000  # of all streams together, at least


@dataclass(frozen=True, slots=True)
class Curve:
    """How near the limits are at loads: (load over the stated one, worst value over its limit), by load."""

    points: tuple[tuple[float, float], ...]

    def scale_at(self, worst: float) -> float | None:
        """The load at which the worst value is this share of its limit, between two that were simulated.

        Log-linear between neighbours; None where nothing that was simulated lies on the other side.
        """
        finite = [(scale, value) for scale, value in self.points if 0.0 < value < math.inf]
        for (low, below), (high, above) in itertools.pairwise(finite):
            if below <= worst <= above and above > below:
                part = math.log(worst / below) / math.log(above / below)
                return low * math.exp(part * math.log(high / low))
        return None


@dataclass(slots=True)
class Bench:
    """Judges outcomes of one setting on streams that they share."""

    setting: ServeSetting
    trials: Trials
    curves: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, setting: ServeSetting, limits: Limits) -> "Bench":
        """Streams long enough for the statistics of all limits."""
        from planner.kinds.serve.verified.loop import fewest_requests

        asked = [target.rate_per_s or target.share for target in setting.targets]
        shared = SharedStreams(setting, tuple(part / sum(asked) for part in asked), Budget(limits, time.monotonic()))
        count = max(STREAM_REQUESTS, shared.least_requests(), fewest_requests(setting))
        return cls(setting, Trials(shared, count, surely=math.inf))  # values of all streams are told

    def variants(self, outcome: Outcome) -> Variants:
        """The outcome as a plan that can be simulated; raises Unplaceable where it has no regular place."""
        return Variants.of(proposal(self.setting, outcome), sum(outcome.solution.served_per_s))

    def judged(self, variants: Variants, scale: float = 1.0) -> Judgement:
        """The limits at this share of the load."""
        judgement = self.trials.judged(variants, scale)
        worst = max((limit.estimate.value / limit.limit for limit in judgement.limits), default=0.0)
        self.curves.setdefault(id(variants), []).append((scale, math.inf if judgement.saturated else worst))
        return judgement

    def load(self, variants: Variants, *, most: float = math.inf, needed: float = 0.0) -> LoadKept:
        """The largest load within the limits, as a share of the stated one."""
        return load_kept(lambda scale: self.judged(variants, scale), most, needed)

    def curve(self, variants: Variants) -> Curve:
        """What `judged` saw of these, by load."""
        return Curve(tuple(sorted(self.curves.get(id(variants), []))))

    def confirmed(self, variants: Variants) -> bool:
        """Whether fresh streams keep every limit at the whole load, with their whole intervals."""
        self.trials.shared.budget.allow(1.0)
        return isinstance(confirm(self.trials, variants, 1.0, scalable=False), Confirmed)
