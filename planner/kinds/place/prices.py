"""Shapes of groups priced for every model: bytes of an engine, stage times of a pass, and tables of its steps.

Suffixes: C shape, M model, K stage, B sequences, X contexts, T prompt tokens.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer, make_pricer
from planner.costs.rates.step import step_time
from planner.costs.serving.axes import geometric_axis
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.place.decision import PlaceOptions
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, LinearAttention
from planner.problem.resolve import Resolved, Workload
from planner.simulate.fleet.step_grid import interpolated
from planner.solvers.placement.batched_groups import Batches
from planner.solvers.placement.shared_groups import GroupShape

TAIL = 4.0  # standard deviations beyond the mean to which lengths are priced; longer ones go on along the last line


@dataclass(frozen=True, slots=True)
class Degrees:
    """Tensor and pipeline parallelism of a group."""

    tp: int
    pp: int

    @property
    def name(self) -> str:
        return f"tp{self.tp}pp{self.pp}"


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """All shapes that some model can run in, and what engines take of a device there [C, M]."""

    degrees: tuple[Degrees, ...]
    shapes: tuple[GroupShape, ...]
    weights_CM: Floats
    kv_CM: Floats
    activations_CM: Floats
    workspace_bytes: float  # of every engine
    room_bytes: float
    batches: Batches | None


@dataclass(frozen=True, slots=True)
class _Engine:
    """A model with the workload that it serves and what its steps cost."""

    arch: Architecture
    workload: Workload
    pricer: Pricer
    overheads: EngineOverheads
    sequences: int  # that it takes at a time, at most

    def seconds(self, degrees: Degrees, work: Work) -> Floats:
        shards = Shards.of(np.full(len(work.tokens), float(degrees.tp)), float(degrees.pp))
        return step_time(self.arch, self.pricer, shards, work, self.overheads).seconds

    @property
    def prompt_tokens(self) -> float:
        """Length whose attention stands for that of all prompts: their mean square over their mean."""
        facts = self.workload.input
        return facts.mean_tokens * (1.0 + facts.cv**2)

    @property
    def mean_tokens(self) -> float:
        return self.workload.input.mean_tokens + self.workload.output.mean_tokens

    @property
    def long_tokens(self) -> float:
        sides = (self.workload.input, self.workload.output)
        return sum(facts.mean_tokens * (1.0 + TAIL * facts.cv) for facts in sides)

    @property
    def room_tokens(self) -> float:
        """Of its cache: as many sequences of the mean length as it takes at a time, or one long one."""
        return max(self.sequences * self.mean_tokens, self.long_tokens)


def priced(resolved: Resolved, options: PlaceOptions, calibration: Calibration, sequences_M: Sequence[int]) -> Prices:
    """With so many sequences at a time of each model's engines.

    Raises PlannerError where no group that the options allow can run a model.
    """
    pool, spec = resolved.pools[0], resolved.problem.engine
    workspace_bytes = calibration.engine(spec.name, spec.version).workspace_bytes
    engines = [
        _Engine(
            resolved.models[workload.model],
            workload,
            make_pricer(
                pool,
                resolved.models[workload.model],
                engine=spec.name,
                version=spec.version,
                calibration=calibration,
                store=None,
            ),
            calibration.engine(spec.name, spec.version, resolved.models[workload.model].name),
            sequences,
        )
        for workload, sequences in zip(resolved.workloads, sequences_M, strict=True)
    ]
    degrees = _degrees(resolved, options, pool)
    runs_CM = np.array([[_can_run(engine.arch, each) for engine in engines] for each in degrees])
    held = _bytes(engines, degrees, options)
    needed = np.where(runs_CM, sum(held, np.full(runs_CM.shape, workspace_bytes)), np.inf)
    room = pool.node.accelerator.usable_bytes(spec.memory_utilisation)
    _require_room(resolved, needed, degrees, room)
    batches = _batches(engines, degrees, options) if options.batching else None
    shapes = tuple(
        GroupShape(each.name, each.tp * each.pp, _stages(engines, each, options), needed[index])
        for index, each in enumerate(degrees)
    )
    weights, activations, kv = held
    return Prices(degrees, shapes, weights, kv, activations, workspace_bytes, room, batches)


def _degrees(resolved: Resolved, options: PlaceOptions, pool: Pool) -> tuple[Degrees, ...]:
    """Every product of degrees within a node; powers of two where the options name none."""
    most = min(pool.node.num_gpus, options.max_group_gpus or pool.node.num_gpus)
    powers = tuple(1 << power for power in range(most.bit_length()))
    tps, pps = options.tp or powers, options.pp or (powers if not options.batching else (1,))
    chosen = tuple(
        Degrees(tp, pp)
        for tp, pp in itertools.product(sorted(set(tps)), sorted(set(pps)))
        if tp * pp <= most and pool.node.num_gpus % (tp * pp) == 0
    )
    if not chosen:
        raise PlannerError(
            f"no group of tp {list(tps)} and pp {list(pps)} lies within {most} GPUs of a node of {pool.node.num_gpus}",
            where=resolved.where(("options",)),
            hint="name degrees whose product divides the GPUs of a node",
        )
    return chosen


def _can_run(arch: Architecture, degrees: Degrees) -> bool:
    """Whether heads divide over the tensor-parallel ranks, and every stage has a layer."""
    for layer, _ in arch.layer_groups():
        match layer.mixer:
            case GroupedQueryAttention() as mixer:
                heads, kv = mixer.num_heads, mixer.num_kv_heads
                if heads % degrees.tp or (kv % degrees.tp and degrees.tp % kv):
                    return False
            case LatentAttention() as mixer if mixer.num_heads % degrees.tp:
                return False
            case LinearAttention() as mixer if mixer.num_value_heads % degrees.tp:
                return False
            case _:
                pass
    return degrees.pp <= arch.num_layers


def _bytes(engines: Sequence[_Engine], degrees: Sequence[Degrees], options: PlaceOptions) -> tuple[Floats, ...]:
    """Weights, activations and caches of engines on the fullest device [C, M]."""
    shards = Shards.of([float(each.tp) for each in degrees], [float(each.pp) for each in degrees])
    weights = np.stack([weight_bytes(engine.arch, shards) for engine in engines], axis=1)
    tokens = [options.chunk_tokens if options.batching else engine.workload.input.mean_tokens for engine in engines]
    activations = np.stack(
        [
            activation_bytes(engine.arch, shards, float(count), float(engine.sequences))
            for engine, count in zip(engines, tokens, strict=True)
        ],
        axis=1,
    )
    if not options.batching:
        return weights, activations, np.zeros_like(weights)
    kv = [
        kv_cache_bytes(engine.arch, shards, engine.room_tokens / engine.sequences) * engine.sequences
        for engine in engines
    ]
    return weights, activations, np.stack(kv, axis=1)


def _require_room(resolved: Resolved, needed_CM: Floats, degrees: Sequence[Degrees], room: float) -> None:
    for index, workload in enumerate(resolved.workloads):
        least = int(np.argmin(needed_CM[:, index]))
        if needed_CM[least, index] > room:
            finite = np.isfinite(needed_CM[least, index])
            need = f"takes {needed_CM[least, index] / 1e9:.1f} GB of a device on {degrees[least].name}"
            raise PlannerError(
                f"model `{workload.model}` fits no group: it {need if finite else 'runs in none of their shapes'}, "
                f"and engines may use {room / 1e9:.1f} GB",
                where=resolved.where(("models", workload.model)),
                hint="allow larger groups, or choose another weight format",
            )


def _stages(engines: Sequence[_Engine], degrees: Degrees, options: PlaceOptions) -> Floats:
    """Seconds of a request by stage [M, K]; where engines batch, its share of full steps, which guides the search."""
    if not options.batching:
        whole = [engine.seconds(degrees, Work.prefill(engine.workload.input.mean_tokens))[0] for engine in engines]
        return np.repeat(np.array(whole)[:, None] / degrees.pp, degrees.pp, axis=1)
    return np.array([[_work_s(engine, degrees, options)] for engine in engines])


def _work_s(engine: _Engine, degrees: Degrees, options: PlaceOptions) -> float:
    """The least that a request takes of a group, its prompt and each token sharing full steps with others."""
    prompt, answer = engine.workload.input.mean_tokens, engine.workload.output.mean_tokens
    together = max(options.chunk_tokens / prompt, 1.0)
    prefill = engine.seconds(degrees, Work.prefill(prompt * together, 0.0, together))[0] / together
    decode = engine.seconds(degrees, Work.decode(float(engine.sequences), engine.mean_tokens))[0] / engine.sequences
    return float(prefill + (answer - 1.0) * decode)


def _batches(engines: Sequence[_Engine], degrees: Sequence[Degrees], options: PlaceOptions) -> Batches:
    """Tables of the steps of all engines on one set of axes."""
    longest = max(engine.long_tokens for engine in engines)
    context_X = geometric_axis(longest)[1:]
    prompt_T = geometric_axis(max(float(options.chunk_tokens), longest))[1:]
    most = max(engine.sequences for engine in engines)
    counts, sequence_B = np.arange(1, most + 1, dtype=np.float64), geometric_axis(most)[1:]
    decode = np.zeros((len(degrees), len(engines), most + 1, len(context_X)))
    prefill = np.zeros((len(degrees), len(engines), len(prompt_T)))
    known: dict[tuple[Architecture, float, Degrees], int] = {}
    for (c, each), (m, engine) in itertools.product(enumerate(degrees), enumerate(engines)):
        if not _can_run(engine.arch, each):
            continue
        key = (engine.arch, engine.prompt_tokens, each)
        if key in known:
            decode[c, m], prefill[c, m] = decode[c, known[key]], prefill[c, known[key]]
            continue
        known[key] = m
        count, context = (mesh.ravel() for mesh in np.meshgrid(sequence_B, context_X, indexing="ij"))
        seconds = engine.seconds(each, Work.decode(count, context)).reshape(len(sequence_B), -1)
        decode[c, m, 1:] = interpolated(sequence_B, seconds.T, counts).T
        prompts = np.maximum(prompt_T / engine.prompt_tokens, 1.0)
        prefill[c, m] = engine.seconds(each, Work.prefill(prompt_T, 0.0, prompts))
    limits = [_limits(engine) for engine in engines]
    return Batches(
        np.array([engine.sequences for engine in engines], dtype=np.int64),
        np.full(len(engines), options.chunk_tokens, dtype=np.int64),
        np.array([int(engine.room_tokens) for engine in engines], dtype=np.int64),
        decode,
        context_X,
        prefill,
        prompt_T,
        np.array(limits),
    )


def _limits(engine: _Engine) -> tuple[float, ...]:
    """On the first token, between tokens and on the last, less what a request takes on its way to the scheduler."""
    strictest = engine.workload.spec.slo.percentile_limits()
    way_s = float(engine.overheads.request_s(engine.workload.input.mean_tokens))
    way = {"ttft": way_s, "tpot": 0.0, "latency": way_s}
    return tuple(strictest.get(name, np.inf) - taken_s for name, taken_s in way.items())
