"""Caches on their way from one instance to another: the links of both, and the one between their pools.

Links carry one cache at a time, in the order in which they were asked for. A link between pools is busy for as long as
its own rate takes, which a slower link at either end makes no longer.
"""

from planner.simulate.loop.fields import FREE_FROM, LATENCY, LINK_LATENCY, LINK_RATE, POOL, RATE, RECEIVED, SENT
from planner.simulate.loop.program import State, compiled


@compiled
def transferred_s(s: State, source: int, goal: int, tokens: int, now_s: float) -> float:
    """When a cache of so many tokens that is asked for now has moved."""
    link = s.links[s.instance[source, POOL], s.instance[goal, POOL]]
    rate = min(s.instance_s[source, LINK_RATE], s.instance_s[goal, LINK_RATE], link[RATE])
    free = max(now_s, s.instance_s[source, SENT], s.instance_s[goal, RECEIVED]) + tokens / rate
    link[FREE_FROM] = max(now_s, link[FREE_FROM]) + tokens / link[RATE]
    free = max(free, link[FREE_FROM])
    s.instance_s[source, SENT] = free
    s.instance_s[goal, RECEIVED] = free
    return float(free + (max(s.instance_s[source, LINK_LATENCY], s.instance_s[goal, LINK_LATENCY]) + link[LATENCY]))
