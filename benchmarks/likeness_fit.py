"""The constants of `planner.propose.likeness` fitted on measured decisions, by maximum marginal likelihood.

Wild errors are cut, and the decisions that fit worst are left out (Rasmussen, Williams, "Gaussian Processes for Machine
Learning", 2006, section 5.4).
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from planner.arrays import Floats
from planner.propose.likeness import Likeness

WORST_LEFT_OUT = 0.25  # of the decisions
LEAST_VARIANCE = 1e-6
PULL = 1.0  # a factor of e away from the start is one deviation
BOUNDS = (0.003, 30.0)
CUT = {"tpot": 0.6, "ttft": 1.5}  # log errors beyond are of broken runs more than of predictions


@dataclass(frozen=True, slots=True)
class Errors:
    """Log errors of the alternatives of one decision that were measured [M], and their places."""

    error_M: Floats
    load_M: Floats
    layout_MF: Floats

    def misfit(self, likeness: Likeness) -> float:
        """Negative log likelihood for each alternative, without its constant."""
        covariance_MM = likeness.covariance(self.load_M, self.layout_MF)
        root_MM = np.linalg.cholesky(covariance_MM + LEAST_VARIANCE * np.eye(len(self.error_M)))
        white_M = np.linalg.solve(root_MM, self.error_M)
        return float((0.5 * white_M @ white_M + np.log(np.diagonal(root_MM)).sum()) / len(self.error_M))


def fit(decisions: Sequence[Errors], start: Likeness, cut: float) -> Likeness:
    """The constants under which the errors of `decisions` are likeliest, pulled towards `start`."""
    from scipy.optimize import minimize

    errors = [
        Errors(np.clip(decision.error_M, -cut, cut), decision.load_M, decision.layout_MF) for decision in decisions
    ]
    begin = np.log(np.array(astuple(start)))
    weight = sum(len(decision.error_M) for decision in errors) / max(len(errors), 1)

    def loss(values: Floats) -> float:
        likeness = Likeness(*np.exp(values).tolist())
        misfits = sorted(decision.misfit(likeness) for decision in errors)
        kept = misfits[: math.ceil((1.0 - WORST_LEFT_OUT) * len(misfits))]
        return weight * sum(kept) + 0.5 * float(((values - begin) ** 2).sum()) / PULL**2

    limits = [(math.log(BOUNDS[0]), math.log(BOUNDS[1]))] * len(begin)
    optimum = minimize(loss, begin, method="L-BFGS-B", bounds=limits, options={"maxiter": 60})
    return Likeness(*np.exp(optimum.x).tolist())
