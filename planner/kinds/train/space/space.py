"""The discrete search space of training: values of tp, pp, dp, cp, ep, ... and the legal combinations."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import get_args

import numpy as np

from planner.arrays import Bools, Ints
from planner.costs.training.config import ContextParallel, Schedule
from planner.engines.training import DEEPEP_RANKS
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.states import CONTEXTS, ShardShape, shard_shape, shared_out, zero_stages
from planner.models.architecture import GroupedQueryAttention, LatentAttention, LinearAttention, MoeFfn
from planner.solvers.pass_orders import CHUNKS

MICRO_BATCHES = (1, 2, 4, 8, 16)
NUMERIC_AXES = ("tp", "pp", "vpp", "dp", "cp", "ep", "moe_tp", "micro_batch")
MOST_CONTEXT_PARALLEL = 64
LEAST_PIECE_TOKENS = 4096
"""Of a sequence on one context-parallel rank, as in nearly all measured runs; shorter ones have to be asked for."""
MOST_STAGES_OF_RANK = 16
SAME_STAGES: tuple[tuple[Schedule, ...], ...] = (
    ("1f1b", "zb_h1", "zb_h2"),
    ("interleaved",),
    ("zb_v", "dualpipev"),
    ("dualpipe",),
)
"""Schedules whose ranks hold the same stages."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Legal combinations [N] of the axes that a micro-batch's cost hangs on, with the counts of those left out."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    pp: Ints
    dp: Ints
    context: Ints  # index into CONTEXTS
    axes: dict[str, tuple[int, ...]]
    illegal: dict[str, int]
    legal: (
        int  # combinations of the axes that no rule forbids; more than one method of context parallelism may suit one
    )

    def __len__(self) -> int:
        return len(self.tp)

    def shape(self, node: int) -> ShardShape:
        """The shape of one combination."""
        columns = (self.tp, self.cp, self.ep, self.etp, self.micro_batch, self.context)
        return shard_shape(*(int(column[node]) for column in columns))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def powers(most: int) -> tuple[int, ...]:
    """Powers of two up to `most`."""
    return tuple(1 << bit for bit in range(max(most, 1).bit_length()))


def stage_counts(layers: int) -> tuple[int, ...]:
    """Values of pp for so many layers: all up to 16, even ones to 32, every fourth beyond, and divisors of the layers.

    They do not depend on the GPUs at hand: what suits some suits more of them, so that one more node never hurts.
    """
    coarse = {*range(1, 16), *range(16, 32, 2), *range(32, layers + 1, 4)}
    return tuple(sorted(pp for pp in {*coarse, *divisors(layers)} if pp <= layers))


def head_counts(job: TrainJob) -> tuple[int, ...]:
    """Numbers of heads that tensor parallelism must divide, key-value heads where these are not replicated; those of
    towers on the same GPUs too."""
    counts: set[int] = set() if job.networks.apart else set(job.networks.heads)
    for layer in job.kinds:
        match layer.mixer:
            case GroupedQueryAttention() | LatentAttention():
                counts.add(layer.mixer.num_heads)
            case LinearAttention():
                counts |= {layer.mixer.num_key_heads, layer.mixer.num_value_heads}
    return tuple(sorted(counts))


def kv_head_counts(job: TrainJob) -> tuple[int, ...]:
    """Numbers of key-value heads: a tp must divide them, or be a multiple of them."""
    mixers = (layer.mixer for layer in job.kinds)
    return tuple(sorted({mixer.num_kv_heads for mixer in mixers if isinstance(mixer, GroupedQueryAttention)}))


def axis_values(job: TrainJob) -> dict[str, tuple[int, ...]]:
    """Values of every numeric axis: those of the problem, else all that can be legal."""
    search, options, domain = job.options.search, job.options, job.machine.domain_gpus
    batch, layers = options.common_batch, job.arch.num_layers
    expert_tp = tuple(sorted({1, *powers(domain)})) if job.num_experts else (1,)
    free: dict[str, tuple[int, ...]] = {
        "tp": powers(domain),
        "cp": tuple(cp for cp in powers(MOST_CONTEXT_PARALLEL) if cp == 1 or _long_enough(job, cp)),
        "ep": divisors(job.num_experts) if job.num_experts else (1,),
        "moe_tp": expert_tp,
        "micro_batch": (1,) if options.documents else tuple(size for size in MICRO_BATCHES if batch % size == 0),
        "pp": stage_counts(layers),
        "dp": divisors(batch),
        "vpp": tuple(range(1, MOST_STAGES_OF_RANK + 1)),
    }
    if job.strict:
        engine = job.engine
        most = {"pp": engine.most_pp, "ep": engine.most_ep, "moe_tp": None if engine.splits_experts else 1}
        free |= {name: (1,) for name, value in most.items() if value == 1}
    given = {name: getattr(search, name) for name in free}
    return {name: tuple(sorted(set(given[name]))) if given[name] is not None else free[name] for name in free}


def _long_enough(job: TrainJob, cp: int) -> bool:
    tokens = job.options.sequence_tokens
    return tokens % (2 * cp) == 0 and tokens // cp >= LEAST_PIECE_TOKENS


def space_of(job: TrainJob, part_dp: tuple[int, ...] = ()) -> Space:
    """All legal combinations of tp, cp, ep, moe_tp, micro-batch, pp and dp.

    `part_dp`: values of dp where these ranks do no more than a part of the batch.
    """
    axes = axis_values(job)
    if part_dp:
        axes["dp"] = part_dp
    names = ("tp", "cp", "ep", "moe_tp", "micro_batch", "pp", "dp")
    grid = np.meshgrid(*(np.array(axes[name], np.int64) for name in names), indexing="ij", sparse=True)
    tp, cp, ep, etp, micro_batch, pp, dp = grid
    alive: Bools = np.ones(np.broadcast_shapes(*(axis.shape for axis in grid)), np.bool_)
    illegal: dict[str, int] = {}
    of_batch = micro_batch if part_dp else dp * micro_batch
    for name, legal in _rules(job, of_batch=of_batch, tp=tp, cp=cp, ep=ep, etp=etp, pp=pp, dp=dp):
        before = int(alive.sum())
        alive &= legal
        illegal[name] = before - int(alive.sum())
    kept = [np.broadcast_to(axis, alive.shape)[alive] for axis in grid]
    num_legal = len(kept[0])
    kept = _with_methods(job, kept, kept[0], kept[1])
    counts = {name: count for name, count in illegal.items() if count}
    return Space(kept[0], kept[1], kept[2], kept[3], kept[4], kept[5], kept[6], kept[7], axes, counts, num_legal)


def rules_against(job: TrainJob) -> tuple[str, ...]:
    """The fewest rules that together leave no combination of the axes legal, in words; none where some is."""
    axes = axis_values(job)
    names = ("tp", "cp", "ep", "moe_tp", "micro_batch", "pp", "dp")
    tp, cp, ep, etp, size, pp, dp = np.meshgrid(*(np.array(axes[name]) for name in names), indexing="ij", sparse=True)
    legal = dict(_rules(job, of_batch=dp * size, tp=tp, cp=cp, ep=ep, etp=etp, pp=pp, dp=dp))
    for number in range(1, len(legal) + 1):
        for some in combinations(legal, number):
            alive = np.array(True)
            for name in some:
                alive = alive & legal[name]
            if not alive.any():
                return tuple(_rule_words(job)[name] for name in some)
    return ()


def _rule_words(job: TrainJob) -> dict[str, str]:
    """What each rule of `_rules` says where it is broken."""
    heads, kv_heads = (", ".join(map(str, counts)) for counts in (head_counts(job), kv_head_counts(job)))
    of_heads = f"{heads} attention heads" + (f" and {kv_heads} of keys and values" if kv_heads else "")
    experts = f"ep and moe_tp do not divide the {job.num_experts} experts and their width"
    return {
        "GPUs": f"tp x cp x pp x dp is more than the {job.num_gpus} GPUs",
        "nodes": f"tp x cp x pp x dp fills no whole nodes of {job.pool.node.num_gpus} GPUs",
        "batch": f"dp x micro-batch does not divide the batch of {job.options.common_batch}",
        "heads": f"tp does not divide the {of_heads}",
        "sequence": f"no method of context parallelism cuts {job.options.common_tokens} tokens by these cp and tp",
        "layers": f"more stages than the {job.arch.num_layers} layers",
        "ZeRO": "the ZeRO stage is not run with so many stages of a pipeline",
        "shards": "no such number of ranks shares out the sharded states",
        "experts": experts if job.num_experts else "a model without experts has ep 1 and moe_tp 1",
        "dispatcher": f"DeepEP joins {', '.join(map(str, DEEPEP_RANKS[1:]))} ranks, and not ep x moe_tp",
        "expert groups": "groups of experts do not tile the ranks of tp, cp and dp",
        "sequence parallelism": "groups of experts take tensor-parallel ranks with sequence parallelism alone",
    }


def _with_methods(job: TrainJob, columns: list[Ints], tp: Ints, cp: Ints) -> list[Ints]:
    """Combinations with every method of context parallelism that suits them, where they have such."""
    alone = cp == 1
    rows = [[*(column[alone] for column in columns), np.zeros(int(alone.sum()), np.int64)]]
    for method in context_methods(job):
        able = ~alone & context_suits(job, method, tp, cp)
        rows.append([*(column[able] for column in columns), np.full(int(able.sum()), CONTEXTS.index(method))])
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def _rules(
    job: TrainJob, *, of_batch: Ints, tp: Ints, cp: Ints, ep: Ints, etp: Ints, pp: Ints, dp: Ints
) -> Iterator[tuple[str, Bools]]:
    """(name, what is legal) of every rule, cheapest first; arrays broadcast. `of_batch` must divide the batch."""
    options = job.options
    yield "GPUs", tp * cp * pp * dp <= job.num_gpus
    if job.strict and not job.networks.apart:
        yield "nodes", ranks_of_node(job, tp * cp * pp * dp) > 0
    yield "batch", options.common_batch % of_batch == 0
    heads = np.ones_like(tp, np.bool_)
    for count in head_counts(job):
        heads &= count % tp == 0
    for count in kv_head_counts(job):
        heads &= (count % tp == 0) | (tp % count == 0)
    yield "heads", heads
    suits = np.zeros(np.broadcast_shapes(tp.shape, cp.shape), np.bool_)
    for method in context_methods(job):
        suits |= context_suits(job, method, tp, cp)
    yield "sequence", suits
    yield "layers", pp <= job.arch.num_layers
    piped = bool(zero_stages(job, 2))
    yield "ZeRO", np.where(pp > 1, piped, bool(zero_stages(job, 1)))
    yield "shards", shared_out(job, dp * cp, np.maximum(tp * cp * dp // (ep * etp), 1))
    if not job.num_experts:
        yield "experts", (ep == 1) & (etp == 1)
    else:
        sizes = [layer.ffn.intermediate_size for layer in job.kinds if isinstance(layer.ffn, MoeFfn)]
        whole = np.ones_like(etp, np.bool_)
        for size in sizes:
            whole &= size % etp == 0
        yield "experts", (job.num_experts % ep == 0) & whole
        group = ep * etp
        tiled = ((tp * cp * dp) % group == 0) & ((group % tp == 0) | (tp % group == 0))
        if job.strict and job.dispatcher == "deepep":
            yield "dispatcher", np.isin(group, DEEPEP_RANKS)
        yield "expert groups", tiled & ((etp == 1) | (etp == tp))
        if job.strict and job.engine.strict_overlaps and not job.framework.sequence_parallel:
            yield "sequence parallelism", (group == 1) | (tp == 1)


def ranks_of_node(job: TrainJob, ranks: Ints) -> Ints:
    """How many of so many ranks lie on each node that they use, 0 where not equally many do, as launchers ask for."""
    size = job.pool.node.num_gpus
    return np.where((ranks <= size) | (ranks % size == 0), np.minimum(ranks, size), 0)


def context_methods(job: TrainJob) -> tuple[ContextParallel, ...]:
    """Methods of context parallelism that may be used."""
    if job.options.search.context_parallel is not None or not job.strict:
        return job.options.search.context_parallel or CONTEXTS
    return tuple(method for method in CONTEXTS if method in job.engine.context_methods)


def allowed_schedules(job: TrainJob) -> tuple[Schedule, ...]:
    """Schedules that may be used: those of the problem, else the ones that the usual launchers or its engine run."""
    if job.options.search.schedule is not None:
        return job.options.search.schedule
    return tuple(name for name in get_args(Schedule) if name in job.engine.schedules)


def context_suits(job: TrainJob, method: ContextParallel, tp: Ints, cp: Ints) -> Bools:
    """Where a method can cut the sequence; arrays broadcast.

    Ring and all-gather cut it into 2 cp pieces, so that causal work is even, and Ulysses gives each rank whole heads
    (arXiv:2309.14509, section 3), whole ones of keys and values too, as Transformer Engine asks for.
    """
    pieces = np.where(cp > 1, cp * (1 if method == "ulysses" else 2), 1) * np.where(
        job.framework.sequence_parallel, tp, 1
    )
    suits: Bools = np.asarray(job.options.common_tokens % pieces == 0)
    if method == "ulysses":
        for count in (*head_counts(job), *kv_head_counts(job)):
            suits = suits & ((cp == 1) | (count % (tp * cp) == 0))
    return suits


def schedules(
    job: TrainJob, pp: int, num_micro_batches: int, chunks: tuple[int, ...]
) -> Iterator[tuple[Schedule, int]]:
    """Schedules with their stages per rank that run `num_micro_batches` over `pp` ranks.

    Where the batch grows up to these, a schedule of the same stages runs the fewer ones of every smaller batch.
    """
    from planner.solvers.schedules.pipeline import size_conflict

    allowed = allowed_schedules(job)
    most = job.arch.num_layers + 2
    if pp == 1:
        if 1 in chunks:
            yield "1f1b", 1
        return
    for schedule in allowed:
        wanted = CHUNKS.get(schedule)
        for vpp in (wanted,) if wanted is not None else chunks:
            if vpp not in chunks or pp * vpp > most or size_conflict(schedule, pp, vpp, num_micro_batches) is not None:
                continue
            if not _overlaps(job, pp, vpp):
                continue
            fewer = (
                num_micro_batches * stage.global_batch // job.options.global_batch for stage in job.options.batch_ramp
            )
            if all(same_stages(job, schedule, pp, vpp, number) for number in fewer):
                yield schedule, vpp


def _overlaps(job: TrainJob, pp: int, vpp: int) -> bool:
    """Whether the named engine runs a pipeline of these stages with the overlap that is asked for.

    Megatron-Core hides exchanges of experts in interleaved pipelines alone, and interleaves over two ranks only with
    messages beside computing (megatron/training/arguments.py).
    """
    if not job.strict or not job.engine.strict_overlaps:
        return True
    return (vpp > 1 or not job.hides_experts) and (vpp == 1 or pp > 2 or "p2p" in job.options.overlap)


def same_stages(job: TrainJob, schedule: Schedule, pp: int, vpp: int, num_micro_batches: int) -> tuple[Schedule, ...]:
    """Schedules that may be used, have the stages of this one on the same ranks, and run so many micro-batches."""
    from planner.solvers.schedules.pipeline import size_conflict

    if pp == 1:
        return ("1f1b",)
    alike = next(some for some in SAME_STAGES if schedule in some)
    allowed = allowed_schedules(job)
    return tuple(s for s in alike if s in allowed and size_conflict(s, pp, vpp, num_micro_batches) is None)
