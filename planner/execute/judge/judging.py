"""Compares one measured step of a rank with its prediction by the cost model."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from planner.costs.operators.kernels import Collective
from planner.costs.operators.optimizer import gradient_accumulation
from planner.costs.operators.recompute import SUFFIX
from planner.costs.operators.working_format import in_working_format
from planner.costs.rates.pricer import Pricer
from planner.execute.judge.predict import (
    BACKWARD,
    OperatorTime,
    as_executed,
    context_tokens,
    executed_operators,
    predict,
    rank_memory_bytes,
    rank_parameters,
)
from planner.execute.judge.tandem import stage_of_plan_s
from planner.execute.judge.trained import TrainedShards, predict_training
from planner.execute.judge.verdict import PIPELINE, Measured, StepVerdict, operator_rows
from planner.execute.shards.cases import DECODE, EXPERT_LAYER, MIXED, PREFILL, TRAIN, Cut, StepCase
from planner.execute.shards.expert_layout import slotted
from planner.execute.shards.schedule import Pass, forward_passes, makespan_s, passes_of
from planner.execute.shards.spec import RankSpec, RoleSpec

_WITH_MEMORY = (PREFILL, DECODE, MIXED, EXPERT_LAYER)


def judge(
    role: RoleSpec, rank: RankSpec, case: StepCase | None, measured: Measured, pricer: Pricer, cut: Cut | None = None,
    trained: TrainedShards | None = None,
) -> StepVerdict:  # fmt: skip
    """A measured step of one rank against its prediction; a step that is no step of the role is not predicted.

    The prediction is for the formats that ran, so that it is not blamed for what the device lacks, and with the
    schedule of the pipeline where the ranks ran it together. `trained` prices training steps, where the plan has any.
    """
    predicted: dict[str, OperatorTime] = {}
    memory_bytes = stage_s = None
    if case is not None:
        predicted = _predicted(role, rank, case, measured, pricer, cut or Cut(), trained)
        stage_s = stage_of_plan_s(role, case, measured, pricer, cut or Cut())
    if case is not None and case.kind in _WITH_MEMORY:
        executed = slotted(as_executed(role.arch, measured.plain), role.layouts_of(rank), rank.expert_part)
        memory_bytes = rank_memory_bytes(executed, rank, case, max(measured.micro_batches, 1))
    case = case or StepCase(measured.step)
    rows, absent = operator_rows(predicted, measured.operators_s, measured.executed)
    shape = rank.parallelism
    return StepVerdict(
        role=role.name,
        function=role.function,
        rank=rank.rank,
        step=measured.step,
        batch=case.batch,
        tokens=case.tokens,
        context=max(case.prefill_context, case.decode_context),
        predicted_s=sum(row.predicted_s for row in rows.values()),
        predicted_step_s=sum(time.seconds for time in predicted.values()),
        measured_s=measured.median_s,
        p10_s=measured.p10_s,
        p90_s=measured.p90_s,
        operators=rows,
        absent=absent,
        work=case.as_json(),
        shape={"tp": shape.tp, "dp": shape.dp, "cp": shape.cp, "moe_tp": shape.moe_tp, "ep": shape.ep, "pp": shape.pp},
        layers=rank.layers,
        memory_bytes=measured.memory_bytes,
        predicted_memory_bytes=memory_bytes,
        stage_of_plan_s=stage_s,
        micro_batches=measured.micro_batches,
        graph=measured.graph,
        note=measured.note,
        plain=measured.plain,
        working=measured.working,
    )


def _predicted(
    role: RoleSpec, rank: RankSpec, case: StepCase, measured: Measured, pricer: Pricer, cut: Cut,
    trained: TrainedShards | None,
) -> dict[str, OperatorTime]:  # fmt: skip
    """Seconds by operator, and of the pipeline what its schedule takes beyond the rank's own work."""

    def of(spec: RankSpec) -> dict[str, OperatorTime]:
        operators = executed_operators(role, spec, case, measured.plain, measured.working)
        if trained is None or case.kind != TRAIN:
            return predict(operators, pricer)
        return predict_training(operators, pricer, trained.seconds(spec, case, measured.plain))

    own = of(rank)
    if not measured.micro_batches:
        return own
    batches = measured.micro_batches
    times = {name: OperatorTime(time.seconds * batches, time.count * batches) for name, time in own.items()}
    if trained is None or case.kind != TRAIN:
        message_s = _message_s(role, rank, case, measured, pricer)
    else:
        message_s = trained.message_s(rank, case, measured.plain)
    whole_s = _schedule_s(role, case, measured, message_s, _stage_seconds(role, cut, of))
    waiting_s = max(whole_s - sum(time.seconds for time in times.values()), 0.0)
    times[PIPELINE] = OperatorTime(waiting_s, 1.0)
    if batches > 1 and case.kind == TRAIN:
        added = gradient_accumulation(rank_parameters(role.arch, rank, updated=False), measured.working)
        added_s = float(pricer.price(added).seconds[0])
        times[added.name] = OperatorTime(added_s * (batches - 1), batches - 1.0)
    return times


def _message_s(role: RoleSpec, rank: RankSpec, case: StepCase, measured: Measured, pricer: Pricer) -> float:
    """A hand-over between neighbouring stages."""
    shape = role.parallelism
    tokens = case.prefill_sequences * (context_tokens(case, rank) // shape.cp) + case.decode_sequences
    size = np.array([tokens * role.arch.hidden_size * 2.0])
    stride = np.array([float(shape.tp * shape.cp * shape.dp)])
    message = Collective("stage_handover", 1.0, "p2p", size, np.array([2.0]), stride)
    (message,) = in_working_format([message], measured.working)  # type: ignore[assignment]  # stays a collective
    return float(pricer.price(message).seconds[0])


def _schedule_s(
    role: RoleSpec, case: StepCase, measured: Measured, message_s: float, seconds_of: Callable[[Pass], float]
) -> float:
    """How long all micro-batches take through the stages of all ranks."""
    shape = role.parallelism
    passes = forward_passes(role.stages_of_pipeline_rank, measured.micro_batches)
    if case.kind == TRAIN:
        passes = passes_of(shape.pp, shape.vpp, measured.micro_batches)
    return makespan_s(passes, seconds_of, message_s)


def _stage_seconds(
    role: RoleSpec, cut: Cut, of: Callable[[RankSpec], Mapping[str, OperatorTime]]
) -> Callable[[Pass], float]:
    """The time of a pass through each stage; stages with the same job are priced once."""
    priced: dict[object, tuple[float, float]] = {}
    whole = cut.of_rank(replace(role.rank(0), stages=role.stages))

    def seconds_of(stage_pass: Pass) -> float:
        stage = whole.stages[stage_pass.stage]
        work = role.work_of(stage)
        if work not in priced:
            times = of(replace(whole, stages=(stage,)))
            back_s = sum(time.seconds for name, time in times.items() if name.endswith((BACKWARD, SUFFIX)))
            priced[work] = sum(time.seconds for time in times.values()) - back_s, back_s
        return priced[work][stage_pass.backward]

    return seconds_of
