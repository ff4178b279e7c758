"""Builds the fleet of a serving plan: one engine for every attention (data-parallel) rank of every replica.

A rank with pp stages is one engine with a pipeline: one scheduler, one queue, one KV cache, and up to pp batches in
flight. Ranks that share experts make their steps together.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from planner.arrays import Ints
from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import Calibration, EngineOverheads, load_calibration
from planner.costs.rates.pricer import Pricer, make_pricer, open_store, profile_paths
from planner.costs.serving.attention_ffn import Port, RemoteFfn, Units, ffn_weight_bytes
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.serving.speculation import Drafter, drafter_of
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.plan.schema import Decision, Envelope, Role
from planner.plan.sides import ATTENTION, ffn_roles, without_ffn
from planner.problem.recorded import INPUTS, recorded_problem, tables_at_hand
from planner.problem.resolve import resolve_model, resolve_pool
from planner.problem.schema import Problem
from planner.problem.speculation import SpeculationSpec
from planner.simulate.fleet.instances import UNLIMITED, Fleet, Instance, RequestPath, Speculation
from planner.simulate.fleet.operation import PoolLink
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.fleet.step_grid import StepGrid, step_grid
from planner.simulate.fleet.unit_grid import unit_grid
from planner.simulate.plans.ahead import forms_ahead, simulated_ahead
from planner.simulate.plans.elastic import elastic_fleet, elastic_prefill_tokens, require_equal_engines
from planner.simulate.plans.paths import RolePaths, paths_of
from planner.simulate.requests.stream import Requests

FUNCTIONS = ("colocated", "prefill", "decode")
POLICY_OF_ENGINE = {"vllm": "mixed", "sglang": "prefill-first", "trtllm": "mixed"}
RESERVING_ENGINES = ("trtllm",)  # its default scheduler admits a request only with room for its whole length
DEFAULT_ROUTING = "least-loaded"  # of plans that state no policy
DEFAULT_CHUNK_TOKENS = 8192
HOST_SHARE = 0.5  # of host memory that holds swapped caches; the rest is the system's
SMALL_STEP = (512.0, 64.0)  # tokens and sequences of the step whose activations an engine keeps room for at least


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules between instances, and those of the engine where they are to differ from its own."""

    routing: str | None = None  # that of the plan, or where it states none to the least loaded
    decode_routing: str | None = None
    queueing: str = "fcfs"
    engine_policy: str | None = None
    preemption: str = "recompute"
    prefix_caching: bool = False
    migration_period_s: float = math.inf  # Llumnix's live migration; never
    crowded_below: float = 2.0  # freeness: blocks a sequence
    spare_above: float = 16.0
    operation: OperationSpec | None = None


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """The fleet, and which role each of its instances belongs to."""

    fleet: Fleet
    role_of_instance: tuple[str, ...]
    gpus: int
    problem: Problem
    notes: tuple[str, ...]
    model_of_workload: tuple[int, ...]  # by which requests go where the fleet has no paths


@dataclass(frozen=True, slots=True)
class Drafts:
    """What an engine drafts with, and how many tokens of a sequence in a step that decodes."""

    drafter: Drafter | None
    tokens: int

    def kv_bytes(self, shards: Shards, tokens: float) -> float:
        """The drafter's cache of one sequence of so many tokens, on one device."""
        if self.drafter is None:
            return 0.0
        return float(self.drafter.kv_bytes(shards, tokens, np.array([max(self.tokens, 1.0)]))[0])


NO_DRAFTS = Drafts(None, 0)


@dataclass(frozen=True, slots=True)
class FleetSetting:
    """What the engines of a role are made from; step times are for requests as long as `requests`."""

    problem: Problem
    arch: Architecture
    pools: dict[str, Pool]
    calibration: Calibration
    profiles: tuple[str, ...]
    requests: Requests
    policies: Policies
    crossing: bool = False  # caches move between pools, over their fabrics
    drafter: Drafter | None = None  # of the plan's own drafts
    grids: SharedGrids = field(default_factory=SharedGrids)

    def drafts(self, role: Role) -> "Drafts":
        """Those that the operation asks for, or else the plan's own."""
        asked = self.policies.operation.speculation if self.policies.operation is not None else None
        if asked is not None:
            drafter = Drafter("stated", asked.acceptance, step_s=asked.draft_step_s)
            return Drafts(drafter, 0 if role.function == "prefill" else asked.draft_tokens)
        own = int(role.limits.get("draft_tokens", 0))
        if own and self.drafter is None:
            raise PlannerError(
                f"role `{role.name}` has {own} drafts, and the problem of the plan no drafter",
                where="options.speculation",
                hint="check the plan: `planner check PLAN`",
            )
        return Drafts(self.drafter if own else None, 0 if role.function == "prefill" else own)

    @property
    def overheads(self) -> EngineOverheads:
        """What the engine adds to its kernels."""
        return self.calibration.engine(self.problem.engine.name, self.problem.engine.version)


def fleet_of_plan(
    envelope: Envelope,
    decision: Decision,
    requests: Requests,
    policies: Policies,
    *,
    profiles: Sequence[str] = (),
    calibration: str | None = None,
    grids: SharedGrids | None = None,
) -> PlannedFleet:
    """The fleet of a serving plan, with step times for requests as long as these, or those of `grids` of its problem.

    Raises PlannerError for plans that serve no requests, for traces where the plan serves several models, and for
    calibration files that the plan does not name.
    """
    problem = recorded_problem(envelope.inputs)
    if envelope.kind != "serve" or problem is None:
        raise PlannerError(f"a plan of kind `{envelope.kind}` serves no requests", hint="give a plan of kind serve")
    elastic = policies.operation is not None and policies.operation.elastic is not None
    planned = None if elastic else decision.router_policy  # elastic instances take requests where they are least
    policies = replace(policies, routing=policies.routing or planned, decode_routing=policies.decode_routing or planned)
    gpus = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    sides, decision = ffn_roles(decision), without_ffn(decision)
    if policies.operation is not None and policies.operation.elastic is not None:
        require_equal_engines(decision.roles)
    tables = tables_at_hand(envelope.digests.profiles, profiles)
    settings = _settings(problem, decision, requests, policies, _calibration(problem, calibration), tables)
    if grids is not None:
        settings = {model: replace(setting, grids=grids) for model, setting in settings.items()}
    instances: list[Instance] = []
    names: list[str] = []
    groups: list[int] = []
    leaders: dict[str, list[list[int]]] = {}
    paths = _role_paths(decision, problem, requests, policies)
    for role in decision.roles:
        setting = settings[str(role.model)]
        number = paths.number_of_role[role.name] if paths else list(settings).index(str(role.model))
        engines = [replace(engine, model=number) for engine in engines_of(role, setting, sides.get(role.name))]
        size = together(role, setting.arch)
        each = len(engines) // role.replicas
        starts = range(len(instances), len(instances) + len(engines), each)
        leaders[role.name] = [list(range(start, start + each, size)) for start in starts]
        groups += [size] * (len(engines) // size)
        instances += engines
        names += [role.name] * len(engines)
    leaders |= {ffn.name: leaders[name] for name, ffn in sides.items()}  # neither side works without the other
    fleet = fleet_of_engines(instances, tuple(settings.values()), groups=groups, paths=paths.paths if paths else ())
    return PlannedFleet(
        _operated(fleet, policies.operation or OperationSpec(), leaders, tuple(settings.values())),
        tuple(names),
        gpus,
        problem,
        tuple(_notes(decision, paths)),
        tuple(list(settings).index(name) if name in settings else -1 for name in _models(problem)),
    )


def _models(problem: Problem) -> list[str]:
    """The model of each workload."""
    return [workload.model or next(iter(problem.models)) for workload in problem.workloads]


def _settings(
    problem: Problem,
    decision: Decision,
    requests: Requests,
    policies: Policies,
    calibration: Calibration,
    profiles: Sequence[str],
) -> dict[str, FleetSetting]:
    """By model, with the requests of its own workloads."""
    models = list(dict.fromkeys(str(role.model) for role in decision.roles))
    if len(models) > 1 and requests.workload is None:
        raise PlannerError(
            "the plan serves several models, and a trace does not say which each request is for",
            hint="leave the trace out: the plan's own workloads are simulated",
        )
    pools = {spec.label: resolve_pool(spec, index, INPUTS) for index, spec in enumerate(problem.cluster.pools)}
    crossing = len({role.pool for role in decision.roles if role.function != "colocated"}) > 1
    paths = profile_paths([*profiles, *problem.costs.profiles])
    settings = {}
    for model in models:
        own = requests
        if requests.workload is not None and len(models) > 1:
            own = requests.of_workloads([index for index, name in enumerate(_models(problem)) if name == model])
        arch = resolve_model(problem, model, INPUTS, Path())
        drafter = _drafter(problem, arch)
        settings[model] = FleetSetting(problem, arch, pools, calibration, paths, own, policies, crossing, drafter)
    return settings


def _drafter(problem: Problem, arch: Architecture) -> Drafter | None:
    """What drafts for a model, as the problem of the plan says."""
    spec = SpeculationSpec.of(problem)
    named = () if spec is None or spec.model is None or spec.model not in problem.models else (spec.model,)
    models = {name: resolve_model(problem, name, INPUTS, Path()) for name in named}
    return drafter_of(spec, arch, models, "options.speculation")


def _role_paths(decision: Decision, problem: Problem, requests: Requests, policies: Policies) -> RolePaths | None:
    """Which shares count: none where routers look for cached prompts, where engines come and go, or for a trace of
    several workloads.
    """
    operation, workloads = policies.operation, [workload.name for workload in problem.workloads]
    moving = operation is not None and (operation.changes or operation.control is not None)
    unknown = len(workloads) > 1 and requests.workload is None
    return None if moving or unknown or policies.routing == "cache-aware" else paths_of(decision, workloads)


def _operated(
    fleet: Fleet, operation: OperationSpec, leaders: dict[str, list[list[int]]], settings: Sequence[FleetSetting]
) -> Fleet:
    """The fleet with what is done to its engines."""
    fleet = replace(
        fleet,
        skew=operation.skew,
        changes=operation.changes_of(leaders),
        control=operation.control.control() if operation.control else None,
    )
    if operation.elastic is not None:
        pool = list(settings[0].pools.values())[fleet.instances[0].pool]
        fleet = elastic_fleet(fleet, operation.elastic, settings[0].arch, pool)
    if operation.prefix_store is None:
        return fleet
    token_bytes = max(map(_moved_bytes, settings))
    return replace(
        fleet,
        store_kv_tokens=int(operation.prefix_store.size_bytes / token_bytes),
        store_tokens_per_s=operation.prefix_store.bandwidth_bytes_per_s / token_bytes,
    )


def _calibration(problem: Problem, given: str | None) -> Calibration:
    name = given or problem.costs.calibration
    if name == "file":
        raise PlannerError(
            "the plan was costed with a calibration file, whose path it does not keep",
            hint="name it: `--calibration FILE`",
        )
    return load_calibration(name)


def fleet_of_engines(
    instances: list[Instance],
    settings: Sequence[FleetSetting],
    *,
    groups: Sequence[int],
    paths: tuple[tuple[RequestPath, ...], ...],
) -> Fleet:
    """Engines of all roles with the rules between them."""
    setting = settings[0]
    policies = setting.policies
    return Fleet(
        tuple(instances),
        routing=policies.routing or DEFAULT_ROUTING,
        decode_routing=policies.decode_routing or DEFAULT_ROUTING,
        queueing=policies.queueing,
        prefix_caching=policies.prefix_caching,
        migration_period_s=policies.migration_period_s,
        crowded_below=policies.crowded_below,
        spare_above=policies.spare_above,
        pool_links=_pool_links(instances, settings),
        request_overhead_s=setting.overheads.request_s,
        groups=tuple(groups),
        paths=paths,
    )


def _notes(decision: Decision, paths: RolePaths | None) -> Iterator[str]:
    if paths is None:
        yield "instances of one function take requests by the routing policy, whatever shares the plan routes to roles"
        return
    names = [role.name for role in decision.roles]
    for taken in paths.paths:
        ways = (
            f"{path.share:.1%} to {' and '.join(dict.fromkeys((names[path.first], names[path.last])))}"
            for path in taken
        )
        yield f"requests go {', '.join(ways)}, as the plan routes them; within a role by the routing policy"


def together(role: Role, arch: Architecture) -> int:
    """Engines that wait for each other in every step: the attention ranks of a micro-batch, where experts join them.

    So do all ranks whose feed-forward layers stand on devices of their own.
    """
    return role.parallelism.dp if role.function == ATTENTION else int(ranks_in_step(arch, role.parallelism.dp))


def _pool_links(instances: list[Instance], settings: Sequence[FleetSetting]) -> tuple[PoolLink, ...]:
    """The networks between pools that the problem states and that engines are in, in both directions.

    Of several models the one with the largest cache of a token says how many tokens a second they move.
    """
    setting, token_bytes = settings[0], max(map(_moved_bytes, settings))
    number = {label: index for index, label in enumerate(setting.pools)}
    used = {instance.pool for instance in instances}
    links = []
    for link in setting.problem.cluster.links:
        near, far = (number[name] for name in link.pools)
        rate = link.bandwidth_bytes_per_s / token_bytes
        if {near, far} <= used:
            links += [PoolLink(near, far, rate, link.latency_s), PoolLink(far, near, rate, link.latency_s)]
    return tuple(links)


def _shards(role: Role) -> Shards:
    """Degrees of a role; micro-batches of attention alone take turns with another role, and are none of its steps."""
    shape = role.parallelism
    halves = 1 if role.function == ATTENTION else int(role.limits.get("micro_batches", 1))
    return Shards.of(shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep, halves)


def engines_of(role: Role, setting: FleetSetting, ffn: Role | None = None) -> list[Instance]:
    """Equal engines: the attention ranks of all replicas; those of a replica stand together.

    `ffn` is the role of the feed-forward layers of an attention role; it is a part of the steps of these engines, which
    are the micro-batches of their ranks: those of a micro-batch stand together.
    """
    if role.function not in (*FUNCTIONS, ATTENTION):
        raise PlannerError(f"role `{role.name}` is of function `{role.function}`", hint="give a serving plan")
    if (role.function == ATTENTION) != (ffn is not None):
        raise PlannerError(
            f"role `{role.name}` has attention alone, and no role with its feed-forward layers",
            hint="check the plan: `planner check PLAN`",
        )
    shape, engine = role.parallelism, setting.problem.engine.name
    shards = _shards(role)
    pool = setting.pools[role.pool]
    policy = setting.policies.engine_policy or POLICY_OF_ENGINE[engine]
    turns = 1 if ffn is None else int(role.limits.get("micro_batches", 1))
    most = max(math.ceil(int(role.limits.get("max_batch", 256)) / turns), 1)
    chunk = int(role.limits.get("chunk_tokens", DEFAULT_CHUNK_TOKENS))
    drafts, operation = setting.drafts(role), setting.policies.operation or OperationSpec()
    prompt = int(setting.requests.input_tokens.max())
    priced = chunk if operation.elastic is None else elastic_prefill_tokens(role, chunk, prompt)
    grid = _grid(setting, role, ffn, most, priced, replace(drafts, tokens=0))
    adapters = operation.adapters
    token_bytes, kv_tokens = _cache(setting, role, pool, shards, drafts)
    links_bytes_per_s = shape.tp * shape.pp * _link_bytes_per_s(pool, setting.crossing)
    instance = Instance(
        grid,
        max(kv_tokens // turns, 1),
        role="decode" if role.function == ATTENTION else role.function,
        policy=policy,
        token_budget=chunk,
        most_sequences=most,
        most_context=_most_context(role),
        reserves=engine in RESERVING_ENGINES,
        preemption=setting.policies.preemption,
        host_kv_tokens=int(pool.node.host_memory_bytes / pool.node.num_gpus * HOST_SHARE / token_bytes / turns),
        swap_tokens_per_s=pool.node.pcie_bandwidth_bytes_per_s / token_bytes,
        link_tokens_per_s=links_bytes_per_s / turns / _moved_bytes(setting, drafts),
        link_latency_s=pool.node.nic_latency_s,
        pool=list(setting.pools).index(role.pool),
        stages=shape.pp if ffn is None else 1,
    )
    if drafts.drafter is not None and drafts.tokens:
        verifying = _grid(setting, role, ffn, most, chunk, drafts)
        instance = replace(instance, speculation=Speculation(drafts.tokens, drafts.drafter.acceptance, verifying))
    together_ahead = simulated_ahead(
        role, operation, queueing=setting.policies.queueing, migration_period_s=setting.policies.migration_period_s
    )
    if ffn is None and together_ahead and instance.may_form_ahead and forms_ahead(setting.problem.engine):
        instance = replace(instance, asynchronous=True)
    if adapters is not None:
        instance = replace(instance, adapter_slots=adapters.slots, adapter_load_s=adapters.load_s)
    return [instance] * (role.replicas * shape.dp * turns)


def _grid(setting: FleetSetting, role: Role, ffn: Role | None, most: int, chunk: int, drafts: Drafts) -> StepGrid:
    """Steps of one engine of a role."""
    sides = tuple((side.pool, *side.parallelism.model_dump().values()) for side in (role, ffn) if side is not None)
    turns = role.limits.get("micro_batches", 1)
    key = sides, turns, most, chunk, drafts.tokens, drafts.drafter is None, role.function == ATTENTION
    longest, most_tokens = int(_whole_tokens(setting, role).max()), setting.arch.max_context_tokens

    def priced(reach: int) -> StepGrid:
        return _priced(setting, role, ffn, most, chunk, drafts, reach)

    return setting.grids.grid(role.model, key, longest, max(min(most_tokens, _most_context(role)), longest), priced)


def _priced(
    setting: FleetSetting, role: Role, ffn: Role | None, most: int, chunk: int, drafts: Drafts, longest: int
) -> StepGrid:
    """Steps of one engine of a role with sequences of up to `longest` tokens."""
    pool, shape, known = setting.pools[role.pool], role.parallelism, setting.calibration.efficiencies
    pricer = _pricer(setting, pool)
    overheads = setting.overheads
    if ffn is not None:
        other, turns, far = ffn.parallelism, int(role.limits.get("micro_batches", 1)), None
        if ffn.pool != role.pool:
            there = setting.pools[ffn.pool]
            far = RemoteFfn(_pricer(setting, there), Port.of(pool, known), Port.of(there, known))
        return unit_grid(
            setting.arch,
            pricer,
            overheads,
            Units.within(shape.tp, shape.dp, other.tp, other.dp, turns, pool.node.scale_up_size),
            far,
            most_sequences=most,
            longest_tokens=longest,
            chunk_tokens=chunk,
            draft_tokens=drafts.tokens,
            drafter=drafts.drafter,
        )
    return step_grid(
        setting.arch,
        pricer,
        _shards(role),
        overheads,
        most_sequences=most,
        longest_tokens=longest,
        chunk_tokens=chunk,
        draft_tokens=drafts.tokens,
        drafter=drafts.drafter,
        joint_apart=together(role, setting.arch) > 1,
    )


def _most_context(role: Role) -> int:
    """Tokens of prompt and answer together at which its engines end an answer."""
    return int(role.limits.get("max_context_tokens", UNLIMITED))


def _whole_tokens(setting: FleetSetting, role: Role) -> Ints:
    """Tokens of each request at its end, as far as the role lets it come."""
    whole = setting.requests.input_tokens + setting.requests.output_tokens
    return np.asarray(np.minimum(whole, _most_context(role)), dtype=np.int64)


def _pricer(setting: FleetSetting, pool: Pool) -> Pricer:
    return make_pricer(
        pool,
        setting.arch,
        engine=setting.problem.engine.name,
        version=setting.problem.engine.version,
        calibration=setting.calibration,
        store=open_store(setting.profiles),
    )


def _cache(setting: FleetSetting, role: Role, pool: Pool, shards: Shards, drafts: Drafts) -> tuple[float, int]:
    """KV bytes a token on one device, and the tokens that the cache of an attention rank holds.

    Bytes are those of a sequence of the mean length of the requests, state included.
    """
    length = float(np.mean(_whole_tokens(setting, role)))
    own_bytes = float(kv_cache_bytes(setting.arch, shards, np.array([length]))[0])
    token_bytes = (own_bytes + drafts.kv_bytes(shards, length)) / length
    capacity = pool.node.accelerator.usable_bytes(setting.problem.engine.memory_utilisation)
    if role.memory is not None:
        used = role.memory.used_bytes - role.memory.kv_cache_bytes
        capacity = role.memory.capacity_bytes
    else:
        workspace = setting.overheads.workspace_bytes
        activations = float(activation_bytes(setting.arch, shards, *SMALL_STEP)[0])
        used = float(weight_bytes(setting.arch, shards)[0]) + activations + workspace
        if role.function == ATTENTION:
            used -= float(ffn_weight_bytes(setting.arch, shards)[0])
    room = capacity - used
    if room < token_bytes:
        raise PlannerError(
            f"role `{role.name}` has no room for a KV cache: {-room / 1e9:.2f} GB are missing",
            hint="check the plan: `planner check PLAN`",
        )
    return token_bytes, int(room / token_bytes)


def _moved_bytes(setting: FleetSetting, drafts: Drafts = NO_DRAFTS) -> float:
    """Bytes that move for one token of prompt, all ranks together."""
    length = float(np.mean(setting.requests.input_tokens))
    moved = kv_bytes(setting.arch, np.array([length])) + state_bytes_per_sequence(setting.arch, np.array([1.0]))
    return (float(moved[0]) + drafts.kv_bytes(Shards.of(1), length)) / length


def _link_bytes_per_s(pool: Pool, crossing: bool) -> float:
    """Bandwidth of one device to devices of other instances: the fabric, or the scale-up links of a lone domain."""
    if not crossing and pool.num_nodes * pool.node.num_gpus <= pool.node.scale_up_size:
        return pool.node.scale_up_bandwidth_bytes_per_s
    return pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription
