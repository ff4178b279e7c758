"""Towers and generators of a training plan as it states them."""

from collections.abc import Iterator

from planner.costs.training.modalities.networks import NetworkCost
from planner.kinds.train.evaluation.choice import SideRun
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.job import TrainJob
from planner.kinds.train.split.states import held_memory
from planner.kinds.train.unlike import ModuleRun, OperatorTime
from planner.models.modules import module_parameters
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block

MEAN_SAMPLE = (
    "every micro-batch holds the images and sounds of the mean sequence; towers compute in bf16, see whole inputs on"
    " every context-parallel rank, and nothing of them is computed again"
)
APART = (
    "networks apart pass activations on beside computing, and each holds those of two micro-batches",
    "the step is the first micro-batch of each network and then the slowest of all for each further one (DistTrain)",
)


def module_runs(best: Evaluation) -> Iterator[ModuleRun]:
    """Towers, then generators, on the ends of the pipeline or on GPUs of their own."""
    table, networks = best.choice.table, best.choice.table.job.networks
    colocated = (*table.towers, *table.generators)
    sizes = [(tower.parameters, load.tokens) for tower, load in networks.towers]
    sizes += [(module_parameters(generator), pixels) for generator, pixels, _ in networks.generators]
    for place, (name, (parameters, tokens)) in enumerate(zip(networks.names, sizes, strict=True)):
        side = best.sides[place] if best.sides else None
        yield _run(best, name, colocated[place] if side is None else side.cost, parameters, tokens, side)


def _run(
    best: Evaluation, name: str, cost: NetworkCost, parameters: int, tokens: float, side: SideRun | None
) -> ModuleRun:
    choice = best.choice
    share = cost.trained_elements / (cost.trained_elements + cost.frozen_elements)
    return ModuleRun(
        name=name,
        place="colocated" if side is None else "apart",
        tp=choice.table.shape.tp if side is None else side.tp,
        dp=choice.dp if side is None else side.dp,
        parameters=parameters,
        trained_parameters=round(share * parameters),
        tokens=tokens,
        operators=tuple(
            OperatorTime(name=operator, forward_s=forward_s, backward_s=input_s + weight_s)
            for operator, forward_s, input_s, weight_s in cost.seconds_of
        ),
        activations_bytes=cost.in_flight_bytes,
        frozen_bytes=cost.frozen_bytes,
        first_rank=None if side is None else side.first_rank,
        block=None if side is None else _block(choice.table.job, name, side),
        memory=None if side is None else held_memory(choice.table.job, side),
    )


def _block(job: TrainJob, name: str, side: SideRun) -> Block:
    """Its devices in service, dp outermost."""
    devices = job.devices[side.first_rank : side.first_rank + side.num_gpus].tolist()
    axes = (Axis(name="dp", size=side.dp, stride=side.tp), Axis(name="tp", size=side.tp, stride=1))
    return block_on(devices, name, job.pool.name, tuple(axis for axis in axes if axis.size > 1))
