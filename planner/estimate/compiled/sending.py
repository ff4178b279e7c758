"""numba way of a request to its scheduler in a closed loop, which both kinds of deployment share."""

from planner.solvers.compilation.parts import part


@part
def send(request, begins, free, frontend, delay, sent_at, ready):
    """The next request on its way; returns when the front end is free."""
    sent_at[request] = begins
    free = max(free, begins) + frontend[request]
    ready[request] = free + delay[request]
    if request > 0:
        ready[request] = max(ready[request], ready[request - 1])
    return free
