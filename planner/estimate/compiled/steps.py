"""numba seconds of a decoding step of a closed loop, which both kinds of deployment share."""

from planner.solvers.compilation.parts import part

LEAST_FACTOR = 0.1  # of a stretch of steps that the host's luck shortens


@part
def step_s(decoding, base, slope, graph_batch, eager):
    """A step that decodes so many sequences; larger ones than graphs hold take as long as the host launches them."""
    step = base + slope * decoding
    return max(step, eager) if decoding > graph_batch else step
