"""KV-cache transfers between instances (prefill to decode): link queues of both sides, and of their pools.

Links carry one cache at a time, in the order in which they were asked for. Each is busy for as long as its own rate
takes: an instance that receives slowly sent caches takes others meanwhile. A cache has moved when the last of its links
is done with it.
"""

from planner.simulate.loop.fields import FREE_FROM, LATENCY, LINK_LATENCY, LINK_RATE, POOL, RATE, RECEIVED, SENT
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def transferred_s(s: RunState, source: int, goal: int, tokens: int, now_s: float) -> float:
    """When a cache of so many tokens that is asked for now has moved."""
    link = s.links[s.instance[source, POOL], s.instance[goal, POOL]]
    start = max(now_s, s.instance_s[source, SENT])
    s.instance_s[source, SENT] = start + tokens / s.instance_s[source, LINK_RATE]
    link[FREE_FROM] = max(start, link[FREE_FROM]) + tokens / link[RATE]
    s.instance_s[goal, RECEIVED] = max(start, s.instance_s[goal, RECEIVED]) + tokens / s.instance_s[goal, LINK_RATE]
    done = max(s.instance_s[source, SENT], link[FREE_FROM], s.instance_s[goal, RECEIVED])
    return float(done + (max(s.instance_s[source, LINK_LATENCY], s.instance_s[goal, LINK_LATENCY]) + link[LATENCY]))
