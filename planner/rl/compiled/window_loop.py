"""The loop of `window`, for numba.

Suffixes: Q samples in the order in which they are handed out, R replicas, which `segments` decodes on, G groups, B
batches, K services, V servers of all services.
"""

from collections import namedtuple

import numpy as np

from planner.rl.compiled.segments import (
    Curve,
    Replicas,
    admit,
    advance,
    decode_s,
    fits,
    release,
    steps_left,
    steps_under_way,
)
from planner.solvers.compilation.parts import inlined_part

NONE = -1
SAME_S = 1e-9  # of clocks that are the same but for rounding

Line = namedtuple("Line", "first_R last_R next_Q assigned_R changed_R")
"""Samples that wait at each replica, in line, those that it has or that wait, and whether it may take some in."""
Clock = namedtuple("Clock", "now_s_R stopped_s_R event_s_R")
"""Until when each replica has decoded, until when it stops for weights, and when it is next done with a sample."""
Servers = namedtuple(
    "Servers", "service_V batch_K step_s_K token_s_K jobs_K line_KQ came_K taken_K ends_s_V first_V last_V"
)
"""The service of each server; samples in the order in which they came to each service, as many as came, and how many of
`jobs_K` copies of them were taken; when the batch of each server ends, infinite without one, and its copies in line."""


@inlined_part
def _take_batches(servers, replicas, now):
    """Every server that is free takes what waits, at most a batch."""
    for v in range(len(servers.ends_s_V)):
        k = servers.service_V[v]
        waiting = servers.came_K[k] * servers.jobs_K[k] - servers.taken_K[k]
        if waiting == 0 or servers.ends_s_V[v] < np.inf:
            continue
        first, last = servers.taken_K[k], servers.taken_K[k] + min(waiting, servers.batch_K[k])
        tokens = 0
        for copy in range(first, last):
            sample = servers.line_KQ[k, copy // servers.jobs_K[k]]
            tokens += replicas.prompt_Q[sample] + replicas.output_Q[sample]
        servers.ends_s_V[v] = now + servers.step_s_K[k] + servers.token_s_K[k] * tokens
        servers.first_V[v], servers.last_V[v], servers.taken_K[k] = first, last, last


@inlined_part
def _line_up(line, sample):
    """The sample waits at the replica that has the fewest."""
    r = np.argmin(line.assigned_R)
    line.assigned_R[r] += 1
    if line.first_R[r] == NONE:
        line.first_R[r] = sample
    else:
        line.next_Q[line.last_R[r]] = sample
    line.last_R[r] = sample
    line.changed_R[r] = True


@inlined_part
def _end_step(curve, replicas, clock, r, now):
    """The step that runs at `now` ends; False where samples are done with it, which is an event of its own."""
    if replicas.size_R[r] > 0 and clock.now_s_R[r] < now:
        steps, took_s = steps_under_way(curve, replicas, r, now - clock.now_s_R[r])
        if steps >= steps_left(replicas, r):
            return False
        clock.now_s_R[r] += took_s
        advance(replicas, r, steps)
    return True


@inlined_part
def _plan(curve, replicas, clock, r):
    """When the replica is next done with a sample."""
    clock.event_s_R[r] = np.inf
    if replicas.size_R[r] > 0:
        clock.event_s_R[r] = clock.now_s_R[r] + decode_s(curve, replicas, r)


@inlined_part
def _take_in(curve, replicas, clock, line, r, now, prefill_tokens_per_s, started_s_Q):
    """Those that wait at the replica and fit are prefilled and decode, between two steps."""
    line.changed_R[r] = False
    waits = line.first_R[r] != NONE and fits(replicas, r, line.first_R[r])
    if (not waits and clock.event_s_R[r] < np.inf) or not _end_step(curve, replicas, clock, r, now):
        return
    if replicas.size_R[r] == 0:
        clock.now_s_R[r] = max(clock.now_s_R[r], now)
    admitted = 0
    while line.first_R[r] != NONE and fits(replicas, r, line.first_R[r]):
        sample = line.first_R[r]
        admit(replicas, r, sample)
        admitted += replicas.prompt_Q[sample]
        started_s_Q[sample] = clock.now_s_R[r]
        line.first_R[r] = line.next_Q[sample]
    clock.now_s_R[r] += admitted / prefill_tokens_per_s
    _plan(curve, replicas, clock, r)


@inlined_part
def _stop(curve, replicas, clock, now, until_s):
    """All replicas stop at the end of their step; one whose samples are done with it stops after them."""
    for r in range(len(clock.now_s_R)):
        clock.stopped_s_R[r] = until_s
        if _end_step(curve, replicas, clock, r, now):
            clock.now_s_R[r] = max(clock.now_s_R[r], until_s)
            _plan(curve, replicas, clock, r)


@inlined_part
def _complete(left_G, left_B, first_B, group, sample):
    """The sample can be trained on; 1 where it is the last of its prompt, for which another goes out, else 0."""
    left_B[np.searchsorted(first_B, sample, side="right") - 1] -= 1
    left_G[sample // group] -= 1
    return 1 if left_G[sample // group] == 0 else 0


@inlined_part
def _score(servers, v, now, group, left_G, left_B, first_B, wanted_Q, scored_s_Q):
    """The batch of the server ends; prompts whose last samples are scored with it."""
    prompts, k = 0, servers.service_V[v]
    servers.ends_s_V[v] = np.inf
    for copy in range(servers.first_V[v], servers.last_V[v]):
        sample = servers.line_KQ[k, copy // servers.jobs_K[k]]
        if copy % servers.jobs_K[k] == servers.jobs_K[k] - 1:
            wanted_Q[sample] -= 1
            if wanted_Q[sample] == 0:
                scored_s_Q[sample] = now
                prompts += _complete(left_G, left_B, first_B, group, sample)
    return prompts


@inlined_part
def _finish(replicas, clock, line, servers, r, now, group, left_G, left_B, first_B, done_s_Q, scored_s_Q):
    """The replica is done with samples, which go to all services; prompts that are complete where there are none."""
    prompts, services = 0, len(servers.batch_K)
    advance(replicas, r, steps_left(replicas, r))
    clock.now_s_R[r], clock.event_s_R[r] = max(now, clock.stopped_s_R[r]), np.inf
    line.changed_R[r] = True
    while replicas.size_R[r] > 0 and steps_left(replicas, r) == 0:
        sample = release(replicas, r)
        done_s_Q[sample] = scored_s_Q[sample] = now
        line.assigned_R[r] -= 1
        for k in range(services):
            servers.line_KQ[k, servers.came_K[k]] = sample
            servers.came_K[k] += 1
        if services == 0:
            prompts += _complete(left_G, left_B, first_B, group, sample)
    return prompts


@inlined_part
def _begin(line, clock, servers, group, num, first_B, wanted_Q, left_G, left_B):
    """Nothing waits, runs or is done."""
    servers.ends_s_V[:] = np.inf
    wanted_Q[:] = len(servers.batch_K)
    clock.event_s_R[:] = np.inf
    line.first_R[:] = NONE
    line.next_Q[:] = NONE
    left_G[:] = group
    left_G[-1] = num - (len(left_G) - 1) * group
    for batch in range(len(left_B)):
        left_B[batch] = first_B[batch + 1] - first_B[batch]


def run_window(
    prompt_Q, output_Q, group, window, slots, step_s, sequence_s, token_s, prefill_tokens_per_s, kv_tokens, first_B,
    train_s_B, staleness, stop_s, delay_s, finish, running, size_R, assigned_R, reserved_R, context_R, steps_R, clock_R,
    stopped_s_R, event_s_R, first_R, last_R, next_Q, left_G, left_B, changed_R, service_V, batch_K, step_s_K,
    token_s_K, jobs_K, line_KQ, came_K, taken_K, ends_s_V, first_V, last_V, wanted_Q, started_s_Q, done_s_Q, scored_s_Q,
    sent_s_B,
):  # fmt: skip
    """Fills when every sample starts, is done and is scored, and when the weights of each batch are sent."""
    curve = Curve(step_s, sequence_s, token_s)
    replicas = Replicas(prompt_Q, output_Q, slots, kv_tokens, finish, running, size_R, reserved_R, context_R, steps_R)
    line = Line(first_R, last_R, next_Q, assigned_R, changed_R)
    clock = Clock(clock_R, stopped_s_R, event_s_R)
    servers = Servers(
        service_V, batch_K, step_s_K, token_s_K, jobs_K, line_KQ, came_K, taken_K, ends_s_V, first_V, last_V
    )
    num, batches, services = len(prompt_Q), len(train_s_B), len(batch_K)
    _begin(line, clock, servers, group, num, first_B, wanted_Q, left_G, left_B)
    head, now, opening, waits = 0, 0.0, window, False
    handing, ending, sent, version = 0, 0, 0, 0  # batches handed out and ended in part, versions sent and arrived
    trained_s = sending_s = np.inf  # when the batch that is trained is, and when its weights are sent
    while sent < batches:
        while opening > 0 and head < num and handing <= version + staleness:
            for sample in range(head, min(head + group, num)):
                _line_up(line, sample)
            head, opening = min(head + group, num), opening - 1
            while handing < batches - 1 and head >= first_B[handing + 1]:
                handing += 1
        for r in range(len(size_R)):
            if changed_R[r]:
                _take_in(curve, replicas, clock, line, r, now, prefill_tokens_per_s, started_s_Q)
        if ending == sent and left_B[ending] == 0:
            trained_s, ending = now + train_s_B[ending], ending + 1
        r = np.argmin(event_s_R)
        arrived_s = sent_s_B[version] + delay_s if version < sent else np.inf
        next_s, served_s, v = min(trained_s, sending_s, arrived_s), np.inf, 0
        if services > 0:
            v = np.argmin(ends_s_V)
            served_s = ends_s_V[v]
            if waits and min(next_s, event_s_R[r], served_s) > now + SAME_S:
                _take_batches(servers, replicas, now)
                waits = False
                continue
        if next_s <= min(event_s_R[r], served_s):
            now = next_s
            if trained_s == now:
                trained_s, sending_s = np.inf, now + stop_s
                if stop_s > 0.0:
                    _stop(curve, replicas, clock, now, now + stop_s)
            elif sending_s == now:
                sent_s_B[sent], sent, sending_s = now, sent + 1, np.inf
            else:
                version += 1
            continue
        if event_s_R[r] > served_s:
            now, waits = served_s, True
            opening += _score(servers, v, now, group, left_G, left_B, first_B, wanted_Q, scored_s_Q)
            continue
        now, waits = event_s_R[r], services > 0
        opening += _finish(replicas, clock, line, servers, r, now, group, left_G, left_B, first_B, done_s_Q, scored_s_Q)
