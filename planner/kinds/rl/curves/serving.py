"""Servers of models that score samples on GPUs of their own, and of rules and sandboxes on CPUs.

An engine takes batches of whole samples through its prefill, in steps of PREFILL_TOKENS, and drops their caches. A
reference or a teacher gives the log-probabilities of every token, for which it computes logits of all of them; a reward
model gives one figure a sample. What a batch takes is a line through one sample and a full step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.costs.operators.work import Shards, Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer, make_pricer
from planner.costs.rates.step import step_time
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.documents.units import format_si
from planner.errors import Infeasible, PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.generation import MOST_DOMAINS, PREFILL_TOKENS, serves
from planner.kinds.rl.curves.shapes import Lengths
from planner.kinds.rl.drawn import samples
from planner.kinds.rl.options import ServedModel
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture, MoeFfn
from planner.plan.schema import Memory, Parallelism
from planner.rl.curves import Service

LARGER = 2  # doublings of the smallest tp that fits, where none is asked for


@dataclass(frozen=True, slots=True)
class Server:
    """One kind of servers of a part, and what a device of an engine holds."""

    service: Service
    memory: Memory | None  # None on CPUs


def servers(setting: RlSetting, scored: Lengths) -> list[Server]:
    """Every kind of servers of each part that has some. Raises Infeasible where an engine fits on no pool."""
    calls = setting.options.reward_calls
    on_cpus = () if calls is None else (Service(calls.by, "", 0, calls.workers, 1, calls.start_s + calls.time_s, 0.0),)
    models = [
        server for index, spec in enumerate(setting.options.served) for server in _of(setting, index, spec, scored)
    ]
    return [*models, *(Server(service, None) for service in on_cpus)]


def _of(setting: RlSetting, index: int, spec: ServedModel, scored: Lengths) -> list[Server]:
    pools = [pool for pool in setting.pools if spec.pool in (None, pool.name)]
    fitting = [server for pool in pools for server in _on(setting, spec, pool, scored)]
    if fitting:
        return fitting
    arch = setting.model(spec.part)
    assert arch is not None
    if not pools:
        raise PlannerError(
            f"no pool is called `{spec.pool}`",
            where=setting.resolved.where(("options", "served", index, "pool")),
            hint=f"the pools are {', '.join(pool.name for pool in setting.pools)}",
        )
    pool = max(pools, key=lambda pool: pool.num_gpus)
    weights = format_si(float(weight_bytes(arch, Shards.of(1))[0]), "B")
    room = format_si(pool.node.accelerator.memory_bytes, "B")
    asked = f" of tp {', '.join(map(str, spec.tp))}" if spec.tp else ""
    limit = f"engines{asked} of the {spec.part}, {weights} of weights and {min(spec.batch_samples)} samples of"
    limit += f" {scored.longest} tokens at once, on {pool.name} = {pool.num_gpus} x {room}"
    raise Infeasible([{"limit": limit, "nearest": _enough(setting, spec, pool, scored)}], proved=True)


def _enough(setting: RlSetting, spec: ServedModel, pool: Pool, scored: Lengths) -> str:
    """The smallest change under which an engine fits: one sample at once, any tp, or both."""
    for update in ({"batch_samples": (1,)}, {"tp": None}, {"tp": None, "batch_samples": (1,)}):
        able = list(_on(setting, spec.model_copy(update=update), pool, scored))
        if able:
            tp = min(server.service.gpus for server in able)
            said = {"tp": f"tp {tp}", "batch_samples": "batch_samples 1"}
            return " and ".join(said[name] for name in update)
    return "a pool with more GPUs, or GPUs with more memory"


def _on(setting: RlSetting, spec: ServedModel, pool: Pool, scored: Lengths) -> Iterator[Server]:
    """Engines of every size and number on one pool."""
    arch, engine = setting.model(spec.part), setting.resolved.problem.engine
    assert arch is not None
    pricer = make_pricer(
        pool, arch, engine=engine.name, version=engine.version, calibration=setting.calibration, store=setting.store
    )
    for tp in _sizes(arch, spec, pool):
        shards = _shards(arch, tp)
        held = {batch: memory for batch in sorted(set(spec.batch_samples))
                if (memory := _memory(setting, arch, shards, pool, batch, scored, spec.part)) is not None}  # fmt: skip
        if not held:
            continue
        step_s, token_s = _line(setting, arch, pricer, shards, scored, spec.part)
        for count in _counts(setting, spec, pool, tp):
            for batch, memory in held.items():
                service = Service(spec.part, pool.name, tp, count, batch, step_s, token_s, spec.shared_by, spec.whole)
                yield Server(service, memory)


def _sizes(arch: Architecture, spec: ServedModel, pool: Pool) -> list[int]:
    """Degrees of tensor parallelism that divide the model; the smallest that can hold it and the next, if not asked."""
    domain = max(pool.node.num_gpus, pool.node.scale_up_size)
    most = min(pool.num_gpus, MOST_DOMAINS * domain)
    powers = [1 << power for power in range(most.bit_length())]
    able = [
        tp for tp in (spec.tp or powers)
        if tp <= most and (tp <= domain or tp % domain == 0) and serves(arch, tp, tp // _ep(arch, tp), _ep(arch, tp))
    ]  # fmt: skip
    if spec.tp is not None:
        return sorted(set(able))
    memory = pool.node.accelerator.memory_bytes
    holding = [tp for tp in able if float(weight_bytes(arch, _shards(arch, tp))[0]) < memory]
    return holding[: LARGER + 1]


def _counts(setting: RlSetting, spec: ServedModel, pool: Pool, tp: int) -> list[int]:
    """Numbers of engines: those asked for that the pool has GPUs for, or powers of two up to one a sample."""
    most = min(pool.num_gpus // tp, samples(setting.options))
    return [n for n in sorted(set(spec.servers or (1 << power for power in range(most.bit_length())))) if n <= most]


def _ep(arch: Architecture, tp: int) -> int:
    """Experts lie whole on the ranks where they divide."""
    experts = [layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)]
    return tp if experts and not any(count % tp for count in experts) else 1


def shards_of(setting: RlSetting, service: Service) -> Parallelism:
    """How an engine of a part is cut."""
    arch = setting.model(service.part)
    assert arch is not None
    ep = _ep(arch, service.gpus)
    sparse = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    return Parallelism(tp=service.gpus, ep=ep, moe_tp=service.gpus // ep if sparse else 1)


def _shards(arch: Architecture, tp: int) -> Shards:
    ep = _ep(arch, tp)
    sparse = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    return Shards.of(tp, 1, 1, tp // ep if sparse else tp, ep)


def _memory(
    setting: RlSetting, arch: Architecture, shards: Shards, pool: Pool, batch: int, scored: Lengths, part: str
) -> Memory | None:
    """What a device holds with `batch` of the longest samples under way; None where there is no room for them."""
    spec = setting.resolved.problem.engine
    workspace = setting.calibration.engine(spec.name, spec.version).workspace_bytes
    capacity = pool.node.accelerator.usable_bytes(spec.memory_utilisation)
    tokens = float(min(PREFILL_TOKENS, batch * scored.longest))
    weights = float(weight_bytes(arch, shards)[0])
    activations = float(activation_bytes(arch, shards, tokens, tokens if _log_probabilities(part) else batch)[0])
    caches = batch * float(kv_cache_bytes(arch, shards, [float(scored.longest)])[0])
    if weights + activations + caches + workspace > capacity:
        return None
    return Memory(
        weights_bytes=weights,
        kv_cache_bytes=caches,
        activations_bytes=activations,
        workspace_bytes=workspace,
        capacity_bytes=capacity,
    )


def _log_probabilities(part: str) -> bool:
    """Whether a part says something of every token, and not of the sample alone."""
    return part != "reward"


def _line(
    setting: RlSetting, arch: Architecture, pricer: Pricer, shards: Shards, scored: Lengths, part: str
) -> tuple[float, float]:
    """Seconds of a batch whatever it holds, and of every token of it."""
    spec = setting.resolved.problem.engine
    engine = setting.calibration.engine(spec.name, spec.version, arch.name)

    def step_s(tokens: float, sequences: float, context: float = 0.0) -> float:
        work = Work.prefill(tokens, context, sequences)
        return float(step_time(arch, pricer, shards, work, engine).seconds[0])

    full, alone = float(PREFILL_TOKENS), float(scored.typical)
    if alone >= full:
        fixed_s, token_s = 0.0, step_s(full, 1.0, (alone - full) / 2.0) / full
    else:
        first_s, full_s = step_s(alone, 1.0), step_s(full, full / alone)
        token_s = max(full_s - first_s, 0.0) / (full - alone)
        fixed_s = max(first_s - token_s * alone, 0.0)
    return fixed_s, token_s + (_logits_s(arch, pricer, shards, engine) if _log_probabilities(part) else 0.0)


def _logits_s(arch: Architecture, pricer: Pricer, shards: Shards, engine: EngineOverheads) -> float:
    """Seconds a token of the logits of all tokens: what a full step takes more when each of its tokens ends a prompt
    than when every second one does, the host's part for each prompt aside."""
    bare = replace(engine.unhurried(), sequence_s=0.0)
    full = float(PREFILL_TOKENS)
    each, half = step_time(
        arch, pricer, Shards.joined([shards, shards]), Work.prefill([full, full], 0.0, [full, full / 2]), bare
    ).seconds
    return max(float(each - half), 0.0) / (full / 2)
