"""Cost curves of generation replicas: decode step by batch and context, prefill, and the KV cache that fits.

A curve is step_s + sequence_s b + token_s S for b sequences holding S tokens, fitted to the decode step of the cost
model, which is nearly so: weights are read once a step, every sequence adds its part, every token of context its bytes.
With drafts, it is the step that drafts and verifies them over the tokens that a sequence gets of it on average.
Array suffixes: P points of the fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.pricer import Pricer, make_pricer
from planner.costs.rates.step import step_time
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.serving.speculation import Drafter, drafter_of, drafting_step
from planner.engines.parallelism import cuts_blocks
from planner.hardware.cluster import Pool
from planner.kinds.rl.handover import host_bytes_per_s
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import (
    Architecture,
    DenseFfn,
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    MoeFfn,
)
from planner.models.precision import with_precision
from planner.plan.schema import Memory
from planner.rl.curves import DecodeCurve, GenerationOption

PREFILL_TOKENS = 8192
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_PP = 8
MOST_DOMAINS = 8  # over which the tensor-parallel group of a replica may lie


@dataclass(frozen=True, slots=True)
class GeneratorCurve:
    """A kind of replica, what a device of it holds, and how far the curve is from the cost model at most."""

    option: GenerationOption
    memory: Memory | None  # None for measured curves
    error: float
    basis: dict[str, float]


def modelled_generators(setting: RlSetting, pool: Pool, mean_context: float) -> Iterator[GeneratorCurve]:
    """Every shape of a replica that fits on `pool`, in every format of its weights, priced."""
    for weights in dict.fromkeys(setting.options.rollout_weights) or (None,):
        if weights is None or pool.node.accelerator.supports(weights.removesuffix("_block")):
            yield from _generators(setting, pool, mean_context, weights)


def generating_model(setting: RlSetting, weights: str | None) -> Architecture:
    """The actor as replicas hold it, with its weights in a format of `rollout_weights`."""
    return setting.actor if weights is None else with_precision(setting.actor, weights)


def _generators(setting: RlSetting, pool: Pool, mean_context: float, weights: str | None) -> Iterator[GeneratorCurve]:
    """Those of one format."""
    arch = generating_model(setting, weights)
    spec = setting.resolved.problem.engine
    engine = setting.calibration.engine(spec.name, spec.version, arch.name)
    pricer = make_pricer(
        pool, arch, engine=setting.resolved.problem.engine.name,
        version=setting.resolved.problem.engine.version, calibration=setting.calibration, store=setting.store,
    )  # fmt: skip
    drafts = drafts_of(setting)
    room = pool.node.accelerator.usable_bytes(setting.resolved.problem.engine.memory_utilisation)
    room -= engine.workspace_bytes
    for tp, pp, ep in _degrees(setting, arch, pool):
        if drafts is not None and pp > 1:
            continue  # engines draft without pipeline stages
        shards = Shards.of(tp, pp, 1, tp // ep, ep)
        memory = _memory(setting, arch, shards, room, engine.workspace_bytes, drafts)
        if memory is None:
            continue
        kv_tokens = int(memory.kv_cache_bytes / _kv_token_bytes(arch, shards, mean_context, drafts))
        curve, error, basis = _curve(setting, arch, pricer, shards, mean_context, kv_tokens, drafts)
        sleep_s = 2.0 * memory.weights_bytes / host_bytes_per_s(setting, pool)
        held = memory.weights_bytes
        option = GenerationOption(pool.name, tp * pp, curve, tp, pp, ep, weights or "", sleep_s, held)
        yield GeneratorCurve(option, memory, error, basis)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Who drafts, and how many tokens of a sequence in a step."""

    drafter: Drafter
    tokens: int

    @property
    def tokens_N(self) -> Floats:
        return np.array([float(self.tokens)])

    @property
    def yielded(self) -> float:
        """Tokens that a sequence gets of a step on average."""
        return float(self.drafter.tokens_per_step(self.tokens_N)[0])


def drafts_of(setting: RlSetting) -> Drafts | None:
    """The drafts that the problem asks for. Raises PlannerError for a drafter that the actor cannot have."""
    spec = setting.options.speculation
    where = setting.resolved.where(("options", "speculation"))
    drafter = drafter_of(spec, setting.actor, setting.resolved.models, where)
    return None if spec is None or drafter is None else Drafts(drafter, spec.most)


def measured_generators(setting: RlSetting) -> Iterator[GeneratorCurve]:
    """The curves that the problem brings along."""
    for measured in setting.options.costs.generation:
        curve = DecodeCurve(**measured.model_dump(exclude={"pool", "tp", "pp", "ep"}))
        gpus = measured.tp * measured.pp
        option = GenerationOption(measured.pool, gpus, curve, measured.tp, measured.pp, measured.ep)
        yield GeneratorCurve(option, None, 0.0, {"measured": 1.0})


def _degrees(setting: RlSetting, arch: Architecture, pool: Pool) -> Iterator[tuple[int, int, int]]:
    """(tp, pp, ep) that the model's shapes allow. Tensor parallelism leaves a scale-up domain without stages alone."""
    domain = max(pool.node.num_gpus, pool.node.scale_up_size)
    wanted = setting.options.generation_tp or tuple(1 << power for power in range((MOST_DOMAINS * domain).bit_length()))
    experts = [layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)]
    for tp in sorted(set(wanted)):
        if tp > min(MOST_DOMAINS * domain, pool.num_gpus) or (tp > domain and tp % domain):
            continue
        for pp in (1 << power for power in range(MAX_PP.bit_length())):
            if pp > 1 and tp > domain:
                continue
            if (pp > 1 and tp < min(pool.node.num_gpus, domain)) or tp * pp > pool.num_gpus:
                continue  # stages only where a node is full
            for ep in sorted({1, tp}) if experts else (1,):
                if serves(arch, tp, tp // ep, ep) and pp <= arch.num_layers:
                    yield tp, pp, ep


def serves(arch: Architecture, tp: int, moe_tp: int, ep: int) -> bool:
    """Whether engines run the model so: all divides, and no shard cuts a block of weights that shares a scale."""
    return splits(arch, tp, moe_tp, ep) and not cuts_blocks(arch, tp, moe_tp)


def splits(arch: Architecture, tp: int, moe_tp: int, ep: int) -> bool:
    """Whether heads, feed-forward widths and experts divide."""
    for layer, _ in arch.layer_groups():
        match layer.mixer:
            case GroupedQueryAttention() as mixer:
                if mixer.num_heads % tp or (mixer.num_kv_heads % tp and tp % mixer.num_kv_heads):
                    return False
            case LatentAttention() as mixer if mixer.num_heads % tp:
                return False
            case LinearAttention() as mixer if mixer.num_value_heads % tp:
                return False
            case _:
                pass
        match layer.ffn:
            case DenseFfn() as ffn if ffn.intermediate_size % tp:
                return False
            case MoeFfn() as ffn if ffn.num_experts % ep or ffn.intermediate_size % moe_tp:
                return False
            case _:
                pass
    return True


def _memory(
    setting: RlSetting, arch: Architecture, shards: Shards, room: float, workspace: float, drafts: Drafts | None
) -> Memory | None:
    """What a device holds; None where weights leave no room for one sequence."""
    running = float(setting.options.max_running)
    weights = float(weight_bytes(arch, shards)[0])
    if drafts is not None:
        weights += float(drafts.drafter.weight_bytes(shards, drafts.tokens_N)[0])
    activations = float(activation_bytes(arch, shards, PREFILL_TOKENS, running)[0])
    kv = room - weights - activations
    if kv <= 0:
        return None
    return Memory(
        weights_bytes=weights,
        kv_cache_bytes=kv,
        activations_bytes=activations,
        workspace_bytes=workspace,
        capacity_bytes=room + workspace,
    )


def _kv_token_bytes(arch: Architecture, shards: Shards, context: float, drafts: Drafts | None) -> float:
    """Bytes a token on the fullest device, of a sequence at the mean context; the drafter's cache included."""
    held = float(kv_cache_bytes(arch, shards, np.array([context]))[0])
    if drafts is not None:
        held += float(drafts.drafter.kv_bytes(shards, np.array([context]), drafts.tokens_N)[0])
    return held / context


def _curve(
    setting: RlSetting,
    arch: Architecture,
    pricer: Pricer,
    shards: Shards,
    context: float,
    kv_tokens: int,
    drafts: Drafts | None,
) -> tuple[DecodeCurve, float, dict[str, float]]:
    """The curve of one shape: least squares of relative errors over batches that fit, around the mean context."""
    running = max(1, min(setting.options.max_running, int(kv_tokens / max(context, 1.0))))
    batch_P, context_P = (
        mesh.ravel()
        for mesh in np.meshgrid(
            np.array(sorted({*(float(b) for b in BATCHES if b < running), float(running)})),
            np.array([0.25, 0.5, 1.0, 1.5]) * context,
            indexing="ij",
        )
    )
    spec = setting.resolved.problem.engine
    engine = setting.calibration.engine(spec.name, spec.version, arch.name)
    pp = float(shards.pp[0])
    many = shards.take(np.zeros(len(batch_P), dtype=np.intp))
    work = Work.decode(batch_P / pp, context_P)
    if drafts is None:
        timed, token_s = step_time(arch, pricer, many, work, engine), 1.0
    else:
        work = work.with_drafts(np.full(len(batch_P), float(drafts.tokens)))
        timed = step_time(arch, pricer, many, work, engine)
        timed, token_s = timed.beside(drafting_step(drafts.drafter, pricer, many, work)), 1.0 / drafts.yielded
    parts = _fit(batch_P, context_P, timed.seconds * token_s)
    fitted = parts[0] + parts[1] * batch_P + parts[2] * batch_P * context_P
    error = float(np.abs(fitted / (timed.seconds * token_s) - 1.0).max())
    prefill = step_time(arch, pricer, shards, Work.prefill(float(PREFILL_TOKENS)), engine)
    rate = PREFILL_TOKENS * pp / float(prefill.seconds[0])
    middle = len(batch_P) // 2
    curve = DecodeCurve(parts[0], parts[1], parts[2], rate, setting.options.max_running, kv_tokens)
    return curve, error, timed.shares(middle)


def _fit(batch_P: Floats, context_P: Floats, seconds_P: Floats) -> tuple[float, float, float]:
    """Non-negative coefficients of 1, b and b S / b, in relative errors."""
    from scipy.optimize import nnls

    columns = np.stack([np.ones_like(batch_P), batch_P, batch_P * context_P], axis=1) / seconds_P[:, None]
    scale = columns.max(axis=0)
    coefficients, _ = nnls(columns / scale, np.ones(len(seconds_P)))
    step, sequence, token = (float(value) for value in coefficients / scale)
    return step, sequence, token
