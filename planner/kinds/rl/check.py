"""Checks of RL plans: the roles an algorithm needs, synchrony, roles that share devices, and the batch."""

from collections.abc import Iterator

from planner.documents.units import format_si
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.names import BATCH_SAMPLES, GPUS
from planner.kinds.rl.options import CRITIC_FREE, RlOptions
from planner.kinds.rl.plan.devices import (
    REL_TOL,
    Devices,
    arrangement,
    critic_gpus,
    residency,
    roles_of,
    served,
    whole_nodes,
)
from planner.plan import placement
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.problem.schema import Problem

TIMELINE_TOL = 1e-6
"""Of times and prices that follow from sums of phases."""
AHEAD = ("asynchronous", "one_step")
"""Synchrony in which generation works for later iterations than training."""
FUNCTIONS = ("rollout", "actor", "critic", "reference", "reward", "teacher")


def check(envelope: Envelope, decision: RlDecision) -> list[Finding]:
    """One finding a rule."""
    findings = [_roles(envelope, decision), _critic(decision), *_synchrony(decision)]
    findings += [_phases(decision), *_shares(decision)]
    devices: Devices = {}
    if _countable(decision):
        devices = {role.name: set(placement.role_devices(decision.placement, role.name)) for role in decision.roles}
        findings += [arrangement(decision, devices), *residency(decision, devices)]
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, RlOptions)
    if problem is None or options is None:
        return findings
    if devices:
        findings += [*served(decision, options, devices), *critic_gpus(decision, options, devices)]
        findings += whole_nodes(decision, problem, devices) if options.whole_nodes else ()
    return [*findings, *_job(decision, options), *_promises(envelope, decision, problem, options)]


def _countable(decision: RlDecision) -> bool:
    """Whether the placement has the ranks of the roles, so that expanding it costs no more than the plan says."""
    placed = sum(placement.num_ranks(block) for block in decision.placement)
    return placed == sum(role.replicas * role.parallelism.devices for role in decision.roles) and placed < 10**7


def _roles(envelope: Envelope, decision: RlDecision) -> Finding:
    options = recorded_options(recorded_problem(envelope.inputs), RlOptions)
    trains = 0 if options is not None and options.generation_only else 1
    strange = sorted({role.function for role in decision.roles} - set(FUNCTIONS))
    return Finding(
        "rl.roles",
        not strange and bool(roles_of(decision, "rollout")) and len(roles_of(decision, "actor")) == trains,
        f"unknown function `{strange[0]}`"
        if strange
        else f"{'one' if trains else 'no'} actor trains and at least one role generates",
        "roles",
        f"use one `actor`, `rollout`, and {', '.join(FUNCTIONS[2:])}",
    )


def _critic(decision: RlDecision) -> Finding:
    critics = len(roles_of(decision, "critic"))
    wanted = 0 if decision.algorithm in CRITIC_FREE else 1
    return Finding(
        "rl.critic",
        critics == wanted,
        f"`{decision.algorithm}` takes {wanted} critics, found {critics}",
        "roles",
        "add or drop the critic",
    )


def _synchrony(decision: RlDecision) -> Iterator[Finding]:
    asynchronous = decision.synchrony in AHEAD
    yield Finding(
        "rl.staleness",
        asynchronous == (decision.staleness > 0),
        f"`{decision.synchrony}` with staleness {decision.staleness}",
        "staleness",
        "give asynchronous plans a staleness of 1 or more, all others 0",
    )
    yield Finding(
        "rl.in_flight_updates",
        decision.in_flight_updates is None or decision.synchrony == "asynchronous",
        f"`{decision.synchrony}` with weights updated in flight",
        "in_flight_updates",
        "leave it out: only generators that run ahead have samples under way when weights come",
    )
    yield Finding(
        "rl.synchrony",
        decision.arrangement != "colocated" or decision.synchrony == "synchronous",
        f"`{decision.arrangement}` and `{decision.synchrony}`",
        "synchrony",
        "roles that take turns on the same devices cannot run at the same time: use `synchronous`",
    )


def _phases(decision: RlDecision) -> Finding:
    turns = {role for phase in decision.phases for role in phase.roles}
    idle = sorted({role.name for role in decision.roles} - turns) if decision.phases else []
    return Finding(
        "rl.phases",
        not idle,
        f"role `{idle[0]}` has no phase" if idle else "every role has its phase",
        "phases",
        "give every role a phase",
    )


def _shares(decision: RlDecision) -> Iterator[Finding]:
    groups = {role.name for role in roles_of(decision, "rollout")}
    strange = sorted((set(decision.shares) | set(decision.resident_bytes)) - {role.name for role in decision.roles})
    yield Finding(
        "rl.names",
        not strange,
        f"no role is called `{strange[0]}`" if strange else "shares and resident bytes name roles",
        "shares",
        "name roles of the plan",
    )
    whole = len(groups) == 1 or decision.agents is not None  # agents go where their queue is served
    total = sum(decision.shares.values()) if decision.shares else float(whole)
    yield Finding(
        "rl.shares",
        abs(total - 1.0) <= REL_TOL and set(decision.shares) <= groups,
        f"the rollout roles generate {total:.6g} of the samples",
        "shares",
        "give every rollout role a share, 1 in all",
    )


def _job(decision: RlDecision, options: RlOptions) -> Iterator[Finding]:
    yield Finding(
        "rl.algorithm",
        decision.algorithm == options.algorithm,
        f"plans `{decision.algorithm}`, the problem asks for `{options.algorithm}`",
        "algorithm",
        "use the one asked for",
    )
    yield Finding(
        "rl.max_staleness",
        decision.staleness <= options.most_staleness,
        f"staleness {decision.staleness}, at most {options.most_staleness} allowed",
        "staleness",
        "run less ahead",
    )
    flows = options.in_flight_updates and decision.synchrony == "asynchronous"
    yield Finding(
        "rl.in_flight_asked",
        flows == (decision.in_flight_updates is not None),
        "weights are updated in flight" if decision.in_flight_updates else "generators end their rollouts",
        "in_flight_updates",
        "do as `in_flight_updates` of the problem asks",
    )
    if decision.agents is not None or options.agents is not None:
        yield _agents(decision, options)
    samples = options.prompts * options.samples_per_prompt
    yield Finding(
        "rl.batch",
        (samples % decision.minibatches == 0 or not options.equal_shares)
        and decision.minibatches == options.minibatches,
        f"{samples} samples in {decision.minibatches} minibatches, the problem asks for {options.minibatches}",
        "minibatches",
        "split the samples into the minibatches asked for",
    )
    own = [role for role in roles_of(decision, "critic") if GPUS in role.limits]
    for role in (*roles_of(decision, "actor"), *own):
        dp = role.parallelism.dp * role.replicas
        yield Finding(
            "rl.dp",
            dp <= samples // decision.minibatches,
            f"dp {dp} for {samples // decision.minibatches} samples a minibatch",
            f"roles.{role.name}",
            "use a dp of at most the samples of a minibatch",
        )


def _agents(decision: RlDecision, options: RlOptions) -> Finding:
    """Plans of agents say who starts where: with a replica for each trajectory, by iteration, or one queue for all."""
    stated, asked = decision.agents, options.agents
    sizes = [] if asked is None or decision.dispatch != "assigned" else [len(b.trajectories) for b in asked.batches]
    replicas = sum(role.replicas for role in roles_of(decision, "rollout"))
    rows = [] if stated is None else list(stated.assignment)
    fits = [len(row) for row in rows] == sizes and all(place < replicas for row in rows for place in row)
    return Finding(
        "rl.agents",
        (stated is None) == (asked is None) and fits,
        f"`{decision.dispatch}` with {len(rows)} iterations assigned to {replicas} replicas",
        "agents",
        "with `assigned` give each trajectory of each iteration its replica; leave `assignment` out otherwise",
    )


def _promises(envelope: Envelope, decision: RlDecision, problem: Problem, options: RlOptions) -> Iterator[Finding]:
    """What the plan predicts beside its own timeline, its prices, its deadline and the network between its pools."""
    predicted = {
        prediction.metric: prediction.value
        for prediction in envelope.predictions
        if not prediction.of and prediction.statistic == "mean"
    }
    iteration = predicted.get("iteration_time_s")
    if iteration is not None and decision.phases:
        yield _timeline(decision, iteration)
        yield from _cost(decision, problem, options, iteration, predicted.get("usd_per_iteration"))
    if options.max_iteration_s is not None and iteration is not None:
        yield Finding(
            "rl.deadline",
            iteration <= options.max_iteration_s * (1 + REL_TOL),
            f"an iteration takes {format_si(iteration, 's')}, at most {format_si(options.max_iteration_s, 's')}",
            "predictions",
            "solve again with this deadline, or relax it",
        )
    yield _network(decision, problem, options)
    yield from _context(decision, problem)


def _timeline(decision: RlDecision, iteration: float) -> Finding:
    """Phases fill an iteration where roles wait for each other, and none is longer than it where they do not."""
    ends = [phase.start_s + (phase.duration_s or 0.0) for phase in decision.phases]
    busy: dict[str, float] = {}
    for phase in decision.phases:
        for role in phase.roles:
            busy[role] = busy.get(role, 0.0) + (phase.duration_s or 0.0)
    if decision.synchrony in AHEAD:
        longest = max(busy.values(), default=0.0)
        what = f"a role works {format_si(longest, 's')} in an iteration of {format_si(iteration, 's')}"
        right = longest <= iteration * (1 + TIMELINE_TOL)
    else:
        what = f"phases end after {format_si(max(ends), 's')}, the iteration takes {format_si(iteration, 's')}"
        left, slack = (
            iteration - max(ends),
            TIMELINE_TOL * iteration,
        )  # what is left is synchronisation, if it is no phase
        right = -slack <= left <= decision.weight_sync.duration_s + slack
    return Finding("rl.timeline", right, what, "phases", "make the phases add up to the iteration that is predicted")


def _cost(
    decision: RlDecision, problem: Problem, options: RlOptions, iteration: float, stated: float | None
) -> Iterator[Finding]:
    """The price of the devices in use over an iteration; jobs that share engines share their price."""
    prices = {pool.label: pool.usd_per_gpu_hour for pool in problem.cluster.pools}
    if stated is None or not _countable(decision):
        return
    used = placement.devices_used(decision.placement)
    if any(prices.get(pool) is None for pool in used):
        return
    jobs: dict[str, int] = {spec.part: spec.shared_by for spec in options.served}
    shared = [role for role in decision.roles if BATCH_SAMPLES in role.limits]
    paid = {role.pool: 0.0 for role in shared}
    for role in shared:
        paid[role.pool] += role.replicas * role.parallelism.devices * (1.0 - 1.0 / jobs.get(role.function, 1))
    hourly = sum((count - paid.get(pool, 0.0)) * (prices[pool] or 0.0) for pool, count in used.items())
    cost = hourly * iteration / 3600.0
    yield Finding(
        "rl.cost",
        abs(cost - stated) <= TIMELINE_TOL * max(cost, 1e-9),
        f"{cost:.6g} USD of GPUs an iteration, {stated:.6g} predicted",
        "predictions.usd_per_iteration",
        "price the devices that the plan uses",
    )


def _network(decision: RlDecision, problem: Problem, options: RlOptions) -> Finding:
    """Weights reach every generating pool."""
    joined = {frozenset(link.pools) for link in problem.cluster.links}
    joined |= {frozenset((row.generation, row.training)) for row in options.costs.weight_sync}
    trained = {role.pool for role in roles_of(decision, "actor")}
    apart = sorted(
        role.pool
        for role in roles_of(decision, "rollout")
        for other in trained
        if role.pool != other and frozenset((role.pool, other)) not in joined
    )
    return Finding(
        "rl.network",
        not apart,
        f"no network joins `{apart[0]}` with the training pool" if apart else "weights reach every generating pool",
        "placement",
        "add the pools' link to `cluster.links`",
    )


def _context(decision: RlDecision, problem: Problem) -> Iterator[Finding]:
    """The longest sample that a generating role states fits into its KV cache."""
    from planner.costs.operators.work import Shards
    from planner.costs.serving.memory import kv_cache_bytes

    hint = "cap the samples, or generate with a larger tp"
    for role in roles_of(decision, "rollout"):
        tokens, model = role.limits.get("max_context_tokens"), recorded_model(problem, role.model)
        if role.memory is None or model is None or not isinstance(tokens, int):
            continue
        shape = role.parallelism
        shards = Shards.of(shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep)
        needed, room = float(kv_cache_bytes(model, shards, [float(tokens)])[0]), role.memory.kv_cache_bytes
        yield Finding(
            "rl.context",
            needed <= room * (1 + REL_TOL),
            f"a sample of {tokens} tokens takes {format_si(needed, 'B')} of KV cache, {format_si(room, 'B')} are there",
            f"roles.{role.name}.limits",
            hint,
        )
