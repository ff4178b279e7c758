"""numba way of requests to their scheduler in a closed loop, which both kinds of deployment share.

`s` is the state of what is simulated, a record of its kind that begins with `SENDING`.
"""

from typing import NamedTuple

from planner.arrays import Floats, Ints
from planner.solvers.compilation.parts import inlined_part

SENDING = [
    ("now", "f8"),
    ("free", "f8"),  # when the front end is
    ("started", "i8"),  # requests that began by themselves
    ("sent", "i8"),
    ("done", "i8"),  # answered
    ("head", "i8"),  # of the queue: requests before it were taken
]


class Requests(NamedTuple):
    """The requests of a run in the order in which they are sent [count], in tokens and seconds."""

    starts: Floats  # of those that begin by themselves: the first of every client, or all that come by chance
    isl: Floats
    osl: Floats
    frontend: Floats  # in which the front end does nothing else
    delay: Floats  # from there to the scheduler
    sent: Floats
    ready: Floats  # at the scheduler
    queue: Ints  # requests in the order in which they come there
    first: Floats  # when decoding begins
    ttft: Floats
    tpot: Floats


@inlined_part
def send(s, requests, begins):
    """The next request on its way at this second; those that are delayed for longer come after it."""
    request = s.sent
    requests.sent[request] = begins
    s.free = max(s.free, begins) + requests.frontend[request]
    requests.ready[request] = s.free + requests.delay[request]
    place = request
    while place > s.head and requests.ready[requests.queue[place - 1]] > requests.ready[request]:
        requests.queue[place] = requests.queue[place - 1]
        place -= 1
    requests.queue[place] = request
    s.sent += 1


@inlined_part
def next_ready_s(s, requests):
    """When the next of those on their way is at the scheduler."""
    return requests.ready[requests.queue[s.head]]


@inlined_part
def send_starting(s, requests):
    """The next of those that begin by themselves on its way."""
    s.started += 1
    send(s, requests, requests.starts[s.started - 1])


@inlined_part
def answer(s, requests, request):
    """The last token of a request is out: its client sends the next one, where one is left to send."""
    s.done += 1
    requests.tpot[request] = (s.now - requests.first[request]) / max(requests.osl[request] - 1.0, 1.0)
    if s.sent + len(requests.starts) - s.started < len(requests.isl):
        send(s, requests, s.now)
