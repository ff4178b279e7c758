"""Judges what a serving plan says of failures: each is worked out again from its roles, places and proof."""

import math
from collections.abc import Iterator, Sequence

from planner.hardware.cluster import Pool
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.losses import MOST_BUSY, losses_of, spare_room
from planner.plan.findings import Finding
from planner.plan.instance_types import name_of_role
from planner.plan.placement import num_ranks
from planner.plan.sides import FFN, ffn_roles
from planner.problem.schema import Problem
from planner.solvers.mix import MixProblem
from planner.solvers.mix_model import Vars

RULE = "serve.availability"
REL_TOL = 1e-6
_WHERE, _HINT = "decision.availability", "solve again: what is left after a failure is not what the plan says"


def availability_findings(
    mix: MixProblem,
    decision: ServeDecision,
    problem: Problem,
    pools: Sequence[Pool],
    columns: Vars,
    values: Sequence[float],
) -> Iterator[Finding]:
    """Whether the rest carries its load after every failure, and whether the plan states what each leaves.

    Rates and loads are those of the proof, which other rules judge.
    """
    wanted, stated = problem.availability, decision.availability
    if wanted is None:
        if stated is not None:
            yield Finding(RULE, False, "states an availability that the problem does not ask for", _WHERE, _HINT)
        return
    if stated is None or (stated.level, stated.per) != (wanted.level, wanted.per):
        yield Finding(RULE, False, f"does not state what {wanted.text} leaves", _WHERE, _HINT)
        return
    by_name, rows = {pool.name: pool for pool in pools}, _rows(mix, decision, problem, columns, values)
    if rows is None or not _placed(decision, by_name):
        what = "not judged: the proof has not the instances of the plan, or they have no place"
        yield Finding(RULE, True, what, _WHERE, skipped=True)
        return
    loads = [
        [
            shape.rate_per_s[w] * values[columns.u[c, w].column] if (c, w) in columns.u else 0.0
            for w in range(len(mix.demands))
        ]
        for c, shape in enumerate(mix.shapes)
    ]
    counts = [round(values[n.column]) for n in columns.n]
    losses = losses_of(decision.roles, ffn_roles(decision), decision.placement, by_name, wanted.per)
    derived = spare_room(wanted, losses, mix, rows, counts, loads)
    worst = max((failure.busy for failure in derived.failures), default=0.0)
    yield Finding(RULE, worst <= MOST_BUSY, derived.text, _WHERE, "solve again, or add instances", approximate=True)
    told = {tuple(sorted(failure.lost.items())): failure.busy for failure in stated.failures}
    again = {tuple(sorted(failure.lost.items())): failure.busy for failure in derived.failures}
    same = told.keys() == again.keys() and all(
        math.isclose(told[lost], busy, rel_tol=REL_TOL) for lost, busy in again.items()
    )
    what = f"states {len(told)} failures{'' if same else ', and not what they leave'}"
    yield Finding(RULE, same, what, f"{_WHERE}.failures", _HINT)


def _placed(decision: ServeDecision, pools: dict[str, Pool]) -> bool:
    """Whether each role has a device for every rank, in a pool that is known."""
    ranks = {role.name: 0 for role in decision.roles}
    for block in decision.placement:
        if block.pool not in pools:
            return False
        ranks[block.role] += num_ranks(block)
    return all(ranks[role.name] == role.replicas * role.parallelism.devices for role in decision.roles)


def _rows(
    mix: MixProblem, decision: ServeDecision, problem: Problem, columns: Vars, values: Sequence[float]
) -> dict[str, int] | None:
    """The instance type of each role in the proof, one for each; None where one has none."""
    labels, sides = [pool.label for pool in problem.cluster.pools], ffn_roles(decision)
    rows: dict[str, int] = {}
    for role in decision.roles:
        if role.function == FFN:
            continue
        name = name_of_role(role, sides.get(role.name))
        for c, shape in enumerate(mix.shapes):
            same = shape.name.partition("#")[0] == name and labels[shape.pool] == role.pool
            if same and c not in rows.values() and round(values[columns.n[c].column]) == role.replicas:
                rows[role.name] = c
                break
        else:
            return None
    return rows
