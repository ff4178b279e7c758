"""Numbers that a training plan states: read, scaled, and compared with those derived again from its decision."""

from planner.plan.schema import Envelope, Prediction

DAY_S = 86400.0
ROUNDING = 1e-9
"""Relative, of sums of bytes, or of times, whose addends may stand in another order."""
MARGIN = 1e-9
"""The share of a step's time by which a plan must be faster than another to count as faster."""
ROOMY_SHARE = 0.85
"""Of a device's memory: plans that fill no more are preferred."""
ROOM_COSTS = 0.01
"""The share of the goal that more room may cost, a part of what predictions are off by."""
REPRICED_TOL = 1e-6
"""Relative, between a figure as a plan states it and as its decision gives it again."""


def stated(envelope: Envelope) -> dict[str, float]:
    """The predictions of a plan by their metrics."""
    return {prediction.metric: prediction.value for prediction in envelope.predictions}


def agree(value: float, derived: float) -> bool:
    """Whether a stated figure is the derived one."""
    return abs(value - derived) <= REPRICED_TOL * abs(derived)


def scaled(prediction: Prediction, value: float) -> Prediction:
    """The prediction with another value, and its interval as much wider."""
    ratio = value / prediction.value
    interval = prediction.interval and (prediction.interval[0] * ratio, prediction.interval[1] * ratio)
    return prediction.model_copy(update={"value": value, "interval": interval})
