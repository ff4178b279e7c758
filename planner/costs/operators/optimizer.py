"""The optimizer of a training step: AdamW over the parameters that a rank updates (arXiv:1711.05101)."""

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.kernels import MemoryPass
from planner.costs.operators.working_format import BF16

NAME = "optimizer"
_MASTER_BYTES = 28.0  # an fp32 weight and two fp32 moments read and written, an fp32 gradient read
_CAST_BYTES = 6.0  # the fp32 weight read, and written in the working format of the layers
_KERNELS = 2.0  # parameters are updated in batches: one kernel for many


def adamw(parameters: Floats, working: str = BF16) -> MemoryPass:
    """One update of `parameters` [N] weights and the cast to the format that the layers work in, where it is another.

    As mixed-precision training keeps them (arXiv:1710.03740, section 3.1): weights, moments and gradients in fp32.
    """
    each = _MASTER_BYTES + (_CAST_BYTES if working != "fp32" else 0.0)
    return MemoryPass(NAME, 1.0, np.asarray(parameters, dtype=np.float64) * each, _KERNELS)


def gradient_accumulation(parameters: Floats, working: str = BF16) -> MemoryPass:
    """The gradients [N] of one more micro-batch added to those so far: both read, the sum written."""
    each = 3.0 * (4.0 if working == "fp32" else 2.0)
    return MemoryPass("gradient_accumulation", 1.0, np.asarray(parameters, dtype=np.float64) * each, 1.0)
