"""The mix that a serving plan's roles, routes and rates are: instance types of the search, counts, loads and flows.

Roles say which types there are and how many, routes how each workload is shared out, and a rate of each workload how
much of it. The last is the plan's own in its proof; where it has none, a goodput plan serves as much as its instances
can, others what they are asked for.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.formulate import Formulated
from planner.kinds.serve.steady.search import ServeSetting
from planner.plan.instance_types import name_of_role
from planner.plan.schema import Envelope, Role
from planner.plan.sides import FFN, ffn_roles
from planner.solvers.mix import Flow, MixProblem, MixSolution, part_of_planned, port_bytes_per_s
from planner.solvers.mix_model import Vars

Rates = tuple[float, ...]
"""Requests a second by target."""


@dataclass(frozen=True, slots=True)
class TakenRole:
    """A role with its instance type, and the share of every workload that comes to it."""

    role: Role
    row: int  # of the candidates
    share_of: Rates
    count: int


def taken_roles(
    setting: ServeSetting, formulated: Formulated, envelope: Envelope, decision: ServeDecision
) -> tuple[Formulated, list[TakenRole]]:
    """The roles as instance types of the search, and the candidates, those of several roles once for each.

    Raises PlannerError for a role that is no instance type of the search.
    """
    candidates, taken = list(formulated.candidates), list[TakenRole]()
    partners = ffn_roles(decision)
    points = _counts(envelope)
    roles = [role for role in decision.roles if role.function != FFN]
    rows_of = {role.name: _rows(role, partners.get(role.name), setting, candidates) for role in roles}
    in_one_channel(decision, rows_of, candidates)
    for role in roles:
        row = _row(role, rows_of[role.name], candidates, points, {own.row for own in taken})
        if any(own.row == row for own in taken):
            candidates.append(replace(candidates[row]))
            row = len(candidates) - 1
        shares = tuple(_into(decision, role.name, target.name) for target in setting.targets)
        taken.append(TakenRole(role, row, shares, role.replicas))
    return replace(formulated, candidates=tuple(candidates)), taken


def mix_of(
    setting: ServeSetting,
    formulated: Formulated,
    taken: Sequence[TakenRole],
    decision: ServeDecision,
    rates: Rates | None,
) -> MixSolution:
    """The solution that roles and routes are at these rates of the workloads; without, at as much as they can take.

    Raises PlannerError for a workload that no role takes in.
    """
    candidates = formulated.candidates
    for target in setting.targets:
        if not any(own.share_of[target.index] > 0.0 for own in taken if not candidates[own.row].decodes):
            raise PlannerError(f"nothing of workload `{target.name}` comes to a role", where="decision.routing")
    served = _served(setting, formulated, candidates, taken) if rates is None else rates
    counts, loads = [0] * len(candidates), [(0.0,) * len(setting.targets) for _ in candidates]
    for own in taken:
        counts[own.row] = own.count
        loads[own.row] = tuple(share * rate for share, rate in zip(own.share_of, served, strict=True))
    shapes = [formulated.problem.shapes[searched_row(formulated, own.row)] for own in taken]
    return MixSolution(
        counts=tuple(counts),
        load_per_s=tuple(loads),
        flows=tuple(_flows(candidates, setting, decision, taken, served)),
        served_per_s=served,
        devices=sum(shape.devices * own.count for shape, own in zip(shapes, taken, strict=True)),
        price_per_hour=math.fsum(shape.price_per_hour * own.count for shape, own in zip(shapes, taken, strict=True)),
    )


def searched_row(formulated: Formulated, row: int) -> int:
    """The row of a candidate among the shapes of the search, of one that stands for a second role too."""
    if row < len(formulated.problem.shapes):
        return row
    return next(index for index, known in enumerate(formulated.candidates) if known == formulated.candidates[row])


def rates_of(problem: MixProblem, columns: Vars, values: Sequence[JsonValue]) -> Rates | None:
    """What the point of a proof serves of each workload; None where the point is none."""
    served = [values[column.column] for column in columns.d if column.column < len(values)]
    if len(served) != len(problem.demands):
        return None
    return tuple(
        float(rate) * columns.rate_unit_per_s * part_of_planned(problem, w)
        for w, rate in enumerate(served)
        if isinstance(rate, int | float)
    )


def _rows(role: Role, ffn: Role | None, setting: ServeSetting, candidates: Sequence[Candidate]) -> list[int]:
    """The candidates that a role can be; those for most instances together first. Raises PlannerError for none."""
    name, pools = name_of_role(role, ffn), [pool.name for pool in setting.resolved.pools]
    rows = [
        row
        for row, candidate in enumerate(candidates)
        if candidate.name.partition("#")[0] == name
        and pools[candidate.pool] == role.pool
        and candidate.together <= role.replicas
    ]
    if not rows:
        what = f"is no instance type of the search: {name.replace('/', ' ')}"
        raise PlannerError(
            what, where=f"decision.roles.{role.name}", hint="such instances do not fit, or break a limit"
        )
    return sorted(rows, key=lambda row: -candidates[row].together)


def in_one_channel(decision: ServeDecision, rows_of: dict[str, list[int]], candidates: Sequence[Candidate]) -> None:
    """Of roles that hand over to each other, only candidates of a channel that all of them have stay, where one is."""
    from networkx import Graph, connected_components

    pairs = [(route.source, route.to) for route in decision.routing if route.source in rows_of and route.to in rows_of]
    for joined in connected_components(Graph(pairs)):
        common = set.intersection(*({_channel(candidates[row]) for row in rows_of[name]} for name in joined))
        for name in joined if common else ():
            rows_of[name] = [row for row in rows_of[name] if _channel(candidates[row]) in common]


def _channel(candidate: Candidate) -> int | None:
    return None if candidate.channel is None else candidate.channel.index


def _row(
    role: Role,
    rows: Sequence[int],
    candidates: Sequence[Candidate],
    points: Mapping[tuple[str, int], float],
    used: set[int],
) -> int:
    """The candidate that a role is; of several channels one that the proof uses and that no other role is."""
    in_use = {row: points.get(_key(candidates[row]), 0.0) for row in rows}
    named = [row for row in rows if in_use[row] == role.replicas]
    free = [row for row in named or rows if row not in used]
    return (free or rows)[0]


def _key(candidate: Candidate) -> tuple[str, int]:
    return candidate.name, candidate.pool


def _counts(envelope: Envelope) -> dict[tuple[str, int], float]:
    """Instances by type and pool of the point of the proof."""
    values, mix = envelope.certificate.proof.get("values"), envelope.certificate.proof.get("mix")
    shapes = mix.get("shapes") if isinstance(mix, dict) else None
    if not isinstance(values, list) or not isinstance(shapes, list):
        return {}
    keys = [_stated_key(shape) if isinstance(shape, dict) else None for shape in shapes]
    pairs = zip(keys, values, strict=False)
    return {key: float(count) for key, count in pairs if key is not None and isinstance(count, int | float)}


def _stated_key(shape: Mapping[str, JsonValue]) -> tuple[str, int] | None:
    """The name and the pool of a shape in a proof; None where either is none."""
    name, pool = shape.get("name"), shape.get("pool")
    return (name, pool) if isinstance(name, str) and isinstance(pool, int) else None


def _into(decision: ServeDecision, role: str, workload: str) -> float:
    return math.fsum(route.share for route in decision.routing if (route.to, route.workload) == (role, workload))


def _served(
    setting: ServeSetting, formulated: Formulated, candidates: Sequence[Candidate], taken: Sequence[TakenRole]
) -> Rates:
    """What is asked for; of a goodput plan, the most that its instances and their ports take at these shares."""
    problem = formulated.problem
    if not problem.maximising:
        return tuple(target.rate_per_s or _held(target, candidates, taken) for target in setting.targets)
    most = [
        target.rate_per_s / target.share for target in setting.targets if target.rate_per_s is not None and target.share
    ]
    weights = [target.share for target in setting.targets]
    for own in taken:
        shape = problem.shapes[searched_row(formulated, own.row)]
        shares = [share * weight for share, weight in zip(own.share_of, weights, strict=True)]
        busy = math.fsum(s / rate for s, rate in zip(shares, shape.rate_per_s, strict=True) if s > 0.0 and rate > 0.0)
        most += [own.count / busy] if busy > 0.0 else []
        port = port_bytes_per_s(shape)
        moved = math.fsum(s * demand.transfer_bytes for s, demand in zip(shares, problem.demands, strict=True))
        most += [port * own.count / moved] if port is not None and moved > 0.0 else []
    return tuple(min(most, default=0.0) * weight for weight in weights)


def _held(target: Target, candidates: Sequence[Candidate], taken: Sequence[TakenRole]) -> float:
    """The rate at which clients that wait for answers are all inside."""
    stays = ((own.share_of[target.index], candidates[own.row].capacities[target.index]) for own in taken)
    stay_s = math.fsum(share * capacity.stay_s for share, capacity in stays if capacity is not None)
    return (target.clients or 0.0) / stay_s if stay_s > 0.0 else 0.0


def _flows(
    candidates: Sequence[Candidate],
    setting: ServeSetting,
    decision: ServeDecision,
    taken: Sequence[TakenRole],
    served: Rates,
) -> Iterator[Flow]:
    """What moves between pools: the routes from role to role, by the channel of the one that sends."""
    by_name = {own.role.name: candidates[own.row] for own in taken}
    index_of = {target.name: target.index for target in setting.targets}
    rates: dict[tuple[int, int, int, int], float] = {}
    for route in decision.routing:
        source, to = by_name.get(route.source or ""), by_name.get(route.to)
        if source is not None and to is not None and source.channel is not None and route.workload in index_of:
            key = (source.pool, to.pool, index_of[route.workload], source.channel.index)
            rates[key] = rates.get(key, 0.0) + route.share * served[key[2]]
    return (Flow(*key, rate) for key, rate in sorted(rates.items()))
