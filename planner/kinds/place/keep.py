"""Groups laid where most of what they hold stands already, and fewer of them changed for a stated loss."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import PlannerError
from planner.kinds.place.choose import Choice, claimed_streams, judged_streams
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.floor import stands
from planner.kinds.place.reached import reached
from planner.kinds.place.restate import groups_of, stated_setting
from planner.kinds.place.setting import PlaceSetting
from planner.kinds.place.solve import envelope, fewest
from planner.plan.copies import memory_of, role_copies
from planner.plan.placement import devices
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.solvers.placement.group_streams import Group
from planner.solvers.placement.regroup import Copy


def copies(decision: Decision) -> Iterator[Copy]:
    """An engine of each model of a group, with an equal part of what engines take beside weights and caches.

    Engines with adapters are copies of their base. Raises PlannerError for mixes of GPU types and for layers.
    """
    assert isinstance(decision, PlaceDecision)
    if decision.roles[0].function in ("mix", "stage"):
        what = "no copies of whole models stand in a mix of GPU types, or where layers are spread over nodes"
        raise PlannerError(what, where="--from", hint="leave `--from` out")
    return _of_hosts(decision) if decision.hosts else role_copies(decision)


def _of_hosts(decision: PlaceDecision) -> Iterator[Copy]:
    places = {block.role: tuple((block.pool, device) for device in devices(block)) for block in decision.placement}
    roles = {role.name: role for role in decision.roles}
    number = Counter(host.group for host in decision.hosts)
    for host in decision.hosts:
        memory, where = memory_of(roles[host.group]), places[host.group]
        beside = memory.used_bytes - memory.weights_bytes - memory.kv_cache_bytes
        taken = host.weights_bytes + host.kv_cache_bytes + beside / number[host.group]
        yield Copy(host.model, where, taken, host.weights_bytes * len(where))


def near(resolved: Resolved, plan: Envelope, running: Decision, loss: float) -> Envelope:
    """The plan with its groups laid where their models stand, fewer of them changed where the loss allows it.

    Raises PlannerError for a loss of anything but the share of requests on time.
    """
    chosen = PlaceDecision.model_validate(plan.decision)
    assert isinstance(running, PlaceDecision)
    if not chosen.hosts or not running.hosts:
        _refuse(loss)
        return plan
    setting = stated_setting(resolved, chosen)
    groups = groups_of(setting, chosen)
    stated = {block.role: tuple(devices(block)) for block in chosen.placement}
    places = tuple(stated[role.name] for role in chosen.roles)
    now = reached(setting.groups, groups, claimed_streams(setting))
    before = standing(setting, running)
    choice = laid(Choice(setting, groups, places, now, plan.certificate.bound), before)
    if fewest(setting):
        _refuse(loss)
        return envelope(choice)
    return envelope(nearer(choice, before, loss))


def _refuse(loss: float) -> None:
    if loss:
        what = "a loss is of requests on time, by placements of models on groups that maximise attainment"
        raise PlannerError(what, where="--loss", hint="leave `--loss` out")


@dataclass(frozen=True, slots=True)
class Standing:
    """Groups that run, by their devices in order."""

    groups: dict[tuple[int, ...], Group]


def standing(setting: PlaceSetting, decision: PlaceDecision) -> Standing:
    """What a plan stands on in terms of the problem; groups of other shapes and models of no workload are left out."""
    shapes = {(each.tp, each.pp): index for index, each in enumerate(setting.prices.degrees)}
    models = {workload.model: index for index, workload in enumerate(setting.workloads)}
    places = {block.role: tuple(devices(block)) for block in decision.placement if block.pool == setting.pool.name}
    groups = {}
    for role in decision.roles:
        shape = shapes.get((role.parallelism.tp, role.parallelism.pp))
        held = [models[host.model] for host in decision.hosts if host.group == role.name and host.model in models]
        if shape is not None and role.name in places:
            groups[places[role.name]] = Group(shape, tuple(sorted(held)))
    return Standing(groups)


def laid(choice: Choice, before: Standing) -> Choice:
    """The same groups, those of a size in the order that brings fewest bytes; their traffic is laid with them."""
    from scipy.optimize import linear_sum_assignment

    setting, places = choice.setting, choice.places
    order = list(range(len(choice.groups)))
    for size in sorted({len(place) for place in places}):
        members = [index for index, place in enumerate(places) if len(place) == size]
        cost = [[_brought(setting, choice.groups[group], places[at], before) for at in members] for group in members]
        rows, columns = linear_sum_assignment(np.array(cost))
        for row, column in zip(rows, columns, strict=True):
            order[members[int(column)]] = members[int(row)]
    groups = tuple(choice.groups[index] for index in order)
    if not stands(setting.floor, setting.kinds(groups), places, setting.options):
        return choice
    got = reached(setting.groups, groups, claimed_streams(setting))
    return replace(choice, groups=groups, reached=got)


def nearer(choice: Choice, before: Standing, loss: float) -> Choice:
    """Fewer groups changed, as long as the share on time is within the loss of the choice's, and limits are kept.

    From what runs, the groups of the choice are put in place one after the other, each time the one that gains most a
    byte on streams that tell climbs apart; the figures are of the claimed streams, on which the loss holds too.
    """
    setting, places = choice.setting, choice.places
    if loss <= 0.0 or set(places) != set(before.groups):
        return choice
    least = choice.reached.share * (1.0 - loss)
    judged, claimed = judged_streams(setting), claimed_streams(setting)
    now = [before.groups[place] for place in places]
    left = [at for at, group in enumerate(choice.groups) if group != now[at]]
    while True:
        if setting.groups.feasible(now) and stands(setting.floor, setting.kinds(now), places, setting.options):
            got = reached(setting.groups, now, claimed)
            if got.share >= least and (got.share_M >= np.minimum(setting.required_M, choice.reached.share_M)).all():
                return replace(choice, groups=tuple(now), reached=got)
        if not left:
            return choice
        share = reached(setting.groups, now, judged).share
        gains = []
        for at in left:
            tried = [*now[:at], choice.groups[at], *now[at + 1 :]]
            gained = reached(setting.groups, tried, judged).share - share if setting.groups.feasible(tried) else -1.0
            gains.append(gained / max(_brought(setting, choice.groups[at], places[at], before), 1.0))
        best = left.pop(int(np.argmax(gains)))
        now[best] = choice.groups[best]


def _brought(setting: PlaceSetting, group: Group, place: tuple[int, ...], before: Standing) -> float:
    """Bytes of the models of a group that do not stand there, in its shape."""
    there = before.groups.get(place)
    held = there.models if there is not None and there.shape == group.shape else ()
    weights_M = setting.prices.weights_CM[group.shape]
    return float(sum(weights_M[model] for model in group.models if model not in held) * len(place))
