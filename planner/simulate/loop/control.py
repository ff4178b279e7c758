"""Autoscaler and planned changes: instances added, drained, and flipped between prefill and decode.

A group of instances that step together counts as one. More requests a group than `CROWDED_ABOVE` start one more on that
side of its model, fewer than `IDLE_BELOW` drain the emptiest; where more than `FLIP_ABOVE` requests a group wait on one
side, for prefill or for decode, and fewer on the other, the emptiest group of the other changes role.
"""

import numpy as np

from planner.simulate.loop.fields import (
    CONTROL,
    CROWDED_ABOVE,
    DECODE,
    FLIP_ABOVE,
    IDLE_BELOW,
    LAST_LOOK,
    LEADER,
    LEAST_OPEN,
    LIFE,
    MEMBERS,
    NEXT_CHANGE,
    NEXT_CONTROL,
    NEXT_ROLE,
    NONE,
    NUM_DRAINING,
    NUM_MODELS,
    OFF,
    OPEN,
    OPENS,
    PREFILL,
    QUEUED,
    ROLE,
    SERVES,
    START_SECONDS,
    STARTING,
)
from planner.simulate.loop.lifecycle import change_one, drain, release_waiting, send_again, settle, start
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def next_change(s: RunState, moment: float) -> float:
    """The earlier of a moment and the next change: known beforehand, the end of a start, or a look of the autoscaler.

    Where nothing else is to happen, requests are kept back: one look decides whether anything will start.
    """
    if s.run[NEXT_CHANGE] < len(s.change_s):
        moment = min(moment, s.change_s[s.run[NEXT_CHANGE]])
    for i in range(len(s.instance)):
        moment = min(moment, s.instance_s[i, OPENS])
    if s.run_s[CONTROL] < np.inf and (moment < np.inf or s.run[LAST_LOOK] == 0):
        s.run[LAST_LOOK] = 1 if moment == np.inf else 0
        moment = min(moment, s.run_s[NEXT_CONTROL])
    return moment


@compiled
def change(s: RunState, now_s: float) -> None:
    """All changes of instances at this moment."""
    while s.run[NEXT_CHANGE] < len(s.change_s) and s.change_s[s.run[NEXT_CHANGE]] <= now_s:
        index = s.run[NEXT_CHANGE]
        s.run[NEXT_CHANGE] = index + 1
        leader = s.instance[s.change[index, 0], LEADER]
        for i in range(leader, leader + s.instance[leader, MEMBERS]):
            change_one(s, i, s.change[index, 1], now_s)
    send_again(s, now_s)
    if s.run_s[CONTROL] < np.inf and s.run_s[NEXT_CONTROL] <= now_s:
        while s.run_s[NEXT_CONTROL] <= now_s:
            s.run_s[NEXT_CONTROL] += s.run_s[CONTROL]
        control(s, now_s)
    settle(s, now_s)
    release_waiting(s, now_s)


@compiled
def control(s: RunState, now_s: float) -> None:
    """What autoscaling and role flips do at a tick, model by model."""
    for model in range(s.run[NUM_MODELS]):
        flip(s, model)
        for decoding in range(2):
            scale(s, model, decoding, now_s)


@compiled
def is_side(s: RunState, i: int, model: int, decoding: int) -> bool:
    """Whether an instance leads a group of a model on the side that decodes for others, or where requests enter."""
    leads = s.instance[i, SERVES] == model and s.instance[i, LEADER] == i
    return bool(leads and (s.instance[i, ROLE] == DECODE) == (decoding == 1))


@compiled
def count_side(s: RunState, model: int, decoding: int) -> tuple[int, int, int, int, int]:
    """Groups that are up, and those open; requests and waiting requests of the open, and the emptiest of these."""
    up, opened, requests, waiting, emptiest, least = 0, 0, 0, 0, NONE, 0
    for leader in range(len(s.instance)):
        life = s.instance[leader, LIFE]
        if is_side(s, leader, model, decoding) and STARTING <= life <= OPEN:
            up += 1
            if life == OPEN:
                outstanding = 0
                for i in range(leader, leader + s.instance[leader, MEMBERS]):
                    outstanding += s.outstanding[i]
                    waiting += s.instance[i, QUEUED]
                if emptiest == NONE or outstanding <= least:
                    emptiest, least = leader, outstanding
                opened += 1
                requests += outstanding
    return up, opened, requests, waiting, int(emptiest)


@compiled
def scale(s: RunState, model: int, decoding: int, now_s: float) -> None:
    """Starts a group where requests are many, drains the emptiest where they are few."""
    up, opened, requests, _, emptiest = count_side(s, model, decoding)
    if up < s.run[LEAST_OPEN] or requests > s.run_s[CROWDED_ABOVE] * up:
        for leader in range(len(s.instance)):
            if is_side(s, leader, model, decoding) and s.instance[leader, LIFE] == OFF:
                for i in range(leader, leader + s.instance[leader, MEMBERS]):
                    start(s, i, now_s, now_s + s.run_s[START_SECONDS])
                return
    elif opened == up > s.run[LEAST_OPEN] and requests < s.run_s[IDLE_BELOW] * opened:
        for i in range(emptiest, emptiest + s.instance[emptiest, MEMBERS]):
            s.instance[i, NEXT_ROLE] = NONE
            drain(s, i)


@compiled
def flip(s: RunState, model: int) -> None:
    """Gives the side where most requests wait the emptiest group of the other, if that has two and nothing drains."""
    if s.run_s[FLIP_ABOVE] == np.inf or s.run[NUM_DRAINING] > 0:
        return
    prefills, decodes, entering, handed, chosen = 0, 0, 0, 0, NONE
    for decoding in range(2):
        _, opened, _, waiting, emptiest = count_side(s, model, decoding)
        if decoding == 0:
            prefills, entering, chosen = opened, waiting, emptiest
        else:
            decodes, handed = opened, waiting
            if entering * decodes > handed * prefills:
                chosen = emptiest
    if prefills == 0 or decodes == 0 or entering * decodes == handed * prefills:
        return
    more = entering * decodes > handed * prefills  # wait for prefill
    crowded = entering / prefills if more else handed / decodes
    if crowded > s.run_s[FLIP_ABOVE] and (decodes if more else prefills) > 1:
        for i in range(chosen, chosen + s.instance[chosen, MEMBERS]):
            s.instance[i, NEXT_ROLE] = PREFILL if more else DECODE
            drain(s, i)
