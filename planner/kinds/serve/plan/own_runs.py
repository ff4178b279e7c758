"""What a plan says of the runs that its calibration carries: how much longer its steps are by them, and how sure."""

import math
from collections.abc import Iterator, Sequence

from planner.costs.operators.work import Shards
from planner.costs.rates.likeness import ErrorBelief
from planner.costs.rates.spread import group_of_runs
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.roles_in_use import RoleInUse, Side, margins_in_use
from planner.kinds.serve.steady.search import ServeSetting, spreads_of
from planner.plan.schema import LimitMargins, TimeBelief
from planner.problem.confidence import confidence_of


def run_assumptions(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[str]:
    """One line a group of the problem that runs tell of, and one where a user's own are of others alone.

    Where each run is known, a line for each role in use says what those most like it tell.
    """
    runs, fitted, resolved = setting.calibration.runs, setting.calibration.groups, setting.resolved
    groups = {
        group_of_runs(arch, pool.node.accelerator.name, resolved.problem.engine.name)
        for arch in resolved.models.values()
        for pool in resolved.pools
    }
    for group in sorted(groups.intersection(runs)):
        told = runs[group].runs
        whose = "run" if group in fitted else "own run"
        yield (
            f"steps of {group} are {_change(runs[group].mean)} than the costs say, as "
            f"{told} {whose}{'s' * (told != 1)} of it tell{'s' * (told == 1)}"
        )
    yield from _of_roles(setting, used)
    own = sorted(set(runs) - fitted)
    if own and not groups.intersection(own):
        yield f"the own runs of the calibration are of {', '.join(own)}, and move nothing here"


def time_beliefs(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[TimeBelief]:
    """Of both times of each workload whose TPOT own runs tell."""
    for workload, target in zip(setting.resolved.workloads, setting.targets, strict=True):
        told = {item.role: own for item in _decoding(used, target) if (own := _told(setting, item)) is not None}
        if not told:
            continue
        role = max(told, key=lambda name: float(told[name].half[0]))
        half = float(told[role].half[0])
        first = spreads_of(setting.resolved, workload, setting.calibration).get("ttft")
        if first is not None:
            yield TimeBelief(of=target.name, metric="ttft_s", low=-first.sides[0], high=first.sides[1])
        yield TimeBelief(of=target.name, metric="tpot_s", role=role, low=-half, high=half, freedom=told[role].freedom)


def limit_margins(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[LimitMargins]:
    """By how much limits are divided, of every workload that has a confidence."""
    for workload, target in zip(setting.resolved.workloads, setting.targets, strict=True):
        confidence = confidence_of(workload.spec.slo, setting.resolved.confidence)
        if confidence is not None:
            margins = margins_in_use(target, (_side(setting, item) for item in _decoding(used, target)))
            yield LimitMargins(of=target.name, confidence=confidence, ttft=margins.ttft, tpot=margins.tpot)


def margin_assumptions(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[str]:
    """By how much limits at a confidence are divided: one line a workload."""
    for margins in limit_margins(setting, used):
        yield (
            f"for a confidence of {margins.confidence:g} limits of `{margins.of}` are divided: TTFT by"
            f" {margins.ttft:.3g}, TPOT and latency by {margins.tpot:.3g}"
        )


def _of_roles(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[str]:
    gpus = sum(item.count * item.candidate.devices for item in used)
    if setting.spread_gpus not in (None, gpus):
        yield f"own runs are taken at the share of the clients that instances have of {setting.spread_gpus} GPUs"
    for item in used:
        told = _told(setting, item)
        if told is None or item.candidate.ffn is not None:
            continue
        (mean,), (half,) = told.mean, told.half
        yield (
            f"of these, steps of `{item.role}` are {_change(mean)} than the costs say, by the own runs most like it "
            f"(80 %: from {_change(mean - half)} to {_change(mean + half)})"
        )


def _decoding(used: Sequence[RoleInUse], target: Target) -> list[RoleInUse]:
    """The roles that decode for a target."""
    return [item for item in used if item.load_per_s[target.index] > 0.0 and item.candidate.function != "prefill"]


def _told(setting: ServeSetting, item: RoleInUse) -> ErrorBelief | None:
    function, costs, shards = _side(setting, item)
    return None if costs.near is None else costs.near.of_role(function).told(shards)


def _side(setting: ServeSetting, item: RoleInUse) -> Side:
    candidate = item.candidate
    costs, shards = setting.costs_of_pool[candidate.model, candidate.pool], Shards.of(*candidate.shape.all_degrees)
    return candidate.function, costs, shards


def _change(mean: float) -> str:
    change = math.expm1(mean)
    return f"{abs(change):.1%} {'longer' if change >= 0 else 'shorter'}"
