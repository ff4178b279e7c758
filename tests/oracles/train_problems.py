"""Small training problems, and every plan of them priced one by one, enumerated from what a problem's options mean.

Nothing of the search or of its space is imported: degrees, schedules, sharding and recomputation are all combinations,
and what is legal is said here once more, from the papers and from Megatron-LM's rules.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from planner.costs.training.config import RecomputeConfig
from planner.documents.read import given_document
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.choice_layouts import layouts
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.job import TrainJob, job_of, jobs_of
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, RecomputeMode, sharing_of
from planner.load.problems import resolve_document
from planner.models.architecture import GroupedQueryAttention, LatentAttention, MoeFfn

ALL_SCHEDULES = ["1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev"]
MODULES = ("core_attention", "mlp", "moe", "moe_activation", "layernorm", "mla_up_projection")


def problem(model: str = "meta-llama/Llama-3.1-8B", **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """A problem on two nodes of H100 unless told otherwise by `gpu`, `nodes`, `cluster`, `limits` and `objective`."""
    gpu, nodes = options.pop("gpu", "h100_sxm"), options.pop("nodes", 2)
    limits, objective = options.pop("limits", {}), options.pop("objective", {"minimize": "step_time"})
    cluster = options.pop("cluster", {"pools": [{"gpu": gpu, "nodes": nodes}]})
    given = {"global_batch": 64, "sequence_tokens": 4096, **options}
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"policy": {"name": model}},
        "cluster": cluster,
        "objective": objective,
        "limits": limits,
        "options": given,
    }


def job(data: Mapping[str, Any]) -> TrainJob:
    """The job of a problem."""
    return job_of(resolve_document(given_document(dict(data), "problem"), Path()))


def jobs(data: Mapping[str, Any]) -> tuple[TrainJob, ...]:
    """The job of a problem on each of its pools."""
    return jobs_of(resolve_document(given_document(dict(data), "problem"), Path()))


def every_plan(job: TrainJob) -> Iterator[Evaluation]:
    """Every candidate with every way to recompute, those that fit in memory."""
    for candidate in every_candidate(job):
        for mode, whole in recomputations(candidate.table, candidate.pp * candidate.vpp):
            choice = replace(candidate, mode=mode, full_layers=whole)
            for counts in layouts(choice):
                yield from filter(fits, (evaluate(replace(choice, moved_layers=m), counts) for m in _moved(choice)))


def every_candidate(job: TrainJob) -> Iterator[PlanChoice]:
    """Every legal combination of all axes but recomputation and layout, whether or not it fits."""
    search, options, layers = job.options.search, job.options, job.arch.num_layers
    everything = range(1, options.global_batch + 1)
    axes = (search.tp or (1, 2, 4, 8), search.pp or range(1, layers + 1), search.dp or everything)
    experts = [layer.ffn for layer in job.arch.layers if isinstance(layer.ffn, MoeFfn)]
    for tp, pp, dp, cp, size in product(*axes, search.cp or (1,), search.micro_batch or (1, 2, 4, 8, 16)):
        if tp * pp * dp * cp > job.num_gpus or options.global_batch % (dp * size) or pp > layers or not _heads(job, tp):
            continue
        for ep, etp in product(search.ep or (1,), search.moe_tp or sorted({1, tp})):
            if not experts and ep * etp > 1:
                continue
            if any(ffn.num_experts % ep or ffn.intermediate_size % etp for ffn in experts):
                continue
            group = ep * etp
            if experts and (tp * cp * dp % group or (group % tp and tp % group) or etp not in (1, tp)):
                continue
            for context in contexts(job, tp, cp):
                shape = ShardShape(tp, cp, ep, etp, size, context)
                yield from _candidates(CostTable(job, shape), pp, dp)


def _candidates(table: CostTable, pp: int, dp: int) -> Iterator[PlanChoice]:
    job, shape = table.job, table.shape
    batches = job.options.global_batch // (dp * shape.micro_batch)
    start = table.mode(RecomputeConfig())
    for schedule, vpp in runs(job, pp, batches):
        for (stage, shards), offload in product(shardings(job, shape, dp, pp), offloads(job)):
            sharing = sharing_of(table, dp, stage, offload, shards)
            yield PlanChoice(table, sharing, pp, dp, schedule, vpp, stage, offload, start, shards=shards)


def _heads(job: TrainJob, tp: int) -> bool:
    """Whole heads on every tensor-parallel rank, those of keys and values whole or repeated."""
    for layer in job.arch.layers:
        if isinstance(layer.mixer, (GroupedQueryAttention, LatentAttention)) and layer.mixer.num_heads % tp:
            return False
        if isinstance(layer.mixer, GroupedQueryAttention):
            kv_heads = layer.mixer.num_kv_heads
            if kv_heads % tp and tp % kv_heads:
                return False
    return True


def contexts(job: TrainJob, tp: int, cp: int) -> Iterator[Any]:
    """Methods of context parallelism: rings cut a sequence into 2 cp pieces, Ulysses shares heads out."""
    tokens = job.options.sequence_tokens
    if cp == 1:
        if tokens % tp == 0:
            yield "ring"
        return
    for method in job.options.search.context_parallel or ("ring", "all_gather", "ulysses"):
        pieces = cp if method == "ulysses" else 2 * cp
        whole = all(_heads(job, tp * cp) and _kv_heads(layer.mixer) % (tp * cp) == 0 for layer in job.arch.layers)
        if tokens % (pieces * tp) == 0 and (method != "ulysses" or whole):
            yield method


def _kv_heads(mixer: object) -> int:
    return mixer.num_kv_heads if isinstance(mixer, GroupedQueryAttention) else 0


def runs(job: TrainJob, pp: int, batches: int) -> Iterator[tuple[Any, int]]:
    """Schedules with stages a rank that run so many micro-batches over so many ranks."""
    chunks = job.options.search.vpp or range(1, 17)
    if pp == 1:
        yield from (("1f1b", 1) for vpp in chunks if vpp == 1)
        return
    for schedule in job.options.search.schedule or ("1f1b", "interleaved"):
        for vpp in chunks:
            if pp * vpp > job.arch.num_layers + 2:
                continue
            legal = {
                "interleaved": vpp > 1 and batches % pp == 0,
                "zb_v": vpp == 2,
                "dualpipev": vpp == 2 and batches >= 2 * pp,
                "dualpipe": vpp == 1 and pp % 2 == 0 and batches % 2 == 0 and batches >= 2 * pp,
            }
            if legal.get(schedule, vpp == 1):
                yield schedule, vpp


def shardings(job: TrainJob, shape: ShardShape, dp: int, pp: int) -> Iterator[tuple[int, int]]:
    """(ZeRO stage, ranks that share its states, 0 for all of them): fewer are whole copies, of experts too."""
    search, ranks = job.options.search, dp * shape.cp
    asked: Sequence[Any] = search.zero_shards or ("all", job.machine.domain_gpus // shape.tp)
    usual = (0, 1, 2, 3) if pp == 1 else (0, 1)  # what is sharded beyond the optimizer has no pipeline in Megatron-LM
    for stage in search.zero_stage or usual:
        if "all" in asked or (stage and ranks in asked):
            yield stage, 0
        for part in sorted({part for part in asked if part != "all" and 1 <= part < ranks and stage}):
            same_experts = max(shape.tp * ranks // (shape.ep * shape.etp), 1)
            if part == 1 and not search.zero_shards:
                continue  # one rank a domain shares nothing out
            if ranks % part == 0 and (not job.num_experts or same_experts % (ranks // part) == 0):
                yield stage, part


def _moved(choice: PlanChoice) -> Iterable[int]:
    """Layers whose activations move to the host: Megatron-LM counts them without a pipeline, from the first to the last
    but one; 0 is all of these."""
    return range(choice.table.job.arch.num_layers - 1) if "activations" in choice.offload and choice.pp == 1 else (0,)


def offloads(job: TrainJob) -> list[frozenset[str]]:
    """Every choice of what is moved to host memory."""
    allowed = job.options.search.offload
    return [frozenset(some) for size in range(len(allowed) + 1) for some in combinations(allowed, size)]


def recomputations(table: CostTable, stages: int) -> Iterator[tuple[RecomputeMode, int]]:
    """Every way to recompute, with the layers of each stage that are computed again whole beside it."""
    job = table.job
    allowed = job.options.search.recompute or ("none", "selective", "full")
    priced = {name for activations in table.activations for name in activations.of_module}
    names = [name for name in MODULES if name in priced]
    some = [chosen for size in range(1, len(names) + 1) for chosen in combinations(names, size)]
    if "none" in allowed:
        yield table.mode(RecomputeConfig()), 0
    if "selective" in allowed:
        yield from ((table.mode(RecomputeConfig("selective", chosen)), 0) for chosen in some)
    if "full" in allowed:
        yield table.mode(RecomputeConfig("full")), 0
        yield from ((table.mode(RecomputeConfig()), whole) for whole in range(1, job.arch.num_layers // stages))
