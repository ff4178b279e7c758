"""Elastic training (EasyScale): logical workers on whatever GPUs there are, at a constant global batch.

Source: EasyScale (SC 2023): a job has as many logical workers as it was designed for, each with its share of the batch
and its own random state, and GPUs run several of them one after the other; so results do not depend on the GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.result import SolveResult
from planner.solvers.schedules.equal_tasks import spread_tasks


@dataclass(frozen=True, slots=True)
class GpuKind:
    """GPUs of one kind: seconds that one takes for the micro-batches of a logical worker, and workers that it holds."""

    name: str
    count: int
    worker_s: float
    most_workers: int


@dataclass(frozen=True, slots=True)
class Elastic:
    """Logical workers on GPUs: by kind, how many GPUs run how many workers."""

    workers: tuple[tuple[str, int, int], ...]  # kind, workers on each, GPUs that run so many
    step_s: float
    idle_share: float  # of all GPU time within the step
    bound_step_s: float  # if workers could be cut

    @property
    def loss(self) -> float:
        """By how much whole workers are slower than cut ones: 0.05 is 5 %."""
        return self.step_s / self.bound_step_s - 1.0


def place_workers(workers: int, gpus: Sequence[GpuKind], exchange_s: float = 0.0) -> SolveResult[Elastic]:
    """The workers on the GPUs so that the step ends first, proven; `exchange_s` is what each step adds once.

    INFEASIBLE where the GPUs cannot hold all workers. Raises PlannerError where there is no GPU.
    """
    task_s = [kind.worker_s for kind in gpus for _ in range(kind.count)]
    if not task_s or workers < 1:
        raise PlannerError(f"{workers} workers on {len(task_s)} GPUs", where="gpus", hint="give at least one of each")
    most = [kind.most_workers for kind in gpus for _ in range(kind.count)]
    result = spread_tasks(workers, task_s, most)
    if result.solution is None or result.objective is None:
        return SolveResult(result.status, result.stop_reason, None, None, None, result.solve_s, result.solver)
    busy_s = sum(count * seconds for count, seconds in zip(result.solution, task_s, strict=True))
    step_s = result.objective + exchange_s
    bound_s = workers / sum(1.0 / seconds for seconds in task_s) + exchange_s
    idle = 1.0 - busy_s / (len(task_s) * result.objective)
    value = Elastic(_rows(gpus, result.solution), step_s, idle, bound_s)
    return SolveResult(result.status, result.stop_reason, value, step_s, step_s, result.solve_s, result.solver)


def _rows(gpus: Sequence[GpuKind], counts: Sequence[int]) -> tuple[tuple[str, int, int], ...]:
    rows: dict[tuple[str, int], int] = {}
    first = 0
    for kind in gpus:
        for count in counts[first : first + kind.count]:
            rows[kind.name, count] = rows.get((kind.name, count), 0) + 1
        first += kind.count
    return tuple((name, count, number) for (name, count), number in sorted(rows.items()))
