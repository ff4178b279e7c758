"""Engines that batch and share groups of devices in turns (numba). J request, M model, G group, C shape, B running."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part_options

PREFILL, DECODE, IDLE = 0, 1, -1
LATEST = np.iinfo(np.int64).max
_numba: Any = numba  # options of the jit that its stubs leave out
F = TypeVar("F", bound=Callable[..., object])


def _program(function: F) -> F:
    """It makes no array, so that references to arrays, which callers hold, are not counted: 13 times faster."""
    return kept(cast(F, _numba.njit(error_model="numpy", _nrt=False)(function)))


def _part(function: F) -> F:
    """What the program calls, with no machine code of its own."""
    wrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, _numba.njit(error_model="numpy", _nrt=False, **wrapped, **part_options())(function))


class Rules(NamedTuple):
    """Figures of shapes and models, and where each model lives; see `placement.batched_groups`."""

    hosts_MG: Ints
    count_M: Ints
    shape_G: Ints
    models_GM: Ints  # the models of each group, -1 behind the last
    most_M: Ints
    chunk_M: Ints
    room_M: Ints
    decode_s_CMBX: Floats
    context_X: Floats
    prefill_s_CMT: Floats
    prompt_T: Floats
    limit_s_M3: Floats
    weight_M: Ints  # of a late request beyond those that its model may have, beside 1


class Requests(NamedTuple):
    """What comes, and what becomes of it: times of first and last token, and the group, by request."""

    time_J: Floats
    model_J: Ints
    prompt_J: Ints
    answer_J: Ints
    first_s_J: Floats
    last_s_J: Floats
    group_J: Ints
    after_J: Ints  # the next of its queue
    until_J: Ints  # the decoding step of its engine that gives its last token
    draw_J2: Floats  # in [0, 1): the two groups between which it chooses


class Engines(NamedTuple):
    """Groups as they stand."""

    ends_s_G: Floats  # of the step that runs
    model_G: Ints  # of that step, or of the last one
    step_G: Ints
    head_GM: Ints
    tail_GM: Ints
    running_GMB: Ints
    count_GM: Ints
    steps_GM: Ints  # of decoding, so far
    soonest_GM: Ints  # of the steps that give running requests their last tokens
    tokens_GM: Ints  # that running requests have reserved
    context_GM: Ints  # that they have, together
    high_GM: Ints  # of the points of contexts, the one above theirs when they last decoded
    joining_GB: Ints
    joining_G: Ints
    flight_GM: Ints
    left_M: Ints  # late requests that a model may have still


@_program
def lost(rules: Rules, requests: Requests, engines: Engines, judged: int, most: int) -> int:
    """Late requests of those from `judged` on, by their weights, up to one more than `most`."""
    total = 0
    for j in range(len(requests.time_J)):
        now, model = requests.time_J[j], requests.model_J[j]
        hosts = rules.count_M[model]
        refused = requests.prompt_J[j] + requests.answer_J[j] > rules.room_M[model]
        if hosts == 0 or refused:
            total += _weight(rules, engines, model) if j >= judged else 0
            continue
        first = int(requests.draw_J2[j, 0] * hosts)
        second = (first + 1 + int(requests.draw_J2[j, 1] * (hosts - 1))) % hosts
        group, other = rules.hosts_MG[model, first], rules.hosts_MG[model, second]
        total += _until(rules, requests, engines, group, now, judged)
        total += _until(rules, requests, engines, other, now, judged)
        if total > most:
            return most + 1
        if engines.flight_GM[other, model] < engines.flight_GM[group, model]:
            group = other
        _queued(requests, engines, group, model, j)
        if engines.step_G[group] == IDLE:
            _started(rules, requests, engines, group, now)
    for group in range(len(rules.shape_G)):
        total += _until(rules, requests, engines, group, np.inf, judged)
    return total


@_part
def _queued(requests, engines, group, model, j):
    requests.group_J[j] = group
    requests.after_J[j] = -1
    if engines.head_GM[group, model] < 0:
        engines.head_GM[group, model] = j
    else:
        requests.after_J[engines.tail_GM[group, model]] = j
    engines.tail_GM[group, model] = j
    engines.flight_GM[group, model] += 1


@_part
def _until(rules, requests, engines, group, now, judged):
    """Ends the steps of a group up to a time; what the requests weigh that ended late."""
    total = 0
    while engines.step_G[group] != IDLE and engines.ends_s_G[group] <= now:
        if engines.step_G[group] == PREFILL:
            total += _prefilled(rules, requests, engines, group, judged)
        else:
            _alike(rules, requests, engines, group, now)
            if engines.ends_s_G[group] > now:
                break
            total += _decoded(rules, requests, engines, group, judged)
        _started(rules, requests, engines, group, engines.ends_s_G[group])
    return total


@_part
def _alike(rules, requests, engines, group, now):
    """Steps of decoding up to a time, in turn, as long as no prompt can join and no request has its last token."""
    count, place = 0, 0
    while count < rules.models_GM.shape[1] and rules.models_GM[group, count] >= 0:
        model = rules.models_GM[group, count]
        if _can_join(rules, requests, engines, group, model):
            return
        if model == engines.model_G[group]:
            place = count
        count += 1
    while engines.ends_s_G[group] <= now:
        model = engines.model_G[group]
        if engines.steps_GM[group, model] + 1 >= engines.soonest_GM[group, model]:
            return
        engines.context_GM[group, model] += engines.count_GM[group, model]
        engines.steps_GM[group, model] += 1
        place = (place + 1) % count
        while engines.count_GM[group, rules.models_GM[group, place]] == 0:
            place = (place + 1) % count
        engines.model_G[group] = rules.models_GM[group, place]
        engines.ends_s_G[group] += _decode_s(rules, engines, group, engines.model_G[group])


@_part
def _can_join(rules, requests, engines, group, model):
    """Whether the first prompt that waits has a place and room."""
    j = engines.head_GM[group, model]
    if j < 0 or engines.count_GM[group, model] >= rules.most_M[model]:
        return False
    return engines.tokens_GM[group, model] + requests.prompt_J[j] + requests.answer_J[j] <= rules.room_M[model]


@_part
def _prefilled(rules, requests, engines, group, judged):
    end, model, total = engines.ends_s_G[group], engines.model_G[group], 0
    for b in range(engines.joining_G[group]):
        j = engines.joining_GB[group, b]
        requests.first_s_J[j] = end
        if requests.answer_J[j] == 1:
            total += _ended(rules, requests, engines, group, model, j, end, judged)
        else:
            until = engines.steps_GM[group, model] + requests.answer_J[j] - 1
            requests.until_J[j] = until
            if engines.count_GM[group, model] == 0 or until < engines.soonest_GM[group, model]:
                engines.soonest_GM[group, model] = until
            engines.running_GMB[group, model, engines.count_GM[group, model]] = j
            engines.count_GM[group, model] += 1
            engines.context_GM[group, model] += requests.prompt_J[j] + 1
    engines.joining_G[group] = 0
    return total


@_part
def _decoded(rules, requests, engines, group, judged):
    """All running requests get a token; they are looked at where one of them has its last."""
    end, model, total = engines.ends_s_G[group], engines.model_G[group], 0
    engines.context_GM[group, model] += engines.count_GM[group, model]
    engines.steps_GM[group, model] += 1
    step = engines.steps_GM[group, model]
    if step < engines.soonest_GM[group, model]:
        return 0
    b, soonest = 0, LATEST
    while b < engines.count_GM[group, model]:
        j = engines.running_GMB[group, model, b]
        if requests.until_J[j] > step:
            soonest = min(soonest, requests.until_J[j])
            b += 1
            continue
        engines.count_GM[group, model] -= 1
        engines.running_GMB[group, model, b] = engines.running_GMB[group, model, engines.count_GM[group, model]]
        engines.context_GM[group, model] -= requests.prompt_J[j] + requests.answer_J[j]
        total += _ended(rules, requests, engines, group, model, j, end, judged)
    engines.soonest_GM[group, model] = soonest
    return total


@_part
def _ended(rules, requests, engines, group, model, j, end, judged):
    """What the request weighs where it was late and is judged."""
    requests.last_s_J[j] = end
    engines.tokens_GM[group, model] -= requests.prompt_J[j] + requests.answer_J[j]
    engines.flight_GM[group, model] -= 1
    first, came = requests.first_s_J[j], requests.time_J[j]
    late = first - came > rules.limit_s_M3[model, 0] or end - came > rules.limit_s_M3[model, 2]
    if requests.answer_J[j] > 1:
        late = late or end - first > rules.limit_s_M3[model, 1] * (requests.answer_J[j] - 1)
    return _weight(rules, engines, model) if late and j >= judged else 0


@_part
def _weight(rules, engines, model):
    """Of a late request: 1 where its model may have one more, which it takes."""
    if engines.left_M[model] > 0:
        engines.left_M[model] -= 1
        return 1
    return 1 + rules.weight_M[model]


@_part
def _started(rules, requests, engines, group, now):
    """The next step: of the next model in turn that has work; prompts before decoding."""
    count, last = 0, 0
    while count < rules.models_GM.shape[1] and rules.models_GM[group, count] >= 0:
        count += 1
        if rules.models_GM[group, count - 1] == engines.model_G[group]:
            last = count
    for turn in range(count):
        model = rules.models_GM[group, (last + turn) % count]
        if _joined(rules, requests, engines, group, model) or engines.count_GM[group, model] > 0:
            engines.model_G[group] = model
            prefills = engines.joining_G[group] > 0
            engines.step_G[group] = PREFILL if prefills else DECODE
            engines.ends_s_G[group] = now + _step_s(rules, requests, engines, group, model)
            return
    engines.step_G[group] = IDLE


@_part
def _joined(rules, requests, engines, group, model):
    """Prompts that the next step takes: in order, whole, up to its tokens, where sequences and cache have room."""
    tokens, number = 0, 0
    j = engines.head_GM[group, model]
    while j >= 0 and engines.count_GM[group, model] + number < rules.most_M[model]:
        prompt, whole = requests.prompt_J[j], requests.prompt_J[j] + requests.answer_J[j]
        if number > 0 and tokens + prompt > rules.chunk_M[model]:
            break
        if engines.tokens_GM[group, model] + whole > rules.room_M[model]:
            break
        engines.tokens_GM[group, model] += whole
        engines.joining_GB[group, number] = j
        tokens, number = tokens + prompt, number + 1
        j = requests.after_J[j]
    engines.head_GM[group, model] = j
    engines.joining_G[group] = number
    return number > 0


@_part
def _step_s(rules, requests, engines, group, model):
    shape, joining = rules.shape_G[group], engines.joining_G[group]
    if joining > 0:
        tokens = 0
        for b in range(joining):
            tokens += requests.prompt_J[engines.joining_GB[group, b]]
        high, share = _bracket(rules.prompt_T, float(tokens), 1)
        low_s, high_s = rules.prefill_s_CMT[shape, model, high - 1], rules.prefill_s_CMT[shape, model, high]
        return low_s + share * (high_s - low_s)
    return _decode_s(rules, engines, group, model)


@_part
def _decode_s(rules, engines, group, model):
    shape, count = rules.shape_G[group], engines.count_GM[group, model]
    context = engines.context_GM[group, model] / count
    high, share = _bracket(rules.context_X, context, engines.high_GM[group, model])
    engines.high_GM[group, model] = high
    low_s = rules.decode_s_CMBX[shape, model, count, high - 1]
    return low_s + share * (rules.decode_s_CMBX[shape, model, count, high] - low_s)


@_part
def _bracket(axis, point, near):
    """The place of the next value of an axis, looked for from near it, and how far towards it, beyond them too."""
    high = near
    while high > 1 and axis[high - 1] >= point:
        high -= 1
    while high < len(axis) - 1 and axis[high] < point:
        high += 1
    return high, (point - axis[high - 1]) / (axis[high] - axis[high - 1])
