"""What a plan says of the own runs that its calibration carries: how much longer its steps are by them, if at all."""

import math
from collections.abc import Iterator

from planner.costs.rates.spread import group_of_runs
from planner.kinds.serve.steady.search import ServeSetting


def run_assumptions(setting: ServeSetting) -> Iterator[str]:
    """One line a group of runs of the problem that own runs tell of, or one where they are of others alone."""
    runs, resolved = setting.calibration.runs, setting.resolved
    groups = {
        group_of_runs(arch, pool.node.accelerator.name, resolved.problem.engine.name)
        for arch in resolved.models.values()
        for pool in resolved.pools
    }
    for group in sorted(groups.intersection(runs)):
        change, told = math.expm1(runs[group].mean), runs[group].runs
        yield (
            f"steps of {group} are {abs(change):.1%} {'longer' if change >= 0 else 'shorter'} than the costs say, as "
            f"{told} own run{'s' * (told != 1)} of it tell{'s' * (told == 1)}"
        )
    if runs and not groups.intersection(runs):
        yield f"the own runs of the calibration are of {', '.join(sorted(runs))}, and move nothing here"
