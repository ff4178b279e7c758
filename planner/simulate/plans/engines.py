"""The engines of a role of a plan, equal ones, with their step times, caches and links."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.arrays import Ints
from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards
from planner.costs.rates.near_runs import NearRuns
from planner.costs.rates.pricer import Pricer, make_pricer, open_store
from planner.costs.serving.attention_ffn import Port, RemoteFfn, Units, ffn_weight_bytes
from planner.costs.serving.media import encode_times
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.serving.own_runs import near_runs
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.plan.instance_types import all_degrees
from planner.plan.schema import Role
from planner.plan.sides import ATTENTION
from planner.problem.encoded import Media
from planner.problem.recorded import media_by_workload
from planner.simulate.fleet.instances import UNLIMITED, Instance, Speculation
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.fleet.step_grid import StepGrid, step_grid
from planner.simulate.fleet.unit_grid import unit_grid
from planner.simulate.plans.ahead import forms_ahead, simulated_ahead
from planner.simulate.plans.elastic import elastic_prefill_tokens
from planner.simulate.plans.setting import NO_DRAFTS, Drafts, FleetSetting
from planner.simulate.requests.stream import Requests

FUNCTIONS = ("colocated", "prefill", "decode")
DEFAULT_CHUNK_TOKENS = 8192
HOST_SHARE = 0.5  # of host memory that holds swapped caches; the rest is the system's
SMALL_STEP = (512.0, 64.0)  # tokens and sequences of the step whose activations an engine keeps room for at least


def together(role: Role, arch: Architecture) -> int:
    """Engines that wait for each other in every step: the attention ranks of a micro-batch, where experts join them.

    So do all ranks whose feed-forward layers stand on devices of their own.
    """
    return role.parallelism.dp if role.function == ATTENTION else int(ranks_in_step(arch, role.parallelism.dp))


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
    shards = shards_of(role)
    pool = setting.pools[role.pool]
    policy = setting.policies.engine_policy or SERVING_ENGINES[engine].policy
    turns = 1 if ffn is None else int(role.limits.get("micro_batches", 1))
    most = max(math.ceil(int(role.limits.get("max_batch", 256)) / turns), 1)
    chunk = int(role.limits.get("chunk_tokens", DEFAULT_CHUNK_TOKENS))
    drafts, operation = setting.drafts(role), setting.policies.operation or OperationSpec()
    prompt = int(setting.requests.input_tokens.max())
    priced = chunk if operation.elastic is None else elastic_prefill_tokens(role, chunk, prompt)
    grid = _grid(setting, role, ffn, most, priced, replace(drafts, tokens=0))
    adapters, media = operation.adapters, media_by_workload(setting.problem)
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
        reserves=SERVING_ENGINES[engine].reserves,
        preemption=setting.policies.preemption,
        host_kv_tokens=int(pool.node.host_memory_bytes / pool.node.num_gpus * HOST_SHARE / token_bytes / turns),
        swap_tokens_per_s=pool.node.pcie_bandwidth_bytes_per_s / token_bytes,
        link_tokens_per_s=links_bytes_per_s / turns / moved_bytes(setting, drafts),
        link_latency_s=pool.node.nic_latency_s,
        pool=list(setting.pools).index(role.pool),
        stages=shape.pp if ffn is None else 1,
    )
    if drafts.drafter is not None and drafts.tokens:
        verifying = _grid(setting, role, ffn, most, chunk, drafts)
        instance = replace(instance, speculation=Speculation(drafts.tokens, drafts.drafter.acceptance, verifying))
    together_ahead = simulated_ahead(
        role,
        operation,
        queueing=setting.policies.queueing or "fcfs",
        migration_period_s=setting.policies.migration_period_s,
    )
    if ffn is None and together_ahead and instance.may_form_ahead and forms_ahead(setting.problem.engine):
        instance = replace(instance, asynchronous=True)
    if any(media):
        instance = replace(instance, encode_s=_encode_s(setting, role, media))
    if adapters is not None:
        instance = replace(instance, adapter_slots=adapters.slots, adapter_load_s=adapters.load_s)
    return [instance] * (role.replicas * shape.dp * turns)


def _grid(setting: FleetSetting, role: Role, ffn: Role | None, most: int, chunk: int, drafts: Drafts) -> StepGrid:
    """Steps of one engine of a role."""
    sides = tuple((side.pool, *side.parallelism.model_dump().values()) for side in (role, ffn) if side is not None)
    turns = role.limits.get("micro_batches", 1), *all_degrees(ffn or role)[6:]
    near = _near(setting, role)
    runs = None if near is None else (role.function != "colocated", setting.spread_gpus)
    key = sides, *turns, most, chunk, drafts.tokens, drafts.drafter is None, role.function == ATTENTION, runs
    longest, most_tokens = int(_whole_tokens(setting, role).max()), setting.arch.max_context_tokens

    def priced(reach: int) -> StepGrid:
        return _priced(setting, role, ffn, most, chunk, drafts, reach)

    return setting.grids.grid(role.model, key, longest, max(min(most_tokens, _most_context(role)), longest), priced)


def _priced(
    setting: FleetSetting, role: Role, ffn: Role | None, most: int, chunk: int, drafts: Drafts, longest: int
) -> StepGrid:
    """Steps of one engine of a role with sequences of up to `longest` tokens."""
    pool, shape, known = setting.pools[role.pool], role.parallelism, setting.calibration.efficiencies
    pricer = _pricer(setting, pool, role)
    overheads = setting.overheads
    if ffn is not None:
        other, turns, far = ffn.parallelism, int(role.limits.get("micro_batches", 1)), None
        degrees = shape.tp, shape.dp, other.tp, other.dp, turns
        if ffn.pool != role.pool:
            there = setting.pools[ffn.pool]
            far = RemoteFfn(_pricer(setting, there, ffn), Port.of(pool, known), Port.of(there, known))
        return unit_grid(
            setting.arch,
            pricer,
            overheads,
            Units.within(*degrees, pool.node.scale_up_size, all_degrees(ffn)[-1]),
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
        shards_of(role),
        overheads,
        most_sequences=most,
        longest_tokens=longest,
        chunk_tokens=chunk,
        draft_tokens=drafts.tokens,
        drafter=drafts.drafter,
        joint_apart=together(role, setting.arch) > 1,
    )


def _encode_s(setting: FleetSetting, role: Role, media: Sequence[Media | None]) -> tuple[tuple[float, float], ...]:
    """By workload, what encoding takes an engine of the role: a run of the tower, and a token of it."""
    pricer, shards = _pricer(setting, setting.pools[role.pool], role), shards_of(role)
    models = [setting.problem.model_of(workload) for workload in setting.problem.workloads]
    times = [
        encode_times(setting.arch, pricer, shards, each) if each is not None and model == role.model else None
        for each, model in zip(media, models, strict=True)
    ]
    return tuple((0.0, 0.0) if each is None else (float(each.base_s[0]), float(each.token_s[0])) for each in times)


def _most_context(role: Role) -> int:
    """Tokens of prompt and answer together at which its engines end an answer."""
    return int(role.limits.get("max_context_tokens", UNLIMITED))


def _whole_tokens(setting: FleetSetting, role: Role) -> Ints:
    """Tokens of each request at its end, as far as the role lets it come."""
    whole = setting.requests.input_tokens + setting.requests.output_tokens
    return np.asarray(np.minimum(whole, _most_context(role)), dtype=np.int64)


def _pricer(setting: FleetSetting, pool: Pool, role: Role) -> Pricer:
    return make_pricer(
        pool,
        setting.arch,
        engine=setting.problem.engine.name,
        version=setting.problem.engine.version,
        calibration=setting.calibration,
        store=open_store(setting.profiles),
        near=_near(setting, role),
    ).of_role(role.function)


def _near(setting: FleetSetting, role: Role) -> NearRuns | None:
    """Own runs of the model of a role on its pool, as the search took them; of traces, answers as they are sent."""
    accelerator = setting.pools[role.pool].node.accelerator.name
    answers = [_mean_answer(setting.requests, index) for index in range(len(setting.problem.workloads))]
    return near_runs(
        setting.calibration, setting.arch, accelerator, setting.problem, str(role.model), setting.spread_gpus, answers
    )


def _mean_answer(requests: Requests, workload: int) -> float:
    """Tokens of the answers of a workload, or of all where requests do not say of which they are; NaN of none."""
    tokens = requests.output_tokens if requests.workload is None else requests.output_tokens[requests.is_of([workload])]
    return float(tokens.mean()) if len(tokens) else math.nan


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


def moved_bytes(setting: FleetSetting, drafts: Drafts = NO_DRAFTS) -> float:
    """Bytes that move for one token of prompt, all ranks together."""
    length = float(np.mean(setting.requests.input_tokens))
    moved = kv_bytes(setting.arch, np.array([length])) + state_bytes_per_sequence(setting.arch, np.array([1.0]))
    return (float(moved[0]) + drafts.kv_bytes(Shards.of(1), length)) / length


def shards_of(role: Role) -> Shards:
    """Degrees of a role."""
    return Shards.of(*all_degrees(role))


def _link_bytes_per_s(pool: Pool, crossing: bool) -> float:
    """Bandwidth of one device to devices of other instances: the fabric, or the scale-up links of a lone domain."""
    if not crossing and pool.num_nodes * pool.node.num_gpus <= pool.node.scale_up_size:
        return pool.node.scale_up_bandwidth_bytes_per_s
    return pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription
