"""What a plan says of the runs that its calibration carries: how much longer its steps are by them, if at all."""

import math
from collections.abc import Iterator

from planner.costs.rates.spread import group_of_runs
from planner.kinds.serve.steady.search import ServeSetting


def run_assumptions(setting: ServeSetting) -> Iterator[str]:
    """One line a group of the problem that runs tell of, and one where a user's own are of others alone."""
    runs, fitted, resolved = setting.calibration.runs, setting.calibration.groups, setting.resolved
    groups = {
        group_of_runs(arch, pool.node.accelerator.name, resolved.problem.engine.name)
        for arch in resolved.models.values()
        for pool in resolved.pools
    }
    for group in sorted(groups.intersection(runs)):
        change, told = math.expm1(runs[group].mean), runs[group].runs
        whose = "run" if group in fitted else "own run"
        yield (
            f"steps of {group} are {abs(change):.1%} {'longer' if change >= 0 else 'shorter'} than the costs say, as "
            f"{told} {whose}{'s' * (told != 1)} of it tell{'s' * (told == 1)}"
        )
    own = sorted(set(runs) - fitted)
    if own and not groups.intersection(own):
        yield f"the own runs of the calibration are of {', '.join(own)}, and move nothing here"
