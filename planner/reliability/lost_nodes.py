"""Lost nodes of a plan of any kind: which ranks they take, what runs on until then, and which spare nodes step in.

Every lost node that the plan stands on has ranks that must move, so no re-plan moves fewer nodes than there are lost
ones in use; a spare for each attains that. Spares of the same rack come first, which is the most that can stay inside
their racks: racks share none. A lost node inside a scale-up domain of several nodes needs a spare of that domain, since
its groups of ranks lie inside; where there is none, the plan is to be solved anew.

What runs on until then, as a share of the plan: of serving and of rollouts, the replicas that lost no rank, in the
function (prefill, decode) that has fewest of them left; none of a training job, and none of experts, whose ranks all
wait for each other.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.plan.placement import role_devices
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem
from planner.problem.resolve import resolve_pool
from planner.reliability.rack_nodes import nodes_on_racks
from planner.schema.base import Where

INDEPENDENT = frozenset({"colocated", "prefill", "decode", "attention", "ffn", "rollout", "encoder", "adapters", "mix"})
"""Functions whose replicas run on when another one stops; the ranks of every other role wait for each other."""

RATES = ("requests_per_s", "output_tokens_per_s", "tokens_per_s")
"""Predictions of a plan that shrink with what runs on."""

NodeKey = tuple[str, int]
"""The name of a pool, and the index of a node in it."""


@dataclass(frozen=True, slots=True)
class RoleLoss:
    """What a role loses."""

    role: str
    function: str
    ranks: int
    of_ranks: int
    replicas: int  # that lose a rank
    of_replicas: int
    runs_on: float  # share of the role that runs until the ranks stand elsewhere


@dataclass(frozen=True, slots=True)
class Move:
    """All ranks of a lost node move to a spare one."""

    pool: str
    node: int
    spare: int
    same_rack: bool
    ranks: dict[str, int]  # by role


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """What is lost, who moves where, and what is left over."""

    roles: tuple[RoleLoss, ...]
    moves: tuple[Move, ...]
    stranded: tuple[NodeKey, ...]  # lost nodes in use for which there is no spare
    runs_on: float  # share of the plan until the moves are done
    spares_by_rack: dict[str, dict[int, int]]  # before the moves, by pool and rack


@dataclass(frozen=True, slots=True)
class Yield:
    """A predicted rate, as planned and until the moves are done: scaled by what runs on, not simulated."""

    metric: str
    of: str
    planned_per_s: float
    until_then_per_s: float


def yields_until_then(envelope: Envelope, loss: NodeLoss) -> tuple[Yield, ...]:
    """The rates of the plan while its lost ranks are missing."""
    return tuple(
        Yield(row.metric, row.of, row.value, row.value * loss.runs_on)
        for row in envelope.predictions
        if row.metric in RATES and row.statistic == "mean"
    )


def pools_of(envelope: Envelope) -> dict[str, Pool]:
    """The pools of the problem that the plan carries, by name; raises PlannerError where it carries none."""
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        raise PlannerError("the plan carries no problem", where="inputs", hint="solve it again with `planner solve`")

    where = Where({}, "inputs")
    pools = [resolve_pool(spec, index, where) for index, spec in enumerate(problem.cluster.pools)]
    return {pool.name: pool for pool in pools}


def lose_nodes(decision: Decision, pools: Mapping[str, Pool], lost: Iterable[NodeKey]) -> NodeLoss:
    """What the loss of nodes means; raises PlannerError for nodes that no pool has, or that are out already."""
    gone = sorted(set(lost))
    for key in gone:
        _require_node(pools, key)
    if not decision.placement:
        raise PlannerError("the plan places no ranks", where="decision.placement", hint="solve it again")
    ranks = _ranks_by_node(decision, pools)
    racks = {name: pool.rack_of_node.tolist() for name, pool in pools.items()}
    used = {node for nodes in ranks.values() for node in nodes}
    spares = {
        name: [n for n in pool.healthy_nodes if (name, n) not in used and (name, n) not in gone]
        for name, pool in pools.items()
    }
    by_rack = {name: dict(Counter(racks[name][node] for node in nodes)) for name, nodes in spares.items()}
    hit = [key for key in gone if key in used]
    taken = _assigned(pools, racks, spares, hit)
    moves = tuple(
        Move(
            key[0],
            key[1],
            taken[key],
            racks[key[0]][key[1]] == racks[key[0]][taken[key]],
            {role: len(nodes[key]) for role, nodes in ranks.items() if key in nodes},
        )
        for key in hit
        if key in taken
    )
    losses = tuple(_role_loss(decision, role, nodes, hit) for role, nodes in ranks.items())
    stranded = tuple(key for key in hit if key not in taken)
    return NodeLoss(losses, moves, stranded, _runs_on(losses), by_rack)


def _require_node(pools: Mapping[str, Pool], key: NodeKey) -> None:
    name, node = key
    if name not in pools:
        known = ", ".join(f"`{pool}`" for pool in pools)
        raise PlannerError(f"no pool is called `{name}`", where="--lost", hint=f"the pools are {known}")
    pool = pools[name]
    if not 0 <= node < pool.num_nodes:
        what = f"pool `{name}` has no node {node}"
        raise PlannerError(what, where="--lost", hint=f"its nodes are 0 to {pool.num_nodes - 1}")
    if node in pool.out_of_service:
        what = f"node {node} of pool `{name}` is out of service already"
        raise PlannerError(what, where="--lost", hint="name nodes in service")


def _ranks_by_node(decision: Decision, pools: Mapping[str, Pool]) -> dict[str, dict[NodeKey, list[int]]]:
    """The ranks of every role on every node."""
    ranks: dict[str, dict[NodeKey, list[int]]] = {}
    for role in decision.roles:
        nodes: dict[NodeKey, list[int]] = defaultdict(list)
        stands = nodes_on_racks(decision, pools[role.pool]) if role.pool in pools else ()
        for index, node in enumerate(stands):
            size = pools[role.pool].node.num_gpus
            nodes[role.pool, node] = list(range(index * size, (index + 1) * size))
        if stands:
            ranks[role.name] = dict(nodes)
            continue
        for rank, (pool, device) in enumerate(role_devices(decision.placement, role.name)):
            if pool not in pools:
                what = f"role `{role.name}` stands in the unknown pool `{pool}`"
                raise PlannerError(what, where="decision.placement", hint="check the plan with `planner check`")
            nodes[pool, device // pools[pool].node.num_gpus].append(rank)
        ranks[role.name] = dict(nodes)
    return ranks


def _assigned(
    pools: Mapping[str, Pool],
    racks: Mapping[str, Sequence[int]],
    spares: Mapping[str, Sequence[int]],
    hit: Sequence[NodeKey],
) -> dict[NodeKey, int]:
    """A spare for every lost node that can have one: of its rack first, and of its domain where groups span nodes."""
    free = {name: list(nodes) for name, nodes in spares.items()}
    taken: dict[NodeKey, int] = {}
    for same_rack in (True, False):
        for key in hit:
            pool = pools[key[0]]
            if key in taken or (not same_rack and pool.node.scale_up_size > pool.node.num_gpus):
                continue
            domains = pool.domain_of_node
            for spare in free[key[0]]:
                near = pool.node.scale_up_size <= pool.node.num_gpus or domains[spare] == domains[key[1]]
                if near and (not same_rack or racks[key[0]][spare] == racks[key[0]][key[1]]):
                    taken[key] = spare
                    free[key[0]].remove(spare)
                    break
    return taken


def _role_loss(
    decision: Decision, name: str, nodes: Mapping[NodeKey, Sequence[int]], hit: Sequence[NodeKey]
) -> RoleLoss:
    role = next(role for role in decision.roles if role.name == name)
    of_ranks = sum(map(len, nodes.values()))
    lost = [rank for key in hit for rank in nodes.get(key, ())]
    per_replica = max(of_ranks // role.replicas, 1)
    replicas = len({rank // per_replica for rank in lost})
    alone = role.function in INDEPENDENT
    runs_on = 1.0 - replicas / role.replicas if alone else float(not lost)
    return RoleLoss(name, role.function, len(lost), of_ranks, replicas, role.replicas, runs_on)


def _runs_on(losses: Sequence[RoleLoss]) -> float:
    """The share of the plan that runs on: of the function with the smallest share of its replicas left."""
    functions: dict[str, list[RoleLoss]] = defaultdict(list)
    for loss in losses:
        functions[loss.function].append(loss)
    shares = []
    for rows in functions.values():
        ranks = sum(row.of_ranks for row in rows)
        shares.append(sum(row.runs_on * row.of_ranks for row in rows) / ranks if ranks else 1.0)
    return min(shares, default=1.0)
