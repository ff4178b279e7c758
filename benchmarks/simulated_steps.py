"""Every step of every instance of a run: when it began and ended, and how many tokens of which requests were in it."""

import math
from dataclasses import dataclass

import numpy as np

from planner.simulate.fleet.instances import Fleet
from planner.simulate.loop import fields as f
from planner.simulate.loop.state import RunState
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import initial_state, run_to_end


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an instance, and the requests in it."""

    instance: int
    start_s: float
    end_s: float
    decoded: frozenset[int]
    prefilled: dict[int, int]  # tokens of their prompts
    whole: frozenset[int]  # of those, prompts that are in the cache when it ends

    @property
    def tokens(self) -> dict[int, int]:
        """Tokens by request."""
        return dict.fromkeys(self.decoded, 1) | self.prefilled

    @property
    def answered(self) -> frozenset[int]:
        """Requests that have a token at its end."""
        return self.decoded | self.whole


def steps_of(fleet: Fleet, requests: Requests, *, seed: int = 0) -> list[Step]:
    """The steps of `simulate(fleet, requests)` in order of their starts.

    The same loop, stopped at every event, looks ahead by one step. For fleets without drafts, changes of instances and
    elastic ones: a step that is cut short ends here when it would have ended.
    """
    state = initial_state(fleet, requests, seed, math.inf, 0)
    state.instance[:, f.SINGLE] = 1
    steps: list[Step] = []
    last_s = np.full(len(state.instance), -1.0)
    while state.run[f.NUM_EVENTS] == state.run[f.MOST_EVENTS]:
        state.run[f.MOST_EVENTS] += 1
        run_to_end(fleet, requests, state)
        begun = (state.instance[:, f.STEPS] > 0) & (state.instance_s[:, f.START] > last_s)
        steps += [_begun(state, int(i)) for i in np.flatnonzero(begun)]
        last_s[begun] = state.instance_s[begun, f.START]
    return steps


def _begun(state: RunState, i: int) -> Step:
    """The step that an instance has just begun."""
    row, seconds = state.instance[i], state.instance_s[i]
    listed = state.listed[i, : row[f.LISTED]]
    batch = state.batch[i, : row[f.SEQUENCES]] if row[f.STALLED] == 0 else state.batch[i, :0]
    prompts = state.request[listed]
    ends = prompts[:, f.DONE] == prompts[:, f.INPUT] + prompts[:, f.GENERATED]
    return Step(
        i,
        float(seconds[f.START]),
        float(seconds[f.ENDS]),
        frozenset(batch.tolist()),
        dict(zip(listed.tolist(), prompts[:, f.CHUNK].tolist(), strict=True)),
        frozenset(listed[ends].tolist()),
    )
