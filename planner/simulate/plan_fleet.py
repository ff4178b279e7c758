"""The fleet that a serving plan describes: an engine for every attention rank of every replica.

A rank with pp pipeline stages is played as pp engines that each step through the whole pipeline with their share of the
sequences, of the KV cache and of the links: its micro-batches. Ranks that share experts make their steps together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.costs.forward import ranks_in_step
from planner.costs.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.parameters import Calibration, load_calibration
from planner.costs.shapes import Shards
from planner.costs.source import make_pricer, open_store, profile_paths
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import INPUTS, recorded_problem
from planner.problem.resolve import resolve_model, resolve_pool
from planner.problem.schema import Problem
from planner.simulate.fleet import Fleet, Instance, Speculation
from planner.simulate.operation import PoolLink
from planner.simulate.operation_spec import OperationSpec, SpeculationSpec
from planner.simulate.requests import Requests
from planner.simulate.step_grid import StepGrid, step_grid

FUNCTIONS = ("colocated", "prefill", "decode")
POLICY_OF_ENGINE = {"vllm": "mixed", "sglang": "prefill-first", "trtllm": "mixed"}
RESERVING_ENGINES = ("trtllm",)  # its default scheduler admits a request only with room for its whole length
DEFAULT_CHUNK_TOKENS = 8192
HOST_SHARE = 0.5  # of host memory that holds swapped caches; the rest is the system's
SMALL_STEP = (512.0, 64.0)  # tokens and sequences of the step whose activations an engine keeps room for at least


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules between instances, and those of the engine where they are to differ from its own."""

    routing: str = "least-loaded"
    decode_routing: str = "least-loaded"
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


def fleet_of_plan(
    envelope: Envelope,
    decision: Decision,
    requests: Requests,
    policies: Policies,
    *,
    profiles: Sequence[str] = (),
    calibration: str | None = None,
) -> PlannedFleet:
    """The fleet of a serving plan, with step times for requests as long as these.

    Raises PlannerError for plans that serve no requests, plans of several models, and calibration files that the plan
    does not name.
    """
    problem = recorded_problem(envelope.inputs)
    operation = policies.operation or OperationSpec()
    if envelope.kind != "serve" or problem is None:
        raise PlannerError(f"a plan of kind `{envelope.kind}` serves no requests", hint="give a plan of kind serve")
    models = {role.model for role in decision.roles}
    if len(models) != 1 or None in models:
        raise PlannerError("the plan serves several models", hint="simulate a plan of one model")
    setting = FleetSetting(
        problem,
        resolve_model(problem, str(models.pop()), INPUTS, Path()),
        {spec.label: resolve_pool(spec, at, INPUTS) for at, spec in enumerate(problem.cluster.pools)},
        _calibration(problem, calibration),
        profile_paths([*profiles, *problem.costs.profiles]),
        requests,
        policies,
        len({role.pool for role in decision.roles if role.function != "colocated"}) > 1,
    )
    instances: list[Instance] = []
    names: list[str] = []
    groups: list[int] = []
    leaders: dict[str, list[list[int]]] = {}
    for role in decision.roles:
        found = engines_of(role, setting)
        size = together(role, setting.arch)
        each = len(found) // role.replicas
        starts = range(len(instances), len(instances) + len(found), each)
        leaders[role.name] = [list(range(start, start + each, size)) for start in starts]
        groups += [size] * (len(found) // size)
        instances += found
        names += [role.name] * len(found)
    fleet = replace(
        fleet_of_engines(instances, setting),
        groups=tuple(groups),
        skew=operation.skew,
        changes=operation.changes_of(leaders),
        control=operation.control.control() if operation.control else None,
    )
    if operation.prefix_store is not None:
        token_bytes = _moved_bytes(setting)
        fleet = replace(
            fleet,
            store_kv_tokens=int(operation.prefix_store.size_bytes / token_bytes),
            store_tokens_per_s=operation.prefix_store.bandwidth_bytes_per_s / token_bytes,
        )
    return PlannedFleet(
        fleet,
        tuple(names),
        sum(role.replicas * role.parallelism.devices for role in decision.roles),
        problem,
        tuple(_notes()),
    )


def _calibration(problem: Problem, given: str | None) -> Calibration:
    name = given or problem.costs.calibration
    if name == "file":
        what = "the plan was costed with a calibration file, whose path it does not keep"
        raise PlannerError(what, hint="name it: `--calibration FILE`")
    return load_calibration(name)


def fleet_of_engines(instances: list[Instance], setting: FleetSetting) -> Fleet:
    """Engines of all roles with the rules between them."""
    policies = setting.policies
    return Fleet(
        tuple(instances),
        routing=policies.routing,
        decode_routing=policies.decode_routing,
        queueing=policies.queueing,
        prefix_caching=policies.prefix_caching,
        migration_period_s=policies.migration_period_s,
        crowded_below=policies.crowded_below,
        spare_above=policies.spare_above,
        pool_links=_pool_links(instances, setting),
        request_overhead_s=setting.calibration.engine(setting.problem.engine.name).request_s,
    )


def _notes() -> list[str]:
    return ["instances of one function take requests by the routing policy, whatever shares the plan routes to roles"]


def together(role: Role, arch: Architecture) -> int:
    """Engines that wait for each other in every step: the attention ranks of a micro-batch, where experts join them."""
    return int(ranks_in_step(arch, role.parallelism.dp))


def _pool_links(instances: list[Instance], setting: FleetSetting) -> tuple[PoolLink, ...]:
    """The networks between pools that the problem states and that engines are in, in both directions."""
    number = {label: at for at, label in enumerate(setting.pools)}
    used = {instance.pool for instance in instances}
    found = []
    for link in setting.problem.cluster.links:
        one, other = (number[name] for name in link.pools)
        rate = link.bandwidth_bytes_per_s / _moved_bytes(setting)
        if {one, other} <= used:
            found += [PoolLink(one, other, rate, link.latency_s), PoolLink(other, one, rate, link.latency_s)]
    return tuple(found)


def engines_of(role: Role, setting: FleetSetting) -> list[Instance]:
    """Equal engines: attention ranks x micro-batches of all replicas; the ranks of a micro-batch stand together."""
    if role.function not in FUNCTIONS:
        raise PlannerError(f"role `{role.name}` is of function `{role.function}`", hint="give a serving plan")
    shape, engine = role.parallelism, setting.problem.engine.name
    shards = Shards.of(shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep)
    pool = setting.pools[role.pool]
    policy = setting.policies.engine_policy or POLICY_OF_ENGINE[engine]
    most = max(math.ceil(int(role.limits.get("max_batch", 256)) / shape.pp), 1)
    chunk = int(role.limits.get("chunk_tokens", DEFAULT_CHUNK_TOKENS))
    apart = together(role, setting.arch) > 1
    grid = _grid(setting, pool, shards, most, chunk, None, apart)
    operation = setting.policies.operation or OperationSpec()
    speculation, adapters = operation.speculation, operation.adapters
    token_bytes, kv_tokens = _cache(setting, role, pool, shards)
    one = Instance(
        grid,
        max(kv_tokens // shape.pp, 1),
        role=role.function,
        policy=policy,
        token_budget=chunk,
        most_sequences=most,
        reserves=engine in RESERVING_ENGINES,
        preemption=setting.policies.preemption,
        host_kv_tokens=int(pool.node.host_memory_bytes / pool.node.num_gpus * HOST_SHARE / token_bytes / shape.pp),
        swap_tokens_per_s=pool.node.pcie_bandwidth_bytes_per_s / token_bytes,
        link_tokens_per_s=shape.tp * _link_bytes_per_s(pool, setting.crossing) / _moved_bytes(setting) / shape.pp,
        link_latency_s=pool.node.nic_latency_s,
        pool=list(setting.pools).index(role.pool),
    )
    if speculation is not None and role.function != "prefill":
        verifying = _grid(setting, pool, shards, most, chunk, speculation, apart)
        one = replace(one, speculation=Speculation(speculation.draft_tokens, speculation.acceptance, verifying))
    if adapters is not None:
        one = replace(one, adapter_slots=adapters.slots, adapter_load_s=adapters.load_s)
    return [one] * (role.replicas * shape.dp * shape.pp)


def _grid(
    setting: FleetSetting,
    pool: Pool,
    shards: Shards,
    most: int,
    chunk: int,
    speculation: SpeculationSpec | None,
    joint_apart: bool,
) -> StepGrid:
    problem = setting.problem
    pricer = make_pricer(
        pool.node.accelerator,
        pool.topology(),
        setting.arch,
        engine=problem.engine.name,
        version=problem.engine.version,
        calibration=setting.calibration,
        store=open_store(setting.profiles),
    )
    longest = int((setting.requests.input_tokens + setting.requests.output_tokens).max())
    return step_grid(
        setting.arch,
        pricer,
        shards,
        setting.calibration.engine(problem.engine.name),
        most_sequences=most,
        longest_tokens=longest,
        chunk_tokens=chunk,
        draft_tokens=speculation.draft_tokens if speculation else 0,
        draft_step_s=speculation.draft_step_s if speculation else 0.0,
        joint_apart=joint_apart,
    )


def _cache(setting: FleetSetting, role: Role, pool: Pool, shards: Shards) -> tuple[float, int]:
    """KV bytes a token on one device, and the tokens that the cache of an attention rank holds.

    Bytes are those of a sequence of the mean length of the requests, state included.
    """
    length = float(np.mean(setting.requests.input_tokens + setting.requests.output_tokens))
    token_bytes = float(kv_cache_bytes(setting.arch, shards, np.array([length]))[0]) / length
    capacity = pool.node.accelerator.memory_bytes * setting.problem.engine.memory_utilisation
    if role.memory is not None:
        used = role.memory.used_bytes - role.memory.kv_cache_bytes
        capacity = role.memory.capacity_bytes
    else:
        workspace = setting.calibration.engine(setting.problem.engine.name).workspace_bytes
        activations = float(activation_bytes(setting.arch, shards, *SMALL_STEP)[0])
        used = float(weight_bytes(setting.arch, shards)[0]) + activations + workspace
    room = capacity - used
    if room < token_bytes:
        what = f"role `{role.name}` has no room for a KV cache: {-room / 1e9:.2f} GB are missing"
        raise PlannerError(what, hint="check the plan: `planner check PLAN`")
    return token_bytes, int(room / token_bytes)


def _moved_bytes(setting: FleetSetting) -> float:
    """Bytes that move for one token of prompt, all ranks together."""
    length = float(np.mean(setting.requests.input_tokens))
    moved = kv_bytes(setting.arch, np.array([length])) + state_bytes_per_sequence(setting.arch, np.array([1.0]))
    return float(moved[0]) / length


def _link_bytes_per_s(pool: Pool, crossing: bool) -> float:
    """Bandwidth of one device to devices of other instances: the fabric, or the scale-up links of a lone domain."""
    if not crossing and pool.num_nodes * pool.node.num_gpus <= pool.node.scale_up_size:
        return pool.node.scale_up_bandwidth_bytes_per_s
    return pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription
