"""Decodes an evaluated training configuration into a plan: stages, placement, process groups, predictions."""

from collections.abc import Iterator
from itertools import groupby
from math import isfinite

from pydantic import JsonValue

from planner.costs.training.flops import model_flop_per_token
from planner.costs.training.intervals import step_interval_s
from planner.costs.training.layers.sizes import PEAK_OF
from planner.costs.training.measured_layouts import region_note
from planner.engines.trained_models import trained_without
from planner.kinds.train.decision import HostMemory, LayerRun, PipelineRank, Recompute, StageRun, TrainDecision
from planner.kinds.train.evaluation.choice import PlanChoice, PoolShare
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.figures import DAY_S
from planner.kinds.train.job import TrainJob
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.plan.certificate import certificate
from planner.kinds.train.plan.modules import APART, MEAN_SAMPLE, module_runs
from planner.kinds.train.plan.roles import groups, own_choice, placement, pool_use, role_name, roles
from planner.kinds.train.search.search import SearchResult
from planner.plan.schema import (
    Certificate,
    Envelope,
    Evidence,
    Memory,
    Prediction,
    StepEvidence,
)
from planner.problem.envelope import plan_envelope
from planner.problem.resolve import Resolved, normalised

EQUAL = "every micro-batch takes as long as every other, and every GPU is as fast as every other of its pool"
EVENLY = "tokens of a mixture of experts spread evenly over its experts"
ASSUMPTIONS = (
    EQUAL,
    "ranks lie with tp innermost, then cp, dp and pp, as Megatron-LM places them",
    EVENLY,
    "nothing fails, and no checkpoint is written",
)


def decode(job: TrainJob, result: SearchResult) -> Envelope:
    """The plan of a search that found one."""
    assert result.best is not None
    return envelope(job, result.best, certificate(job, result))


def envelope(job: TrainJob, best: Evaluation, proven: Certificate) -> Envelope:
    """The plan of an evaluation with what is proven of it."""
    return plan_envelope(
        job.resolved,
        decision_of(best),
        proven,
        predictions(best),
        _evidence(best),
        _assumptions(job, best),
        solver="branch and bound",
        inputs=_inputs(job.resolved),
        digests={
            "profiles": tuple(sorted({name for own in _jobs(best) for name in _tables(own)})),
            "calibration": job.rates.digest,
            "traces": {},
        },
    )


def _inputs(resolved: Resolved) -> dict[str, JsonValue]:
    """The problem as the plan carries it, with what was written of the engine alone: its defaults are of serving."""
    written = resolved.problem.engine.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    inputs = {name: value for name, value in normalised(resolved).items() if name != "engine"}
    return {**inputs, **({"engine": written} if written else {})}


def decision_of(best: Evaluation) -> TrainDecision:
    """What the plan decides."""
    choice = best.choice
    job, shape, options = choice.table.job, choice.table.shape, choice.table.job.options
    ranks, use = tuple(_pipeline_ranks(best)), pool_use(best)
    batches = tuple(part.choice.num_micro_batches for part in best.parts)
    return TrainDecision(
        roles=tuple(roles(best, tuple(rank.memory for rank in ranks))),
        placement=tuple(placement(best)),
        pools=use,
        schedule=choice.schedule,
        stage_runs=tuple(stage_runs(best)),
        micro_batch=shape.micro_batch,
        num_micro_batches=batches[0],
        role_micro_batches=batches if use == "replicas" else (),
        zero_stage=choice.zero_stage,
        zero_shards=choice.shards or None,
        sequence_parallel=shape.tp > 1 and job.framework.sequence_parallel,
        context_parallel=shape.context,
        precision=options.precision,
        offload=tuple(sorted(choice.offload)),  # type: ignore[arg-type]  # of the values of Offload
        moved_layers=choice.moved_layers or None,
        host_memory=tuple(_host_memory(best)),
        overlap=options.overlap,
        dispatcher=job.dispatcher if shape.ep * shape.etp > 1 else None,
        cuda_graphs=job.cuda_graphs,
        pipeline_ranks=ranks,
        groups=tuple(groups(best)),
        layer_runs=tuple(_layer_runs(best)),
        modules=tuple(module_runs(best)),
        memory_utilisation=job.roomy_share,
    )


def _layer_runs(best: Evaluation) -> Iterator[LayerRun]:
    """Neighbouring layers of one strategy together, where layers have their own."""
    sequences = best.choice.table.job.framework.sequence_parallel
    for strategy, run in groupby(best.strategies):
        yield LayerRun(
            layers=len(list(run)),
            tp=strategy.tp,
            dp=strategy.dp,
            zero_stage=strategy.zero_stage,
            sequence_parallel=strategy.tp > 1 and sequences,
            recompute=strategy.recompute.granularity,
            modules=strategy.recompute.modules,  # type: ignore[arg-type]  # names of Module
        )


def stage_runs(best: Evaluation) -> Iterator[StageRun]:
    """Stages in the order of a micro-batch, equal neighbours in one run."""
    choice, last = best.choice, len(best.counts_S) - 1
    stages = []
    for stage, layers in enumerate(best.counts_S):
        heads = stage == last and bool(choice.table.job.arch.mtp_layers)
        ends = (("embedding", stage == 0), ("mtp", heads), ("loss", stage == last))
        parts = tuple(name for name, here in ends if here)
        stages.append((layers, parts, _recompute(choice, layers)))
    for (layers, parts, recompute), run in groupby(stages):
        yield StageRun(stages=len(list(run)), num_layers=layers, parts=parts, recompute=recompute)  # type: ignore[arg-type]  # names of parts


def _recompute(choice: PlanChoice, layers: int) -> Recompute:
    mode = choice.mode.recompute
    if not layers:
        return Recompute()
    if choice.full_layers or mode.granularity == "full":
        return Recompute(granularity="full", num_layers=min(choice.full_layers or layers, layers))
    return Recompute(granularity=mode.granularity, modules=mode.modules)  # type: ignore[arg-type]  # names of Module


def _pipeline_ranks(best: Evaluation) -> Iterator[PipelineRank]:
    memory, device_R = best.memory, best.device_R
    for rank, (forward_s, input_s, weight_s) in enumerate(best.pass_R3.tolist()):
        yield PipelineRank(
            forward_s=forward_s,
            backward_input_s=input_s,
            backward_weight_s=weight_s,
            idle_share=min(max(1.0 - float(best.busy_R[rank]) / best.pipeline_s, 0.0), 1.0),
            peak_micro_batches=float(best.peak_R[rank]),
            memory=Memory(
                weights_bytes=float(memory.weights_R[rank]),
                gradients_bytes=float(memory.gradients_R[rank]),
                optimizer_bytes=float(memory.optimizer_R[rank]),
                activations_bytes=float(memory.activations_R[rank]),
                workspace_bytes=float(memory.workspace_R[rank]),
                capacity_bytes=float(device_R[rank]),
            ),
        )


def _host_memory(best: Evaluation) -> Iterator[HostMemory]:
    """Of each role, where something is offloaded."""
    for part in best.parts if best.choice.offload else ():
        used, capacity = best.memory.host_R[list(part.rows)].max(), part.choice.table.job.host_bytes
        yield HostMemory(
            role=role_name(best, part),
            used_bytes=float(used),
            capacity_bytes=capacity if isfinite(capacity) else None,
        )


def predictions(best: Evaluation) -> Iterator[Prediction]:
    """Figures of the whole plan."""
    job, options = best.choice.table.job, best.choice.table.job.options
    tokens = float(options.global_batch * options.sequence_tokens)
    tokens_per_s = tokens / best.step_s
    length = options.document_tokens or options.sequence_tokens
    flop = model_flop_per_token(job.arch, length, frozen=options.task == "lora") / best.num_gpus
    flop += job.networks.flop_per_sequence / options.sequence_tokens / best.num_gpus
    intervals_s = [step_interval_s(part.choice.config, best.step_s, job.rates) for part in best.parts]
    low_s, high_s = min(low for low, _ in intervals_s), max(high for _, high in intervals_s)
    yield Prediction(metric="step_time_s", value=best.step_s, interval=(low_s, high_s))
    rates = {
        "tokens_per_s": 1.0,
        "tokens_per_s_per_gpu": 1.0 / best.num_gpus,
        "model_flop_per_s": flop,
        "mfu": flop / _mean_peak(best),
    }
    for metric, factor in rates.items():
        interval = (tokens / high_s * factor, tokens / low_s * factor)
        yield Prediction(metric=metric, value=tokens_per_s * factor, interval=interval)
    yield Prediction(metric="memory_bytes", statistic="max", value=float(best.memory.total_R.max()))
    yield Prediction(metric="gpus", value=float(best.num_gpus))
    if options.train_tokens is not None:
        days = options.train_tokens / tokens / DAY_S
        yield Prediction(metric="train_days", value=days * best.step_s, interval=(days * low_s, days * high_s))


def _mean_peak(best: Evaluation) -> float:
    """Of all GPUs in the precision of the products, in FLOP/s."""
    owns = [own_choice(part) for part in best.parts]
    jobs = [own.table.job for own in owns]
    peaks = [
        own.num_gpus * job.pool.node.accelerator.peak(PEAK_OF[job.options.precision])
        for own, job in zip(owns, jobs, strict=True)
    ]
    return sum(peaks) / sum(own.num_gpus for own in owns)


def _jobs(best: Evaluation) -> list[TrainJob]:
    return [part.choice.table.job for part in best.parts]


def _tables(job: TrainJob) -> tuple[str, ...]:
    """Digests of the kernel tables behind its costs."""
    return () if job.rates.products is None else job.rates.products.digests


def _basis(part: PoolShare) -> dict[str, float]:
    """Shares of the passes of the model's layers and ends."""
    measured, imported = part.choice.table.table_shares
    shares = {"measured": measured, "imported": imported, "analytical": max(1.0 - measured - imported, 0.0)}
    return {name: share for name, share in shares.items() if share}


def _evidence(best: Evaluation) -> Evidence:
    rates = best.choice.table.job.rates
    basis_of = {role_name(best, part): _basis(part) for part in best.parts}
    steps = {
        name: StepEvidence(seconds=_seconds(best, part), basis=basis_of[name])  # type: ignore[arg-type]  # names of Shares
        for name, part in ((role_name(best, part), part) for part in best.parts)
    }
    tables = {job.rates.products for job in _jobs(best)} - {None}
    sources = tuple(products.pricer.name for products in tables if products is not None)
    notes = sorted({note for products in tables if products is not None for note in products.notes})
    notes += sorted({note for part in best.parts if (note := region_note(part.choice.config)) is not None})
    notes += _beyond_context(best.choice.table.job)
    return Evidence(
        basis=next(iter(basis_of.values())),  # type: ignore[arg-type]  # names of Shares
        sources=(f"training rates of {rates.date}: {rates.source}", *sorted(sources)),
        notes=(
            "model FLOP utilisation is of the peak of the products' precision, attention counted over whole sequences",
            *notes,
        ),
        steps=steps,
    )


def _beyond_context(job: TrainJob) -> Iterator[str]:
    """That what attends as a whole is longer than the model takes, where it is."""
    own, longest = job.arch.max_context_tokens, job.options.longest_document_tokens
    if longest > own:
        what = "documents" if job.options.documents else "sequences"
        yield (
            f"{what} of {longest} tokens are longer than the {own} that {job.arch.name} takes: costs are right, but it "
            "learns nothing of use there unless its positions are extended"
        )


def _seconds(best: Evaluation, part: PoolShare) -> dict[str, float]:
    """The step of the slowest rank on a pool by what it does."""
    pass_R3 = best.pass_R3[list(part.rows)]
    slowest = pass_R3[pass_R3.sum(axis=1).argmax()] * part.choice.num_micro_batches
    return {
        "forward": float(slowest[0]),
        "backward_input": float(slowest[1]),
        "backward_weight": float(slowest[2]),
        "pipeline_wait": max(best.pipeline_s - float(slowest.sum()), 0.0),
        "data_parallel": best.exchange_s,
        **({"uplinks": best.uplinks_s} if best.uplinks_s else {}),
        "optimizer": best.optimizer_s,
        "host": best.host_s,
        **({"stragglers": best.straggling_s} if best.straggling_s else {}),
        **({"samples": best.samples_s} if best.samples_s else {}),
    }


def _idle(best: Evaluation, part: PoolShare) -> Iterator[str]:
    """Why GPUs of a pool in service stay idle, where some do."""
    job = part.choice.table.job
    used = own_choice(part).num_gpus + sum(side.num_gpus for side in best.sides)
    serving = job.pool.num_gpus
    if used < job.num_gpus:
        yield f"{job.num_gpus - used} GPUs of pool `{job.pool.name}` stay idle: no plan that uses them is preferred"
    if job.num_gpus < serving:
        limit = job.resolved.problem.limits.gpus
        why = "`limits.gpus` leaves them out" if limit == job.num_gpus else "their scale-up domains lack nodes"
        yield f"{serving - job.num_gpus} GPUs of pool `{job.pool.name}` are not considered: {why}"


def _as_stated(text: str, options: TrainOptions) -> str:
    """An assumption, or what the problem says in its place."""
    if text == EQUAL and options.step_spread:
        return f"steps of GPUs spread by {options.step_spread:.1%} around their mean, independently"
    if text == EVENLY and options.experts is not None:
        load = options.experts
        most = "" if load.capacity is None else f", and takes {load.capacity:g} of it at most, the rest dropped"
        return f"the fullest expert has {load.fullest:g} of the mean load{most}"
    return text


def _of_the_code(job: TrainJob) -> Iterator[str]:
    """What the training code does otherwise than others."""
    heads = job.resolved.models[job.key].num_mtp_heads - job.arch.num_mtp_heads
    if heads and job.options.mtp is False:
        yield f"the model is trained without its {heads} heads for further tokens (MTP), as `mtp: false` says"
    elif heads:
        yield f"{job.engine.name} trains the model without its {heads} heads for further tokens (MTP)"
    without = trained_without(job.arch)
    if without is not None:
        yield without
    if job.options.optimizer == "muon":
        yield "gradients are summed and weights gathered beside nothing: Muon's code has no overlap"


def _assumptions(job: TrainJob, best: Evaluation) -> Iterator[str]:
    options = best.choice.table.job.options
    yield from (_as_stated(text, options) for text in ASSUMPTIONS)
    if options.documents:
        yield f"sequences are packed of documents that attend as those of {options.document_tokens:.0f} tokens do"
    if options.samples:
        yield MEAN_SAMPLE
        yield from APART if best.sides else ()
    yield from _of_the_code(best.choice.table.job)
    if options.loading is not None:
        yield "samples are read and prepared a step ahead, and training waits for adapters that carry them"
    if options.dropout is not None and options.dropout.hidden > 0:
        yield "masks of dropout are kept, and the time to draw and to apply them is left out"
    if options.in_network_reduction:
        yield "switches of the fabric add up what all data-parallel ranks sum"
    room = 1.0 - best.choice.table.job.usable_share
    if room > 0.0:
        yield f"at least {room:.0%} of each GPU's memory stays free, for what its allocator loses between tensors"
    for memory in _host_memory(best):
        if memory.capacity_bytes is None:
            yield f"hosts of role `{memory.role}` have room for what is offloaded: nobody says what memory they have"
    if best.choice.schedule.startswith("zb_"):
        yield "ranks start the next step before all have ended this one: the optimizer's step is validated afterwards"
    if best.strategies:
        yield "layers run and recompute as `layer_runs` says: tp and dp of the role are those of the first layer"
    yield from (text for part in best.parts for text in _idle(best, part))
    if best.across:
        yield "pools reach each other at the rate of the slower of their fabrics, and of what `cluster.links` states"
    yield from job.resolved.price_notes
