"""numba seconds of steps of a closed loop, which both kinds of deployment share."""

import numpy as np

from planner.solvers.compilation.parts import inlined_part

LEAST_FACTOR = 0.1  # of a stretch of steps that the host's luck shortens


@inlined_part
def step_s(run, decoding):
    """A step that decodes so many sequences; larger ones than graphs hold take as long as the host launches them."""
    step = run.base_s + run.slope_s * decoding
    return max(step, run.eager_s) if decoding > run.graph_batch else step


@inlined_part
def luck(run, noise, drawn, steps):
    """The factor by which so many steps in a row are longer or shorter than they should be."""
    return max(1.0 + run.jitter * noise[drawn % len(noise)] / np.sqrt(steps), LEAST_FACTOR)
