"""Jobs of a pool of equal servers, first come, first served."""

import heapq


def starts(ready: list[float], service: list[float], servers: int) -> list[float]:
    """When each job starts, of those that are ready at a time the one that stands first."""
    free, start = [0.0] * servers, [0.0] * len(ready)
    for job in sorted(range(len(ready)), key=lambda j: (ready[j], j)):
        start[job] = max(ready[job], heapq.heappop(free))
        heapq.heappush(free, start[job] + service[job])
    return start
