"""Training plans as elastic jobs (EasyScale): data-parallel ranks as logical workers on whatever GPUs there are.

Source: EasyScale (SC 2023): a job keeps the logical workers that it was designed for, each with its micro-batches, and
GPUs run several of them one after the other, so that results do not depend on the GPUs. A worker takes as many GPUs as
one replica of the plan. Workers of a GPU share its weights and states, and each GPU holds all of them, since how many
GPUs there are to share them changes: so one worker more takes time and no memory.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.hardware.library import find_node
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.proof.reprice import repriced
from planner.plan.schema import Decision, Envelope
from planner.solvers.schedules.idle_machines import TaskJob


def elastic_job(envelope: Envelope, decision: Decision, gpus: Sequence[str]) -> TaskJob:
    """What a plan asks of GPUs of these kinds, by their catalog names; kinds that cannot hold a worker are left out.

    Raises PlannerError for plans without equal workers, and where no kind can hold one.
    """
    if not isinstance(decision, TrainDecision) or decision.pools != "one" or decision.layer_runs:
        raise PlannerError(
            "the plan has no equal workers",
            where=envelope.name,
            hint="give a training plan on one pool with one strategy for all layers",
        )
    degrees = decision.degrees
    evaluations = {name: _on(envelope, decision, name) for name in gpus}
    able = {name: priced for name, priced in evaluations.items() if not isinstance(priced, str) and fits(priced)}
    if not able:
        reason = next(
            (priced for priced in evaluations.values() if isinstance(priced, str)),
            "its memory is too small",
        )
        raise PlannerError(
            f"no worker of `{envelope.name}` runs on {', '.join(gpus)}: {reason}",
            where="--gpus",
            hint="name GPUs that hold all weights and states of a replica",
        )
    return TaskJob(
        tasks=degrees.dp,
        task_s={name: priced.pipeline_s for name, priced in able.items()},
        most=dict.fromkeys(able, degrees.dp),
        group=degrees.tp * degrees.cp * degrees.pp,
        more_s=max(priced.step_s - priced.pipeline_s for priced in able.values()),
    )


def _on(envelope: Envelope, decision: TrainDecision, gpu: str) -> Evaluation | str:
    """The plan on as many GPUs of one kind as it was made for, states resident on every replica."""
    nodes = -(-decision.degrees.devices // find_node(gpu).num_gpus)
    pools: list[JsonValue] = [{"gpu": gpu, "nodes": nodes}]
    inputs = {**envelope.inputs, "cluster": {"pools": pools}, "limits": {}}
    role = decision.roles[0].model_copy(update={"pool": gpu})
    changed = decision.model_copy(update={"roles": (role,), "zero_stage": 0, "zero_shards": None})
    return repriced(envelope.model_copy(update={"inputs": inputs}), changed)
