"""Towers and generators of a training plan as it states them."""

from collections.abc import Iterator

from planner.costs.training.modalities.networks import NetworkCost
from planner.kinds.train.decision import ModuleRun, OperatorTime
from planner.kinds.train.evaluation.evaluate import Evaluation
from planner.models.modules import module_parameters

MEAN_SAMPLE = (
    "every micro-batch holds the images and sounds of the mean sequence; towers compute in bf16, see whole inputs on every"
    " context-parallel rank, and nothing of them is computed again"
)


def module_runs(best: Evaluation) -> Iterator[ModuleRun]:
    """Towers on the first stage, then generators on the last."""
    table, networks = best.choice.table, best.choice.table.job.networks
    names = iter(networks.names)
    for (tower, load), cost in zip(networks.towers, table.towers, strict=True):
        yield _run(best, next(names), cost, tower.parameters, load.tokens)
    for (generator, pixels, _), cost in zip(networks.generators, table.generators, strict=True):
        yield _run(best, next(names), cost, module_parameters(generator), pixels)


def _run(best: Evaluation, name: str, cost: NetworkCost, parameters: int, tokens: float) -> ModuleRun:
    choice = best.choice
    share = cost.trained_elements / (cost.trained_elements + cost.frozen_elements)
    return ModuleRun(
        name=name,
        place="colocated",
        tp=choice.table.shape.tp,
        dp=choice.dp,
        parameters=parameters,
        trained_parameters=round(share * parameters),
        tokens=tokens,
        operators=tuple(
            OperatorTime(name=operator, forward_s=forward_s, backward_s=input_s + weight_s)
            for operator, forward_s, input_s, weight_s in cost.seconds_of
        ),
        activations_bytes=cost.in_flight_bytes,
        frozen_bytes=cost.frozen_bytes,
    )
