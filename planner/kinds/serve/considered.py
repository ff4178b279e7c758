"""Every instance type that answers were chosen from: those in the proof, and those that were left out before it.

Each stands where it is when used up to the limits, or at its full batch where it cannot keep them.
"""

from collections.abc import Iterator

import numpy as np

from planner.kinds.serve.steady.candidates import JudgedPoints
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import list_candidates, prepare
from planner.plan.considered import Considered, Standing
from planner.plan.instance_types import type_name, unit_name
from planner.problem.resolve import Resolved


def considered(resolved: Resolved) -> list[Considered]:
    """Those that decode, of every model on every pool; raises PlannerError for what cannot be priced."""
    setting, judged = prepare(resolved), list[JudgedPoints]()
    list_candidates(setting, setting.targets, Tally(), judged)
    names = [pool.name for pool in setting.resolved.pools]
    by_type: dict[tuple[str, str], Considered] = {}
    for role in judged:
        if role.function != "prefill" and len(role.points):
            for each in _of_role(role, names):  # every channel judges the same types again
                by_type.setdefault((each.name, each.pool), each)
    return list(by_type.values())


def _of_role(role: JudgedPoints, pools: list[str]) -> Iterator[Considered]:
    points, target, rates = role.points, role.target, role.rates
    full_per_s = points.batch * points.shards.dp / (target.osl * np.maximum(role.timed.tpot_s, 1e-12))
    rate_per_s = np.where(rates.rate_per_s > 0.0, rates.rate_per_s, full_per_s)
    kept = np.zeros(len(points), dtype=np.bool_)
    kept[role.kept] = True
    for row in np.flatnonzero(points.fits[0]).tolist():
        shape, ffn = role.shape_of(row)
        limits = (int(points.batch[row]), int(points.chunk[row]), int(points.drafts[row]))
        name = type_name(role.function, role.model, shape.degrees, *limits)
        devices = shape.devices
        if ffn is not None:
            name = unit_name(name, ffn.shape.degrees, ffn.micro_batches, None)
            devices += ffn.shape.devices
        standing: Standing = "proof" if kept[row] else "dominated" if rates.good[row] else "limit"
        yield Considered(
            name,
            pools[role.pool],
            standing,
            tokens_per_s_per_user=float(target.osl / max(rates.stay_s[row], 1e-12)),
            tokens_per_s_per_gpu=float(rate_per_s[row] * target.osl / devices),
        )
