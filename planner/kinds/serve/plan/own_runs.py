"""What a plan says of the runs that its calibration carries: how much longer its steps are by them, if at all."""

import math
from collections.abc import Iterator, Sequence

from planner.costs.operators.work import Shards
from planner.costs.rates.spread import group_of_runs
from planner.costs.serving.own_runs import near_runs
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import ServeSetting


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


def _of_roles(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[str]:
    pools, problem = setting.resolved.pools, setting.resolved.problem
    for item in used:
        model, pool = item.candidate.model, pools[item.candidate.pool]
        arch = setting.resolved.models[model]
        near = near_runs(setting.calibration, arch, pool, problem, model, pools)
        if near is None or item.candidate.ffn is not None:
            continue
        shards = Shards.of(*item.candidate.shape.all_degrees)
        (mean,), (half,) = near.of_role(item.candidate.function).told(shards)
        yield (
            f"of these, steps of `{item.role}` are {_change(mean)} than the costs say, by the own runs most like it "
            f"(80 %: from {_change(mean - half)} to {_change(mean + half)})"
        )


def _change(mean: float) -> str:
    change = math.expm1(mean)
    return f"{abs(change):.1%} {'longer' if change >= 0 else 'shorter'}"
