"""A placement until lost ranks stand elsewhere: its groups without those that are hit, on the streams of its figures.

Requests of a model that no group is left for are late, all of them.
"""

from collections.abc import Collection

import numpy as np

from planner.errors import PlannerError
from planner.kinds.place.choose import claimed_streams
from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.kinds.place.reached import reached
from planner.kinds.place.restate import groups_of, stated_setting
from planner.kinds.place.setting import PlaceSetting
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.simulate.plans.lost import UntilThen
from planner.solvers.placement.group_streams import Group


def until_then(envelope: Envelope, decision: Decision, hit: Collection[str]) -> UntilThen:
    """The shares on time of a placement as planned, and without the groups that are hit.

    Raises PlannerError for layers, adapters and mixes of GPU types, NotAtHand for inputs that are not.
    """
    assert isinstance(decision, PlaceDecision)
    if not decision.hosts:
        what = f"placements of roles `{decision.roles[0].function}` are not simulated request by request"
        raise PlannerError(what, where="--simulate", hint="leave it out: what runs on follows from replicas")
    resolved = resolved_again(envelope.inputs, PlaceOptions, AtHand())
    setting = stated_setting(resolved, decision)
    groups = groups_of(setting, decision)
    left = tuple(group for group, role in zip(groups, decision.roles, strict=True) if role.name not in hit)
    planned, then = _shares(setting, groups), _shares(setting, left)
    limits = tuple(
        Finding("place.attainment", share >= wanted, f"{share:.2%} of `{name}` on time, {wanted:.2%} asked for", name)
        for name, wanted in zip(_names(setting), setting.required_M.tolist(), strict=True)
        for share in [then[f"attainment of {name}"]]
    )
    return UntilThen(planned, then, limits)


def _shares(setting: PlaceSetting, groups: tuple[Group, ...]) -> dict[str, float]:
    """The share of all requests on time, and of each workload's."""
    share, share_M = 0.0, np.zeros(len(setting.workloads))
    if groups:
        got = reached(setting.groups, groups, claimed_streams(setting))
        share, share_M = got.share, got.share_M
    own = {f"attainment of {name}": float(each) for name, each in zip(_names(setting), share_M, strict=True)}
    return {"attainment": share, **own}


def _names(setting: PlaceSetting) -> list[str]:
    """Of the workloads."""
    return [workload.spec.name for workload in setting.workloads]
