"""The plan of an evaluated choice: stages, placement, groups of ranks, predictions and evidence."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from planner import __version__
from planner.costs.training.flops import model_flop_per_token
from planner.costs.training.intervals import step_interval_s
from planner.files import digest
from planner.kinds.train.certificate import certificate
from planner.kinds.train.decision import (
    ContextParallel,
    Group,
    LayerRun,
    PipelineRank,
    Recompute,
    StageRun,
    TrainDecision,
)
from planner.kinds.train.evaluate import Choice, Evaluation
from planner.kinds.train.job import Job
from planner.kinds.train.search import Found
from planner.kinds.train.space import context_methods, context_suits
from planner.plan.schema import (
    SCHEMA,
    Axis,
    Block,
    Digests,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Parallelism,
    Prediction,
    Role,
    Software,
    StepEvidence,
)
from planner.problem.resolve import normalised

ROLE = "job"
ENGINE = "megatron-lm"
SECONDS_A_DAY = 86400.0
ASSUMPTIONS = (
    "every micro-batch takes as long as every other, and every GPU is as fast as every other",
    "ranks lie with tp innermost, then cp, dp and pp, as Megatron-LM places them",
    "tokens of a mixture of experts spread evenly over its experts",
    "nothing fails, and no checkpoint is written",
)


def decode(job: Job, found: Found) -> Envelope:
    """The plan of a search that found one."""
    best = found.best
    assert best is not None
    inputs = normalised(job.resolved)
    known = job.resolved.digests()
    problem = job.resolved.problem
    return Envelope(
        schema=SCHEMA,
        kind="train",
        name=problem.name,
        software=Software(planner=__version__, solver="branch and bound"),
        seed=problem.seed,
        digests=Digests(
            problem=digest(inputs),
            models=known["models"],
            hardware=known["hardware"],
            calibration=digest(dict(job.rates.values)),
        ),
        inputs=inputs,
        decision=decision_of(best).model_dump(mode="json", exclude_none=True),
        predictions=tuple(predictions(best)),
        certificate=certificate(job, found),
        evidence=_evidence(best),
        assumptions=tuple(_assumptions(job, best)),
    )


def decision_of(best: Evaluation) -> TrainDecision:
    """What the plan decides."""
    choice = best.choice
    job, shape, options = choice.table.job, choice.table.shape, choice.table.job.options
    ranks = tuple(_pipeline_ranks(best))
    fullest = max((rank.memory for rank in ranks), key=lambda memory: memory.used_bytes)
    return TrainDecision(
        roles=(
            Role(
                name=ROLE,
                function="train",
                model=job.key,
                engine=Engine(name=ENGINE),
                pool=job.pool.name,
                replicas=1,
                parallelism=Parallelism(
                    tp=shape.tp,
                    pp=choice.pp,
                    dp=choice.dp,
                    cp=shape.cp,
                    moe_tp=shape.etp,
                    ep=shape.ep,
                    vpp=choice.vpp,
                ),
                memory=fullest,
            ),
        ),
        placement=(_block(choice),),
        schedule=choice.schedule,
        stage_runs=tuple(stage_runs(best)),
        micro_batch=shape.micro_batch,
        num_micro_batches=choice.num_micro_batches,
        zero_stage=choice.zero_stage,
        zero_shards=choice.shards or None,
        sequence_parallel=shape.tp > 1 and job.framework.sequence_parallel,
        context_parallel=_context_method(choice),
        precision=options.precision,
        offload=tuple(sorted(choice.offload)),  # type: ignore[arg-type]  # of the values of Offload
        overlap=options.overlap,
        pipeline_ranks=ranks,
        groups=tuple(_groups(best)),
        layer_runs=tuple(_layer_runs(best)),
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


def _context_method(choice: Choice) -> ContextParallel:
    """The first method allowed that suits the shape."""
    job, shape = choice.table.job, choice.table.shape
    tp, cp = np.array(shape.tp), np.array(shape.cp)
    return next(method for method in context_methods(job) if context_suits(job, method, tp, cp))


def stage_runs(best: Evaluation) -> Iterator[StageRun]:
    """Stages in the order of a micro-batch, equal neighbours in one run."""
    choice, last = best.choice, len(best.counts_S) - 1
    stages = []
    for stage, layers in enumerate(best.counts_S):
        heads = stage == last and bool(choice.table.job.arch.mtp_layers)
        held = (("embedding", stage == 0), ("mtp", heads), ("loss", stage == last))
        parts = tuple(name for name, here in held if here)
        stages.append((layers, parts, _recompute(choice, layers)))
    for (layers, parts, recompute), run in groupby(stages):
        yield StageRun(stages=len(list(run)), num_layers=layers, parts=parts, recompute=recompute)  # type: ignore[arg-type]  # names of parts


def _recompute(choice: Choice, layers: int) -> Recompute:
    mode = choice.mode.recompute
    if not layers:
        return Recompute()
    if choice.full_layers or mode.granularity == "full":
        return Recompute(granularity="full", num_layers=min(choice.full_layers or layers, layers))
    return Recompute(granularity=mode.granularity, modules=mode.modules)  # type: ignore[arg-type]  # names of Module


def _pipeline_ranks(best: Evaluation) -> Iterator[PipelineRank]:
    memory, capacity = best.memory, best.choice.table.job.capacity_bytes
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
                capacity_bytes=capacity,
            ),
        )


def _block(choice: Choice) -> Block:
    """All ranks in one block of neighbouring devices."""
    job, shape = choice.table.job, choice.table.shape
    sizes = (("pp", choice.pp), ("dp", choice.dp), ("cp", shape.cp), ("tp", shape.tp))
    axes, stride = [], choice.num_gpus
    for name, size in sizes:
        stride //= size
        if size > 1:
            axes.append(Axis(name=name, size=size, stride=stride))
    return Block(role=ROLE, pool=job.pool.name, first_device=job.first_device, axes=tuple(axes))


def _groups(best: Evaluation) -> Iterator[Group]:
    choice = best.choice
    dimensions = _groups_of_mix(best) if best.strategies else _groups_of_all(choice)
    for name, size, stride in dimensions:
        if size > 1:
            level = _level(choice, size, stride)
            yield Group(name=name, size=size, stride=stride, level=level)  # type: ignore[arg-type]  # one of its names


def _groups_of_mix(best: Evaluation) -> list[tuple[str, int, int]]:
    """(name, size, stride) of the groups of every strategy, each once."""
    pp, cp = best.choice.pp, best.choice.table.shape.cp
    found = {("pp", pp, best.choice.num_gpus // pp)}
    for one in best.strategies:
        found |= {("tp", one.tp, 1), ("cp", cp, one.tp), ("dp", one.dp, one.tp * cp)}
        if one.zero_stage:
            found.add(("zero", one.dp * cp, one.tp))
    return sorted(found)


def _groups_of_all(choice: Choice) -> list[tuple[str, int, int]]:
    """(name, size, stride) of the groups of every dimension."""
    shape = choice.table.shape
    stage = choice.num_gpus // choice.pp
    dimensions = [
        ("tp", shape.tp, 1),
        ("cp", shape.cp, shape.tp),
        ("dp", choice.dp, shape.tp * shape.cp),
        ("pp", choice.pp, stage),
        ("moe_tp", shape.etp, 1),
        ("ep", shape.ep, shape.etp),
    ]
    if choice.table.job.num_experts:
        dimensions.append(("expert_dp", stage // (shape.ep * shape.etp), shape.ep * shape.etp))
    if choice.zero_stage:
        dimensions.append(("zero", choice.shards or choice.dp * shape.cp, shape.tp))
    return dimensions


def _level(choice: Choice, size: int, stride: int) -> str:
    """The smallest domain that holds every group of this dimension."""
    job = choice.table.job
    topology = job.pool.topology()
    starts = np.arange(choice.num_gpus)
    starts = starts[starts // stride % size == 0]
    devices_GR = job.first_device + starts[:, None] + stride * np.arange(size)[None, :]
    return topology.levels[int(topology.spanning_level(devices_GR).max())].name


def predictions(best: Evaluation) -> Iterator[Prediction]:
    """Figures of the whole plan."""
    choice = best.choice
    job, options = choice.table.job, choice.table.job.options
    tokens = float(options.global_batch * options.sequence_tokens)
    tokens_per_s = tokens / best.step_s
    flop = model_flop_per_token(job.arch, options.sequence_tokens) / choice.num_gpus
    low_s, high_s = step_interval_s(choice.config, best.step_s, job.rates)
    yield Prediction(metric="step_time_s", value=best.step_s, interval=(low_s, high_s))
    rates = {
        "tokens_per_s": 1.0,
        "tokens_per_s_per_gpu": 1.0 / choice.num_gpus,
        "model_flop_per_s": flop,
        "mfu": flop / job.pool.node.accelerator.peak("bf16"),
    }
    for metric, factor in rates.items():
        interval = (tokens / high_s * factor, tokens / low_s * factor)
        yield Prediction(metric=metric, value=tokens_per_s * factor, interval=interval)
    yield Prediction(metric="memory_bytes", statistic="max", value=float(best.memory.total_R.max()))
    yield Prediction(metric="gpus", value=float(choice.num_gpus))
    if options.train_tokens is not None:
        days = options.train_tokens / tokens / SECONDS_A_DAY
        yield Prediction(metric="train_days", value=days * best.step_s, interval=(days * low_s, days * high_s))


def _evidence(best: Evaluation) -> Evidence:
    rates = best.choice.table.job.rates
    slowest = best.pass_R3[best.pass_R3.sum(axis=1).argmax()] * best.choice.num_micro_batches
    seconds = {
        "forward": float(slowest[0]),
        "backward_input": float(slowest[1]),
        "backward_weight": float(slowest[2]),
        "pipeline_wait": max(best.pipeline_s - float(slowest.sum()), 0.0),
        "data_parallel": best.exchange_s,
        "optimizer": best.optimizer_s,
        "host": rates.get("step_s"),
    }
    return Evidence(
        basis={"analytical": 1.0},
        sources=(f"training rates of {rates.date}: {rates.source}",),
        notes=("model FLOP utilisation is of the peak in bf16, attention counted over whole sequences",),
        steps={ROLE: StepEvidence(seconds=seconds, basis={"analytical": 1.0})},
    )


def _assumptions(job: Job, best: Evaluation) -> Iterator[str]:
    yield from ASSUMPTIONS
    if best.choice.schedule.startswith("zb_"):
        yield "ranks start the next step before all have ended this one: the optimizer's step is validated afterwards"
    if job.num_gpus < job.pool.num_gpus:
        yield f"of {job.pool.num_gpus} GPUs in service {job.num_gpus} are used: limits, or nodes out of service between"
    yield from job.resolved.price_notes
