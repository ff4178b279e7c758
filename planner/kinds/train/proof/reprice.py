"""Prices a training plan's own decision again: step time and memory under the current cost model."""

from collections.abc import Sequence
from dataclasses import replace

from planner.costs.training.config import RecomputeConfig
from planner.costs.training.eras import captured
from planner.engines.training import FORWARDING
from planner.errors import PlannerError
from planner.kinds.train.decision import StageRun, TrainDecision
from planner.kinds.train.engine import CODES
from planner.kinds.train.evaluation.choice import PlanChoice, Strategy
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.evaluation.mixes import LayerwiseSpace, evaluate_mix
from planner.kinds.train.job import TrainJob, jobs_of
from planner.kinds.train.pools.across import ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, RecomputeMode, sharing_of
from planner.kinds.train.split.sides import apart_of, joined, sides_of
from planner.kinds.train.whole_run.on_racks import waiting
from planner.kinds.train.whole_run.recompute_table import by_length
from planner.plan.schema import Envelope
from planner.problem.recorded import INPUTS, recorded_problem
from planner.problem.resolve import resolve
from planner.solvers.modalities.split import Share


def repriced(envelope: Envelope, decision: TrainDecision) -> Evaluation | str:
    """The plan evaluated again, or why it cannot be."""
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        return "its inputs are no valid problem"
    if envelope.digests.profiles:
        return "the kernel tables that it was made with are not at hand"
    if problem.costs.calibration == "file":
        return "the calibration file that it was made with is not at hand"
    try:
        return priced_again(jobs_of(resolve(problem, INPUTS)), decision)
    except PlannerError as error:
        return error.what


def priced_again(all_jobs: Sequence[TrainJob], decision: TrainDecision) -> Evaluation | str:
    """The decision evaluated on the jobs of its problem, one a pool, or why it cannot be."""
    of_pool = {job.pool.name: job for job in all_jobs}
    absent = [role.pool for role in decision.roles if role.pool not in of_pool]
    if absent:
        return f"the job does not run on pool `{absent[0]}`"
    jobs = [_as_decided(of_pool[role.pool], decision) for role in decision.roles]
    if _is_apart(decision):
        jobs = [apart_of(own) for own in jobs]
    job, degrees = jobs[0], decision.degrees
    counts = tuple(run.num_layers for run in decision.stage_runs for _ in range(run.stages))
    if len(counts) != degrees.pp * degrees.vpp or sum(counts) != job.arch.num_layers:
        return "its stages do not hold every layer once"
    if decision.layer_runs:
        return _mixed(job, decision, counts)
    choices = [_choice(own, decision) for own in jobs]
    priced = [choice for choice in choices if not isinstance(choice, str)]
    if len(priced) < len(choices):
        return next(choice for choice in choices if isinstance(choice, str))
    if decision.pools == "one":
        made = evaluate(priced[0], counts)
        if _is_apart(decision):
            return _with_sides(made, decision)
        return waiting(by_length(made) if job.mean_of_lengths else made)
    return _across(decision, tuple(priced), counts)


def _is_apart(decision: TrainDecision) -> bool:
    return any(module.place == "apart" for module in decision.modules)


def _with_sides(made: Evaluation, decision: TrainDecision) -> Evaluation | str:
    """The language model's plan with its networks on the GPUs that the decision gives them."""
    sides = sides_of(made.choice.table)
    if len(decision.modules) != len(sides.costs):
        return f"{len(decision.modules)} modules, the samples reach {len(sides.costs)}"
    shares = tuple(Share(module.tp, module.dp) for module in decision.modules)
    able = [share.tp in costs for share, costs in zip(shares, sides.costs, strict=True)]
    beside = joined(made, sides, shares) if all(able) else None
    return "modules that do not fit beside the language model" if beside is None else beside


def _across(decision: TrainDecision, parts: tuple[PlanChoice, ...], counts: tuple[int, ...]) -> Evaluation:
    """A job over several pools; the rule `train.role` holds."""
    if decision.pools == "stages":
        return StagesAcross(parts, tuple(role.parallelism.pp for role in decision.roles)).evaluated(counts)
    whole, offload = decision.degrees, parts[0].offload
    sharing = joined_sharing([part.table for part in parts], whole.pp, whole.dp, decision.zero_stage, offload)
    own = (replace(p, dp=r.parallelism.dp, sharing=sharing) for p, r in zip(parts, decision.roles, strict=True))
    return ReplicasAcross(tuple(own)).evaluated(counts, decision.batches)


def _as_decided(job: TrainJob, decision: TrainDecision) -> TrainJob:
    """The job with what the plan decides of its surroundings."""
    options = job.options.model_copy(update={"overlap": decision.overlap})
    runs = decision.layer_runs
    sequence_parallel = any(run.sequence_parallel for run in runs) if runs else decision.sequence_parallel
    heads = any("mtp" in run.parts for run in decision.stage_runs)
    arch = job.arch if heads else job.arch.without_mtp()
    framework = replace(job.framework, sequence_parallel=sequence_parallel)
    if decision.dispatcher is not None:
        framework = replace(framework, forwarded_experts=decision.dispatcher in FORWARDING)
    graphs = decision.cuda_graphs if job.engine.graphs or job.options.code else ()
    if graphs != job.cuda_graphs:
        code = captured(CODES[job.engine.name], graphs)
        framework = replace(framework, name=code.name, host=code.host, captured=code.captured)
    share = decision.memory_utilisation
    return replace(job, arch=arch, options=options, framework=framework, cuda_graphs=graphs, roomy_share=share)


def _mixed(job: TrainJob, decision: TrainDecision, counts: tuple[int, ...]) -> Evaluation:
    """Layers under strategies of their own; the rules of `train.layer_runs` hold."""
    degrees = decision.roles[0].parallelism
    ranks = degrees.tp * degrees.cp * degrees.dp
    space = LayerwiseSpace(
        job, degrees.pp, degrees.cp, _shape(decision).context, ranks, decision.micro_batch * degrees.dp
    )
    strategies = [
        Strategy(run.tp, run.dp, run.zero_stage, RecomputeConfig(run.recompute, run.modules))
        for run in decision.layer_runs
        for _ in range(run.layers)
    ]
    return evaluate_mix(space, counts, strategies)


def _choice(job: TrainJob, decision: TrainDecision) -> PlanChoice | str:
    """The decision as the search knows it, or why it knows no such one."""
    degrees = decision.degrees
    table = CostTable(job, _shape(decision))
    mode = _mode(table, decision)
    if isinstance(mode, str):
        return mode
    shards = decision.zero_shards if decision.zero_shards != degrees.dp * degrees.cp else None
    offload = frozenset(decision.offload)
    return PlanChoice(
        table=table,
        sharing=sharing_of(table, degrees.dp, decision.zero_stage, offload, shards or 0),
        pp=degrees.pp,
        dp=degrees.dp,
        schedule=decision.schedule,
        vpp=degrees.vpp,
        zero_stage=decision.zero_stage,
        offload=offload,
        mode=mode[0],
        full_layers=mode[1],
        shards=shards or 0,
        moved_layers=decision.moved_layers or 0,
    )


def _shape(decision: TrainDecision) -> ShardShape:
    degrees = decision.degrees
    context = decision.context_parallel if degrees.cp > 1 else "ring"
    return ShardShape(degrees.tp, degrees.cp, degrees.ep, degrees.moe_tp, decision.micro_batch, context)


def _mode(table: CostTable, decision: TrainDecision) -> tuple[RecomputeMode, int] | str:
    """What all stages recompute, and how many layers of each whole where that is not all of them."""
    runs = [run for run in decision.stage_runs if run.num_layers]
    if len({_kind(run) for run in runs}) > 1:
        return "stages that recompute differently"
    recompute = runs[0].recompute
    if recompute.granularity != "full":
        return table.mode(RecomputeConfig(recompute.granularity, recompute.modules)), 0
    if all(run.recompute.num_layers == run.num_layers for run in runs):
        return table.mode(RecomputeConfig("full")), 0
    most = max(run.recompute.num_layers for run in runs)
    if any(run.recompute.num_layers != min(most, run.num_layers) for run in runs):
        return "stages that recompute differently"
    return table.mode(RecomputeConfig()), most


def _kind(run: StageRun) -> tuple[str, tuple[str, ...]]:
    return run.recompute.granularity, run.recompute.modules
