"""Networks of a training job as sides of a split: what each takes and holds by tp, and a plan joined with their shares.

The step of a plan whose networks have GPUs of their own is DistTrain's (arXiv:2408.04275, section 4): each network's
first micro-batch, and then as many micro-batches as the language model's replicas still have, each as long as the
slowest of all takes for one. What the language model takes is its pipeline simulated; the slowest of its ranks counts.
"""

from dataclasses import dataclass, replace

from planner.costs.training.modalities.networks import NetworkCost
from planner.kinds.train.evaluation.choice import PlanChoice, SideRun
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.space import powers
from planner.kinds.train.space.tables import CostTable
from planner.kinds.train.split.states import HELD, STATES
from planner.solvers.modalities.split import Module, Row, Share, SideProblem, best_sides, side_row


@dataclass(frozen=True)
class Sides:
    """The networks of a job at one micro-batch."""

    job: TrainJob
    costs: tuple[dict[int, NetworkCost], ...]  # of each network, towers first, by its tp
    problem: SideProblem

    @property
    def least_gpus(self) -> int:
        """That the networks take together."""
        return sum(min(costs) for costs in self.costs)

    @property
    def work_s(self) -> float:
        """GPU-seconds of a sequence in all networks, at least."""
        return sum(min(tp * s for tp, s in module.seconds_of_tp.items()) for module in self.problem.sides)

    def beside(self, language_gpus: int) -> SideProblem:
        """The networks at those tp that leave no group astride of nodes behind so many GPUs of the language model."""
        return replace(
            self.problem,
            sides=tuple(
                replace(m, seconds_of_tp={tp: s for tp, s in m.seconds_of_tp.items() if language_gpus % tp == 0})
                for m in self.problem.sides
            ),
        )


def apart_of(job: TrainJob) -> TrainJob:
    """The job with its networks on GPUs of their own, beside which no named engine interleaves stages."""
    search = job.options.search.model_copy(update={"vpp": (1,)} if job.strict else {})
    options = job.options.model_copy(update={"search": search})
    return replace(job, options=options, networks=replace(job.networks, apart=True))


def sides_of(table: CostTable) -> Sides:
    """The networks of the job beside language models of this micro-batch."""
    job, micro_batch = table.job, table.shape.micro_batch
    degrees = powers(job.machine.domain_gpus)
    shards = {tp: replace(table.dense_shard, tp=tp, sequence_parallel=tp > 1, cp=1) for tp in degrees}
    towers = {tp: job.networks.tower_costs(job.machine, shard, job.rates) for tp, shard in shards.items()}
    made = {tp: job.networks.generator_costs(job.machine, shard, job.rates) for tp, shard in shards.items()}
    costs = []
    for place, (tower, _) in enumerate(job.networks.towers):
        costs.append({tp: towers[tp][place] for tp in degrees if tower.num_heads % tp == 0})
    for place in range(len(job.networks.generators)):
        costs.append({tp: made[tp][place] for tp in degrees})
    modules = tuple(_module(name, own, micro_batch) for name, own in zip(job.networks.names, costs, strict=True))
    network = job.machine.fabric_bytes_per_s * job.rates.get("fabric.dp", job.machine.generation)
    return Sides(job, tuple(costs), SideProblem(modules, micro_batch, job.room_bytes, network, HELD))


def _module(name: str, costs: dict[int, NetworkCost], micro_batch: int) -> Module:
    """A network as the split knows it; of what its ranks hold the most that any tp leaves."""
    learnt = max(tp * cost.trained_elements for tp, cost in costs.items())
    held = max(
        tp * (cost.in_flight_bytes / micro_batch + cost.work_bytes / (micro_batch * HELD)) for tp, cost in costs.items()
    )
    return Module(
        name,
        1,
        {tp: sum(cost.pass_s) / micro_batch for tp, cost in costs.items()},
        STATES[0] * learnt,
        held,
        trained=learnt > 0,
        frozen_bytes=max(tp * cost.frozen_bytes for tp, cost in costs.items()),
    )


def joined(evaluation: Evaluation, sides: Sides, shares: tuple[Share, ...] | None = None) -> Evaluation | None:
    """The plan with its networks on the best shares of the GPUs that are left, or on those given.

    None where no shares fit.
    """
    choice = evaluation.choice
    problem, gpus = sides.beside(choice.num_gpus), sides.job.num_gpus - choice.num_gpus
    turns = choice.num_micro_batches - 1
    own = _language_row(evaluation)
    if shares is None:
        shares = best_sides(problem, own, choice.dp, gpus, turns)
    if shares is None or sum(share.gpus for share in shares) > gpus:
        return None
    if any(share.dp % choice.dp and choice.dp % share.dp for share in shares):
        return None
    rows = [side_row(problem, module, share, choice.dp) for module, share in zip(problem.sides, shares, strict=True)]
    fitting = [own, *(row for row in rows if row is not None)]
    if len(fitting) <= len(rows):
        return None
    _, warm, rate, sync = zip(*fitting, strict=True)
    return replace(
        evaluation,
        pipeline_s=sum(warm) + turns * max(rate),
        exchange_s=max(sync),
        sides=_placed(choice, sides, shares),
    )


def _language_row(evaluation: Evaluation) -> Row:
    """GPUs, first micro-batch, each further one, and exchange of the language model alone."""
    batches = evaluation.choice.num_micro_batches
    rate_s = float(evaluation.busy_R.max()) / batches
    return evaluation.choice.num_gpus, evaluation.pipeline_s - (batches - 1) * rate_s, rate_s, evaluation.exchange_s


def _placed(choice: PlanChoice, sides: Sides, shares: tuple[Share, ...]) -> tuple[SideRun, ...]:
    """Each network with its first rank: behind the language model, larger tp first."""
    first_of: dict[int, int] = {}
    rank = choice.num_gpus
    for place in sorted(range(len(shares)), key=lambda place: -shares[place].tp):
        first_of[place] = rank
        rank += shares[place].gpus
    return tuple(
        SideRun(share.tp, share.dp, first_of[place], sides.costs[place][share.tp]) for place, share in enumerate(shares)
    )
