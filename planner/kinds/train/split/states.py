"""What one rank of a network on GPUs of its own holds."""

from planner.kinds.train.evaluation.choice import SideRun
from planner.kinds.train.job import TrainJob
from planner.plan.schema import Memory

HELD = 2  # micro-batches whose activations a network holds
STATES = (2.0, 4.0, 12.0)  # bytes of an element that learns: weights, gradients, and the optimizer that dp shares out


def held_memory(job: TrainJob, side: SideRun) -> Memory:
    """By part, under ZeRO 1."""
    cost, (weight, gradient, optimizer) = side.cost, STATES
    return Memory(
        weights_bytes=weight * cost.trained_elements + cost.frozen_bytes,
        gradients_bytes=gradient * cost.trained_elements,
        optimizer_bytes=optimizer * cost.trained_elements / side.dp,
        activations_bytes=HELD * cost.in_flight_bytes,
        workspace_bytes=cost.work_bytes + job.rates.get("memory.context_bytes"),
        capacity_bytes=job.machine.memory_bytes,
    )
