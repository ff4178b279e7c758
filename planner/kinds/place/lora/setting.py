"""What adapters are placed with: bytes of an adapter, and the time of a request with and without one.

An adapter of rank r adds A [in, r] and B [r, out] to every matrix [in, out] that it changes, 2 r (in + out) FLOP a
token. Of a matrix that tensor parallelism cuts by columns a rank holds A and its part of B, of one cut by rows its part
of A and B. A step reads each adapter that its sequences need once, as many as the engine holds at most. With b of B
sequences decoded at a time, p tokens of a prompt, o of an answer and t_d(b), t_p times of the whole model's steps
    merged      t_p + (o - 1) t_d(b) / b
    unmerged    that, and  p F / peak + A / BW + (o - 1) (F / peak + min(b, slots) A / (b BW))
or as much longer as the problem's `slowdown` says. A are bytes and F FLOP of a token of an adapter on a rank, b the
most sequences whose caches lie beside weights and adapters.
"""

import math
from dataclasses import dataclass

from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.step import step_time
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes, weight_divisors
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.place.decision import LoraOptions, PlaceOptions
from planner.kinds.place.floor import read_floor
from planner.models.adapters import ATTENTION, DENSE_FFN, LoraAdapter, adapter_parameters, targets_of
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention
from planner.problem.resolve import Resolved, Workload
from planner.solvers.placement.floor import Floor

MAX_BUSY = 0.9
PARAMETER_BYTES = 2.0  # of adapters, bf16


@dataclass(frozen=True, slots=True)
class EngineShape:
    """An engine of so many GPUs: its memory [bytes of a device], and what a request takes of its time [s]."""

    tp: int
    batch: int
    weights_bytes: float
    adapter_bytes: float
    cache_bytes: float  # of all sequences
    activations_bytes: float
    workspace_bytes: float
    room_bytes: float
    merged_s: float
    unmerged_s: float


@dataclass(frozen=True, slots=True, eq=False)
class LoraSetting:
    """A resolved problem with the shapes that its engines can have; adapters in the order of their names."""

    resolved: Resolved
    options: PlaceOptions
    lora: LoraOptions
    calibration: Calibration
    shapes: tuple[EngineShape, ...]
    floor: Floor | None = None

    @property
    def workload(self) -> Workload:
        """The only one, whose lengths are those of all adapters' requests."""
        return self.resolved.workloads[0]

    @property
    def pool(self) -> Pool:
        """The only one."""
        return self.resolved.pools[0]

    @property
    def names(self) -> list[str]:
        return sorted(self.lora.adapters)

    @property
    def rates_per_s(self) -> list[float]:
        """Requests a second, by adapter."""
        return [self.lora.adapters[name].rate_per_s for name in self.names]

    @property
    def gpus(self) -> int:
        """At hand."""
        return self._within(
            len(self.pool.job_devices) if self.floor is None else sum(node.free for node in self.floor.nodes)
        )

    def most_engines(self, shape: EngineShape) -> int:
        """Engines of a shape that have room."""
        room = self.gpus if self.floor is None else self._within(self.floor.room_of_all(shape.tp))
        return room // shape.tp

    def _within(self, gpus: int) -> int:
        """No more than the limit of the problem."""
        return min(gpus, self.resolved.problem.limits.gpus or gpus)

    @property
    def max_busy(self) -> float:
        """Part of the time that engines may work, where they are to be few."""
        return MAX_BUSY if self.lora.max_busy is None else self.lora.max_busy

    def shape(self, tp: int) -> EngineShape:
        """Raises PlannerError where engines of so many GPUs are none of the problem's."""
        for shape in self.shapes:
            if shape.tp == tp:
                return shape
        sizes = ", ".join(str(shape.tp) for shape in self.shapes)
        raise PlannerError(f"engines of {tp} GPUs", where="decision.roles", hint=f"the problem's have {sizes}")


def read_setting(resolved: Resolved) -> LoraSetting:
    """Raises PlannerError for problems of several models or pools, and for bases that no engine holds."""
    options = PlaceOptions.model_validate(resolved.problem.options)
    lora = options.lora
    assert lora is not None
    _require_form(resolved)
    calibration = load_calibration(resolved.problem.costs.calibration)
    pool = resolved.pools[0]
    degrees = options.tp or tuple(1 << power for power in range(pool.node.num_gpus.bit_length()))
    fitting = [tp for tp in sorted(set(degrees)) if pool.node.num_gpus % tp == 0 and _divides(resolved, tp)]
    if not fitting:
        what = f"no engine of tp {list(degrees)} lies within a node of {pool.node.num_gpus} GPUs and divides the heads"
        raise PlannerError(what, where=resolved.where(("options", "tp")), hint="name divisors of both")
    shapes = [_shape(resolved, options, lora, calibration, tp) for tp in fitting]
    able = tuple(shape for shape in shapes if shape.batch)
    if not able:
        last = shapes[-1]
        need = last.weights_bytes + lora.slots * last.adapter_bytes + last.activations_bytes + last.workspace_bytes
        raise PlannerError(
            f"no engine holds its model, {lora.slots} adapters and a sequence: on {last.tp} GPUs they take "
            f"{need / 1e9:.1f} GB of {last.room_bytes / 1e9:.1f} GB before the cache",
            where=resolved.where(("options", "lora", "slots")),
            hint="lower `slots` or `rank`, or allow larger engines in `options.tp`",
        )
    return LoraSetting(resolved, options, lora, calibration, able, read_floor(resolved, options))


def _require_form(resolved: Resolved) -> None:
    where, problem = resolved.where, resolved.problem
    if len(resolved.workloads) != 1 or len(resolved.models) != 1:
        what = f"{len(resolved.models)} models and {len(resolved.workloads)} workloads"
        hint = "place adapters of one model, with one workload that states the lengths of requests"
        raise PlannerError(what, where=where(("workloads",)), hint=hint)
    if len(resolved.pools) != 1:
        what, hint = f"{len(resolved.pools)} pools", "place adapters on engines of one pool"
        raise PlannerError(what, where=where(("cluster", "pools")), hint=hint)
    (workload,) = resolved.workloads
    resolved.require_priceable(workload.model)
    if workload.spec.load is not None or list(workload.spec.slo.limits()) or workload.spec.slo.attainment is not None:
        what = "adapters are placed for an even load of engines, by the rates of `options.lora.adapters`"
        raise PlannerError(what, where=where(("workloads", 0)), hint="remove `load` and `slo`")
    pool = problem.cluster.pools[0]
    stated = (("price", pool.usd_per_gpu_hour), ("nic_bandwidth", pool.nic_bandwidth_bytes_per_s))
    for name, value in stated:
        if value is not None:
            what = f"adapters are placed on engines that lie within nodes, whatever their `{name}`"
            raise PlannerError(what, where=where(("cluster", "pools", 0, name)), hint="remove it")
    if problem.cluster.links:
        what = "adapters are placed on engines of one pool, and links join pools"
        raise PlannerError(what, where=where(("cluster", "links")), hint="remove them")


def _divides(resolved: Resolved, tp: int) -> bool:
    """Whether heads divide over the ranks."""
    arch = resolved.models[resolved.workloads[0].model]
    mixers = [layer.mixer for layer, _ in arch.layer_groups() if isinstance(layer.mixer, GroupedQueryAttention)]
    return all(
        mixer.num_heads % tp == 0 and (mixer.num_kv_heads % tp == 0 or tp % mixer.num_kv_heads == 0) for mixer in mixers
    )


def _shape(
    resolved: Resolved, options: PlaceOptions, lora: LoraOptions, calibration: Calibration, tp: int
) -> EngineShape:
    (workload,), pool, engine = resolved.workloads, resolved.pools[0], resolved.problem.engine
    arch = resolved.models[workload.model]
    shards, overheads = Shards.of(float(tp)), calibration.engine(engine.name, engine.version, arch.name)
    pricer = make_pricer(pool, arch, engine=engine.name, version=engine.version, calibration=calibration, store=None)
    prompt, answer = workload.input.mean_tokens, workload.output.mean_tokens
    weights = float(weight_bytes(arch, shards)[0])
    sequence = float(kv_cache_bytes(arch, shards, prompt + answer)[0])
    activations = float(activation_bytes(arch, shards, float(options.chunk_tokens), float(options.max_batch))[0])
    own, flop = _adapter(resolved, arch, lora, tp)
    room = pool.node.accelerator.usable_bytes(engine.memory_utilisation)
    free = room - weights - lora.slots * own - activations - overheads.workspace_bytes
    batch = min(options.max_batch, max(math.floor(free / sequence), 0))
    if not batch:
        workspace = overheads.workspace_bytes
        return EngineShape(tp, 0, weights, own, 0.0, activations, workspace, room, math.inf, math.inf)
    together = max(options.chunk_tokens / prompt, 1.0)
    prefill = step_time(arch, pricer, shards, Work.prefill(prompt * together, 0.0, together), overheads).seconds[0]
    decode = step_time(arch, pricer, shards, Work.decode(float(batch), prompt + answer), overheads).seconds[0]
    merged_s = float(prefill / together + (answer - 1.0) * decode / batch)
    token_s = flop / pool.node.accelerator.peak("bf16")
    read_s = own / pool.node.accelerator.memory_bandwidth_bytes_per_s
    beside_s = prompt * token_s + read_s + (answer - 1.0) * (token_s + min(batch, lora.slots) * read_s / batch)
    return EngineShape(
        tp,
        batch,
        weights,
        own,
        sequence * batch,
        activations,
        overheads.workspace_bytes,
        room,
        merged_s,
        merged_s + beside_s if lora.slowdown is None else merged_s * lora.slowdown,
    )


def _adapter(resolved: Resolved, arch: Architecture, lora: LoraOptions, tp: int) -> tuple[float, float]:
    """Bytes of an adapter on a rank, and its FLOP a token there."""
    divisors = {split: float(by_N[0]) for split, by_N in weight_divisors(arch, Shards.of(float(tp))).items()}
    targets = _targets(resolved, arch, lora)
    parameters = adapter_parameters(LoraAdapter("adapter", lora.rank, targets), arch, divisors)
    return parameters * PARAMETER_BYTES, 2.0 * parameters


def _targets(resolved: Resolved, arch: Architecture, lora: LoraOptions) -> tuple[str, ...]:
    """The matrices that adapters change; raises PlannerError for parts that are not priced."""
    layers, known = [layer for layer, _ in arch.layer_groups()], targets_of(arch)
    parts = (
        ("attention", "attention", ATTENTION, all(isinstance(each.mixer, GroupedQueryAttention) for each in layers)),
        ("ffn", "experts", DENSE_FFN, all(isinstance(each.ffn, DenseFfn) for each in layers)),
    )
    for module, what, _, priced in parts:
        if module in lora.modules and not priced:
            other = "ffn" if module == "attention" else "attention"
            raise PlannerError(
                f"adapters of the {what} of `{resolved.workloads[0].model}` are not priced",
                where=resolved.where(("options", "lora", "modules")),
                hint=f"write `modules: [{other}]`",
            )
    return tuple(name for module, _, names, _ in parts if module in lora.modules for name in names if name in known)
