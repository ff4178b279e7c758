"""Step times of elastic sequence parallelism over several instances, and instance sets as bit masks."""

from planner.simulate.loop.elastic.fields import EXCHANGE, FIXED_S, RING_RATE, SQUARE_S, TOKEN_S
from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.fields import TABLE
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import CONTEXTS, bracket, mixed_step_s


@compiled
def lowest(members: int) -> int:
    """The first instance of a set that is not empty."""
    i = 0
    while members >> i & 1 == 0:
        i += 1
    return i


@compiled
def size(members: int) -> int:
    """How many instances a set has."""
    count = 0
    while members:
        members &= members - 1
        count += 1
    return count


@compiled
def prefill_s(s: RunState, c: Common, k: int, tokens: int, attended: float) -> float:
    """A step that prefills tokens that attend to so many each on average: each of k instances works on its share, while
    keys and values go round the ring."""
    work_s = mixed_step_s(s, 0 * k, 0 * k, -(-tokens // k), attended)
    return float(max(work_s, (k - 1) / k * tokens / c.common_s[RING_RATE]))


@compiled
def decode_s(s: RunState, c: Common, k: int, sequences: int, context: int) -> float:
    """A step that decodes sequences, each of k instances being the master of its share of them."""
    table = s.instance[0, TABLE]
    axis, length = s.axes[table, CONTEXTS], s.lengths[table, CONTEXTS]
    seconds, mean = s.decode_s[table, -(-sequences // k)], context / sequences
    low, slope = bracket(axis, length, mean), 0.0
    if length > 1:
        slope = (seconds[low + 1] - seconds[low]) / (axis[low + 1] - axis[low])
    return float(seconds[low] + slope * (mean - axis[low]) + (c.common_s[EXCHANGE] if k > 1 else 0.0))


@compiled
def believed_s(c: Common, k: int, tokens: float, squares: float) -> float:
    """A prefill of prompts of so many tokens, and of so many squared, on k instances as the batching believes it."""
    fit = c.common_s
    return float(fit[FIXED_S] + (fit[TOKEN_S] * tokens + fit[SQUARE_S] * squares) / k)
