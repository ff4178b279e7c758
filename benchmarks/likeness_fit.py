"""The constants of `planner.costs.rates.likeness` fitted on measured decisions, by maximum marginal likelihood.

Errors of a decision are a multivariate Student-t, so that wild ones say little of the others (Shah, Wilson, Ghahramani,
"Student-t Processes as Alternatives to Gaussian Processes", AISTATS 2014). A decision counts as MOST_ROWS alternatives
at most.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.likeness import Likeness
from planner.solvers.stochastic.sequential_choice import Belief

LEAST_VARIANCE = 1e-6
PULL = 1.0  # a factor of e away from the start is one deviation
BOUNDS = (0.003, 30.0)
FREEDOM = (0.2, 100.0)  # degrees beyond two
COMMON_FREEDOM = 3.0  # where a fit begins that knows none
MOST_ROWS = 10
LEVEL = 0.8  # of intervals
RUNS = 3  # after which widths are judged
DRAWS = 5  # of them


@dataclass(frozen=True, slots=True)
class Errors:
    """Log errors of the alternatives of one decision that were measured [M], and their places."""

    error_M: Floats
    load_M: Floats
    layout_MF: Floats

    def misfit(self, likeness: Likeness) -> float:
        """Negative log likelihood for each alternative, without its constant."""
        size, freedom = len(self.error_M), likeness.freedom
        covariance_MM = likeness.covariance(self.load_M, self.layout_MF)
        root_MM = np.linalg.cholesky(covariance_MM + LEAST_VARIANCE * np.eye(size))
        white_M = np.linalg.solve(root_MM, self.error_M)
        square, volume = float(white_M @ white_M), float(np.log(np.diagonal(root_MM)).sum())
        if math.isinf(freedom):
            return (0.5 * square + volume) / size
        whole = math.lgamma(freedom / 2.0) - math.lgamma((freedom + size) / 2.0)
        whole += 0.5 * size * math.log(freedom / 2.0) + 0.5 * (freedom + size) * math.log1p(square / freedom)
        return (whole + volume) / size


def fit(decisions: Sequence[Errors], start: Likeness) -> Likeness:
    """The constants under which the errors of `decisions` are likeliest, pulled towards `start`."""
    from scipy.optimize import minimize

    beyond = COMMON_FREEDOM if math.isinf(start.freedom) else start.freedom - 2.0
    begin = np.log(np.array([*astuple(start)[:5], beyond]))
    counts = [min(len(decision.error_M), MOST_ROWS) for decision in decisions]

    def loss(values: Floats) -> float:
        misfits = [decision.misfit(_of(values)) for decision in decisions]
        return float(np.dot(counts, misfits)) + 0.5 * float(((values - begin) ** 2).sum()) / PULL**2

    limits = [(math.log(low), math.log(high)) for low, high in [BOUNDS] * 5 + [FREEDOM]]
    optimum = minimize(loss, begin, method="L-BFGS-B", bounds=limits, options={"maxiter": 60})
    likeness = _of(optimum.x)
    return replace(likeness, held=_held(decisions, likeness))


def _of(values: Floats) -> Likeness:
    common, smooth, single, load_reach, layout_reach, beyond = np.exp(values).tolist()
    return Likeness(common, smooth, single, load_reach, layout_reach, 2.0 + beyond)


def _held(decisions: Sequence[Errors], likeness: Likeness) -> float:
    """The multiple of widths after RUNS random runs that holds as much as they say, decisions weighing the same."""
    rng = np.random.default_rng(0)
    off, weight = [], []
    for decision in (decision for decision in decisions for _ in range(DRAWS) if len(decision.error_M) > RUNS):
        covariance_MM = likeness.covariance(decision.load_M, decision.layout_MF)
        belief = Belief(np.zeros(len(covariance_MM)), covariance_MM, LEAST_VARIANCE, likeness.freedom)
        order = rng.permutation(len(covariance_MM))
        for run in order[:RUNS].tolist():
            belief = belief.measured(run, float(decision.error_M[run]))
        rest = order[RUNS:]
        half = likeness.belief(belief.mean_M[rest], belief.variance_M[rest], belief.freedom).half
        off.append(np.abs(decision.error_M - belief.mean_M)[rest] / half)
        weight.append(np.full(len(rest), 1.0 / len(rest)))
    order = np.argsort(np.concatenate(off))
    share = np.cumsum(np.concatenate(weight)[order])
    return float(np.concatenate(off)[order][np.searchsorted(share, LEVEL * share[-1])])
