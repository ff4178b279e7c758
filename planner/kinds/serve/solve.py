"""A serving problem to a certified plan: candidates, mix, proof, placement, envelope."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.costs.parameters import Calibration, load_calibration
from planner.costs.source import make_pricer, open_store, profile_paths
from planner.errors import PlannerError
from planner.hardware.profiles.store import ProfileStore
from planner.infeasible import Stopped
from planner.kinds.serve.candidates import Candidate, Place, Search, Tally
from planner.kinds.serve.demand import Target, make_target
from planner.kinds.serve.formulate import Formulated, formulate
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.shapes import ShapeSpace, shape_space
from planner.kinds.serve.steady import Costs
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.mix import MixSolution
from planner.solvers.mix_solve import MixCertificate, certify, solve_mix
from planner.solvers.result import SolveResult, Status


@dataclass(frozen=True, slots=True)
class Setting:
    """A resolved problem with its costs at hand: everything the search reads."""

    resolved: Resolved
    options: ServeOptions
    targets: tuple[Target, ...]
    places: dict[tuple[str, int], Place]  # by model and pool
    spaces: dict[tuple[str, int], ShapeSpace]
    store: ProfileStore | None
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Outcome:
    """A solved mix with what it was chosen from."""

    formulated: Formulated
    result: SolveResult[MixSolution]
    tally: Tally

    @property
    def objective(self) -> float | None:
        """In the metric of the problem."""
        value = self.result.objective
        return None if value is None else value * self.formulated.factor


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan for a serving problem.

    Raises Infeasible with a smallest conflict when no plan keeps all limits, Stopped when a limit of the solve came
    first, PlannerError for a problem that makes no sense.
    """
    from planner.kinds.serve.decode import decode
    from planner.kinds.serve.frontier import frontier
    from planner.kinds.serve.limits import explain_infeasible

    setting = prepare(resolved)
    limits.tell("pricing candidates")
    outcome = search(setting, setting.targets, limits)
    if outcome.result.status is Status.INFEASIBLE or not outcome.result.objective:
        if outcome.result.status is Status.UNKNOWN:
            raise Stopped(outcome.result.stop_reason, bound=outcome.result.bound)
        limits.tell("naming the limits in conflict")
        raise explain_infeasible(setting, limits)
    limits.tell("proving the bound")
    proof = certify(outcome.formulated.problem, outcome.result)
    points = frontier(setting, limits) if resolved.problem.objective.pareto is not None else ()
    return decode(setting, outcome, proof, points)


def prepare(resolved: Resolved) -> Setting:
    """Costs, targets and shape spaces of a problem; raises PlannerError for what cannot be priced."""
    problem = resolved.problem
    options = ServeOptions.model_validate(problem.options)
    if not resolved.workloads:
        raise PlannerError("a serving problem needs a workload", where=resolved.where(()), hint="add `workloads:`")
    calibration = load_calibration(problem.costs.calibration)
    store = open_store(profile_paths(problem.costs.profiles))
    targets = tuple(
        make_target(workload, index, resolved.models[workload.model])
        for index, workload in enumerate(resolved.workloads)
    )
    places, spaces = {}, {}
    for key in dict.fromkeys(workload.model for workload in resolved.workloads):
        _require_priceable(resolved, key)
        for index, pool in enumerate(resolved.pools):
            pricer = make_pricer(
                pool.node.accelerator, pool.topology(), resolved.models[key], engine=problem.engine.name,
                version=problem.engine.version, calibration=calibration, store=store,
            )  # fmt: skip
            costs = Costs(resolved.models[key], pricer, calibration.engine(problem.engine.name))
            memory = pool.node.accelerator.memory_bytes * problem.engine.memory_utilisation
            places[key, index] = Place(index, pool, costs, memory)
            spaces[key, index] = shape_space(resolved.models[key], pool, problem.engine.name, options)
    return Setting(resolved, options, targets, places, spaces, store, calibration)


def _require_priceable(resolved: Resolved, key: str) -> None:
    reasons = resolved.models[key].unsupported_parts()
    if reasons:
        raise PlannerError(
            f"{resolved.models[key].name} has parts without a cost: unsupported {'; '.join(reasons)}",
            where=resolved.where(("models", key)),
            hint="choose a model whose layers all have costs; `planner models show` tells which do",
        )


def search(setting: Setting, targets: Sequence[Target], limits: Limits) -> Outcome:
    """The best mix for `targets` (those of the setting, perhaps with other limits)."""
    tally = Tally()
    found = list_candidates(setting, targets, tally)
    formulated = formulate(setting.resolved, targets, found)
    result = solve_mix(
        formulated.problem,
        backend=limits.backend,
        time_limit_s=limits.time_limit_s,
        gap=limits.gap,
        seed=setting.resolved.problem.seed,
    )
    return Outcome(formulated, result, tally)


def list_candidates(setting: Setting, targets: Sequence[Target], tally: Tally) -> list[Candidate]:
    """The surviving candidates of every model on every pool."""
    found: list[Candidate] = []
    models = [workload.model for workload in setting.resolved.workloads]
    for (model, index), place in setting.places.items():
        search_one = Search(model, place, setting.options, setting.spaces[model, index], tally)
        mine = [target for target, key in zip(targets, models, strict=True) if key == model]
        found += search_one.candidates(mine, len(targets))
    return found


def proven_bound(proof: MixCertificate, factor: float) -> float | None:
    """The bound that the certificate re-derives, in the metric of the problem."""
    bound = proof.bound()
    return None if bound is None else bound * factor
