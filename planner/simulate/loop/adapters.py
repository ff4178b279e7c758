"""LoRA adapters on an instance: a bounded number resident, loaded on demand, least recently used evicted.

An adapter is in use as long as a request of it holds KV blocks on the instance; the one used longest ago gives way.
"""

from planner.simulate.loop.fields import (
    ADAPTER,
    ADAPTER_SECONDS,
    LAST_USE,
    LOAD_COUNT,
    LOADED,
    NONE,
    NUM_EVENTS,
    PENALTY,
    SLOTS,
    USERS,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def acquire(s: RunState, i: int, r: int) -> bool:
    """Has the adapter of a request on the instance, the next step waiting for its load; False if all are in use."""
    adapter = s.request[r, ADAPTER]
    if adapter == NONE:
        return True
    loaded = s.adapters[i]
    if loaded[adapter, LAST_USE] == NONE:
        if s.instance[i, LOADED] == s.instance[i, SLOTS]:
            oldest = NONE
            for other in range(len(loaded)):
                idle = loaded[other, LAST_USE] != NONE and loaded[other, USERS] == 0
                if idle and (oldest == NONE or loaded[other, LAST_USE] < loaded[oldest, LAST_USE]):
                    oldest = other
            if oldest == NONE:
                return False
            loaded[oldest, LAST_USE] = NONE
            s.instance[i, LOADED] -= 1
        s.instance[i, LOADED] += 1
        s.instance[i, LOAD_COUNT] += 1
        s.instance_s[i, PENALTY] += s.instance_s[i, ADAPTER_SECONDS]
    loaded[adapter, USERS] += 1
    loaded[adapter, LAST_USE] = s.run[NUM_EVENTS]
    return True


@compiled
def release(s: RunState, i: int, r: int) -> None:
    """A request no longer has blocks on the instance."""
    adapter = s.request[r, ADAPTER]
    if adapter != NONE:
        s.adapters[i, adapter, USERS] -= 1
