"""The steady-state search of serving: prices candidates of every pool, and solves for the best mix of them.

`prepare` prices a resolved problem, `list_candidates` lists the instance types that keep its limits, and `search`
solves the mix of them (`planner.solvers.mix`) for given targets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.forms import Forms
from planner.costs.rates.near_runs import NearRuns
from planner.costs.rates.pricer import make_pricer, open_store, profile_paths
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.spread import ErrorSpread, group_of_runs
from planner.costs.serving.attention_ffn import Port
from planner.costs.serving.own_runs import near_runs
from planner.costs.serving.speculation import Drafter, drafter_of
from planner.engines.handover import NO_WAY, Way
from planner.engines.load import release_of
from planner.engines.release import Release
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.profiles.store import ProfileStore
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.allowed import allowed
from planner.kinds.serve.steady.candidates import Candidate, CandidateSearch, JudgedPoints, PricedPoints, drafts_of
from planner.kinds.serve.steady.context import context_of
from planner.kinds.serve.steady.demand import Target, channels_of, handover, make_target
from planner.kinds.serve.steady.engine_rules import require_balancer, require_experts, require_loadable, ways_of_models
from planner.kinds.serve.steady.failures import require_domains
from planner.kinds.serve.steady.formulate import Formulated, formulate, gpus_at_hand
from planner.kinds.serve.steady.points import PoolCosts, Tally
from planner.kinds.serve.steady.predict import with_room
from planner.kinds.serve.steady.roles_in_use import RoleInUse, roles_in_use
from planner.kinds.serve.steady.shapes import ShapeSpace, shape_space
from planner.kinds.serve.steady.steps.formulas import Costs
from planner.kinds.serve.steady.units import JOINING_AHEAD, JOINING_STEPS
from planner.problem.confidence import confidence_of
from planner.problem.resolve import Resolved, Workload
from planner.progress import Limits
from planner.simulate.plans.ahead import forms_ahead
from planner.solvers.mix import LEAST_RATE, MixProblem, MixSolution
from planner.solvers.mix_solve import solve_mix
from planner.solvers.result import SolveResult, Status
from planner.solvers.stochastic.routed_queues import Routing, better_routing


@dataclass(frozen=True, slots=True)
class ServeSetting:
    """A resolved problem with its costs at hand: everything the search reads."""

    resolved: Resolved
    options: ServeOptions
    targets: tuple[Target, ...]
    costs_of_pool: dict[tuple[str, int], PoolCosts]  # by model and pool
    spaces: dict[tuple[str, int], ShapeSpace]
    store: ProfileStore | None
    calibration: Calibration
    release: Release  # of the engine, by whose rules the space is cut
    ways: dict[str, tuple[Way, ...]]  # of caches from prefill to decode, by model
    priced: dict[tuple[str, int, str], PricedPoints] = field(default_factory=dict)  # by model, pool and role
    spread_gpus: int | None = None  # that requests in flight are spread over, where own runs are near; None: any load
    forms: Forms | None = None  # that instances are held to; None: any

    @property
    def pooling(self) -> bool:
        """Whether waits of equal prefill instances count as theirs together.

        Not where some may fail, nor where clients wait: there answers make room for requests, and no chance does.
        """
        closed = any(target.clients is not None for target in self.targets)
        return not closed and self.resolved.problem.availability is None and self.options.judged_by != "simulation"

    @property
    def takes_loads(self) -> bool:
        """Whether own runs are taken at the share that instances have of what is in flight."""
        near = any(pool_costs.near is not None for pool_costs in self.costs_of_pool.values())
        return near and any(target.clients is not None or target.rate_per_s is not None for target in self.targets)

    @property
    def routing(self) -> Routing:
        """How routers choose among equal instances: as suits the prompts that spread most."""
        return better_routing(
            max(target.arrival_cv2 for target in self.targets), max(target.service_cv2 for target in self.targets)
        )

    @property
    def profile_digests(self) -> set[str]:
        """The kernel tables that prices rest on so far, as `sha256:...`."""
        pricers = (pool_costs.costs.pricer for pool_costs in self.costs_of_pool.values())
        names = (name for pricer in pricers if isinstance(pricer, Profiled) for name in pricer.digests)
        return {f"sha256:{name.removeprefix('sha256:')}" for name in names}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A solved mix with what it was chosen from."""

    formulated: Formulated
    searched: MixProblem  # that of `formulated`, perhaps restricted to what can run
    result: SolveResult[MixSolution]
    tally: Tally

    @property
    def has_mix(self) -> bool:
        """Whether there is a mix that does anything."""
        value = self.result.objective
        return value is not None and (value > 0.0 or not self.formulated.problem.maximising)

    @property
    def proven(self) -> bool:
        """Whether the search ended by itself, so that a mix it does not have is not there."""
        return self.result.status in (Status.INFEASIBLE, Status.OPTIMAL)

    @property
    def objective(self) -> float | None:
        """In the metric of the problem."""
        value = self.result.objective
        return None if value is None else self.formulated.in_metric(value)

    @property
    def solution(self) -> MixSolution:
        """The mix, of an outcome that has one."""
        assert self.result.solution is not None
        return self.result.solution

    @property
    def roles(self) -> list[RoleInUse]:
        """The instance types of the mix that are in use."""
        return roles_in_use(self.formulated.candidates, self.solution)


def prepare(resolved: Resolved, *, reserving: bool = True, spread_gpus: int | None = None) -> ServeSetting:
    """Costs, targets and shape spaces of a problem; raises PlannerError for what cannot be priced.

    Own runs are taken at an instance's share of what is in flight on `spread_gpus`, by default all there are, and at
    any load where not all are used up.

    The memory that plans leave free binds a search; what judges a plan that is there takes it for possible without.
    """
    problem = resolved.problem
    if spread_gpus is None and problem.objective.maximize:
        spread_gpus = sum(pool.num_gpus for pool in resolved.pools)
    require_domains(resolved)
    options = ServeOptions.model_validate(problem.options)
    if not reserving:
        options = options.model_copy(update={"memory_reserve": 0.0})
    if not resolved.workloads:
        raise PlannerError("a serving problem needs a workload", where=resolved.where(()), hint="add `workloads:`")
    calibration = load_calibration(problem.costs.calibration)
    store = open_store(profile_paths(problem.costs.profiles))
    drafters = {key: _drafter(resolved, options, key) for key in (workload.model for workload in resolved.workloads)}
    release = release_of(problem.engine.name, problem.engine.version, where=resolved.where(("engine", "version")))
    if problem.engine.async_scheduling is not None and release.asynchronous is None:
        raise PlannerError(
            f"the rules of {release.name} do not say whether it forms a step while the one before it runs",
            where=resolved.where(("engine", "async_scheduling")),
            hint="leave `async_scheduling` out",
        )
    targets = tuple(
        make_target(
            workload,
            index,
            resolved.models[workload.model],
            spreads_of(resolved, workload, calibration),
            drafters[workload.model],
            context_tokens=context_of(resolved, index),
            confidence=confidence_of(workload.spec.slo, resolved.confidence),
            joining_steps=JOINING_AHEAD if forms_ahead(problem.engine) else JOINING_STEPS,
            by_layout=any(_near(resolved, workload.model, pool, calibration, None) for pool in resolved.pools),
        )
        for index, workload in enumerate(resolved.workloads)
    )
    if resolved.cached is not None:
        targets = tuple(target.beside(resolved.cached) for target in targets)
    costs_of_pool = {
        (model, index): _pool_costs(resolved, options, model, index, calibration, store, drafter, spread_gpus)
        for model, drafter in drafters.items()
        for index in range(len(resolved.pools))
    }
    require_loadable(release, costs_of_pool, resolved.where(("models",)))
    require_experts(resolved, options, costs_of_pool)
    require_balancer(resolved, options)
    spaces = shape_spaces(costs_of_pool, release, options)
    ways = ways_of_models(release, costs_of_pool, spaces)
    setting = ServeSetting(resolved, options, targets, costs_of_pool, spaces, store, calibration, release, ways)
    return replace(setting, spread_gpus=spread_gpus) if setting.takes_loads else setting


def spreads_of(resolved: Resolved, workload: Workload, calibration: Calibration) -> Mapping[str, ErrorSpread]:
    """How far predictions of a workload err: those of the pool that is known least."""
    arch, engine = resolved.models[workload.model], resolved.problem.engine.name
    return calibration.spreads_of(group_of_runs(arch, pool.node.accelerator.name, engine) for pool in resolved.pools)


def _near(
    resolved: Resolved, model: str, pool: Pool, calibration: Calibration, spread_gpus: int | None
) -> NearRuns | None:
    """Own runs of a model on a pool."""
    accelerator = pool.node.accelerator.name
    answers = [workload.output.mean_tokens for workload in resolved.workloads]
    return near_runs(calibration, resolved.models[model], accelerator, resolved.problem, model, spread_gpus, answers)


def with_pools(setting: ServeSetting, resolved: Resolved) -> ServeSetting:
    """The setting with the pools and limits of `resolved`, a variant of its problem, priced anew."""
    costs_of_pool = {
        (model, index): _pool_costs(
            resolved,
            setting.options,
            model,
            index,
            setting.calibration,
            setting.store,
            pool_costs.costs.drafter,
            setting.spread_gpus,
        )
        for (model, index), pool_costs in setting.costs_of_pool.items()
    }
    spaces = shape_spaces(costs_of_pool, setting.release, setting.options)
    ways = ways_of_models(setting.release, costs_of_pool, spaces)
    return replace(setting, resolved=resolved, costs_of_pool=costs_of_pool, spaces=spaces, ways=ways, priced={})


def shape_spaces(
    costs_of_pool: Mapping[tuple[str, int], PoolCosts], release: Release, options: ServeOptions
) -> dict[tuple[str, int], ShapeSpace]:
    """The shapes of every model on every pool that `options` allow."""
    return {
        key: shape_space(pool_costs.costs.arch, pool_costs.pool, release, options)
        for key, pool_costs in costs_of_pool.items()
    }


def _drafter(resolved: Resolved, options: ServeOptions, model: str) -> Drafter | None:
    """What drafts for a model; raises PlannerError for models and drafters that have no cost."""
    resolved.require_priceable(model)
    where = resolved.where(("options", "speculation"))
    return drafter_of(options.speculation, resolved.models[model], resolved.models, where)


def _pool_costs(
    resolved: Resolved,
    options: ServeOptions,
    model: str,
    index: int,
    calibration: Calibration,
    store: ProfileStore | None,
    drafter: Drafter | None,
    spread_gpus: int | None,
) -> PoolCosts:
    """One model's costs on the pool with that index in the problem."""
    arch, engine, pool = resolved.models[model], resolved.problem.engine, resolved.pools[index]
    near = _near(resolved, model, pool, calibration, spread_gpus)
    pricer = make_pricer(
        pool, arch, engine=engine.name, version=engine.version, calibration=calibration, store=store, near=near
    )
    memory = pool.node.accelerator.usable_bytes(engine.memory_utilisation)
    costs = Costs(arch, pricer, calibration.engine(engine.name, engine.version, arch.name), drafter)
    port, context_tokens = Port.of(pool, calibration.efficiencies), engine.max_context_tokens or 0
    group = group_of_runs(arch, pool.node.accelerator.name, engine.name)
    spread = calibration.spreads_of((group,)).get("tpot", ErrorSpread())
    return PoolCosts(index, pool, costs, memory, port, options.memory_reserve, context_tokens, near, spread)


def search(
    setting: ServeSetting,
    targets: Sequence[Target],
    limits: Limits,
    *,
    tie_break: bool = True,
    proposes: bool = False,
    candidates: Sequence[Candidate] | None = None,
) -> Outcome:
    """The best mix for `targets` (those of the setting, perhaps with other limits).

    `candidates` are those of `list_candidates`, where they are at hand; the tally is empty then.
    `proposes`: others judge it, so that of equals in goodput the one of most room is not looked for.
    """
    tally = Tally()
    listed = list_candidates(setting, targets, tally) if candidates is None else candidates
    formulated = formulate(setting.resolved, targets, listed)
    fullness = () if proposes and formulated.problem.maximising else formulated.fullness
    solve = partial(solve_problem, setting=setting, limits=limits, fullness=fullness, tie_break=tie_break)
    problem, result = with_room(setting.costs_of_pool, targets, formulated, solve)
    _require_told_apart(targets, problem, result)
    return Outcome(formulated, problem, result, tally)


def _require_told_apart(targets: Sequence[Target], problem: MixProblem, result: SolveResult[MixSolution]) -> None:
    """Refuses a rate so far below what an instance serves that the solver took it for none."""
    served = result.solution.served_per_s if result.solution is not None else (1.0,) * len(targets)
    for target, rate in zip(targets, served, strict=True):
        if rate > 0.0 or target.rate_per_s is None or target.share <= 0.0:
            continue
        fastest = max(shape.rate_per_s[target.index] for shape in problem.shapes)
        if target.rate_per_s < LEAST_RATE * fastest:
            raise PlannerError(
                f"workload `{target.name}`: {target.rate_per_s:g} requests/s cannot be told from none, where one"
                f" instance serves up to {fastest:.3g}",
                where=f"workloads.{target.index}.load.rate",
                hint=f"write at least `rate: {LEAST_RATE * fastest:.1g}/s`, or minimize gpus or cost",
            )


def solve_problem(
    problem: MixProblem, setting: ServeSetting, limits: Limits, fullness: Sequence[float], *, tie_break: bool
) -> SolveResult[MixSolution]:
    """The best mix, solved as `limits` ask for; ties go to fewer shapes, then to the least `fullness`, one by shape."""
    return solve_mix(
        problem,
        backend=limits.backend,
        time_limit_s=limits.time_limit_s,
        gap=limits.gap,
        seed=setting.resolved.problem.seed,
        threads=limits.threads or 1,
        tie_break=tie_break,
        fullness=fullness,
    )


def list_candidates(
    setting: ServeSetting, targets: Sequence[Target], tally: Tally, judged: list[JudgedPoints] | None = None
) -> list[Candidate]:
    """The surviving candidates of every model on every pool; `judged` takes what was considered, if given."""
    candidates: list[Candidate] = []
    pools, models = setting.resolved.pools, [workload.model for workload in setting.resolved.workloads]
    stated = {frozenset(link.pools): link for link in setting.resolved.problem.cluster.links}
    for (model, index), pool_costs in setting.costs_of_pool.items():
        pairs = [frozenset((pools[index].name, pool.name)) for pool in pools]
        of_model = [target for target, key in zip(targets, models, strict=True) if key == model]
        drafted = drafts_of("decode", setting.options.searched_drafts, pool_costs.costs.drafter)
        candidate_search = CandidateSearch(
            model=model,
            pool_costs=pool_costs,
            options=setting.options,
            space=setting.spaces[model, index],
            channels=channels_of(of_model, len(pools), tuple(drafted), setting.ways[model] or (NO_WAY,)),
            paths=tuple(
                handover(pools[index], pool, stated.get(pair)) for pool, pair in zip(pools, pairs, strict=True)
            ),
            others=tuple(
                setting.costs_of_pool[model, other]
                for other, pair in enumerate(pairs)
                if other != index and pair not in stated
            ),
            tally=tally,
            release=setting.release,
            priced=setting.priced,
            longer_stays=setting.resolved.problem.objective.minimize is not None,
            most_gpus=min(pools[index].num_gpus, gpus_at_hand(setting.resolved.problem, pools)),
            pooling=setting.pooling,
            routing=setting.routing,
            judged=judged,
        )
        candidates += candidate_search.candidates(of_model, len(targets))
    return list(allowed(candidates, setting.options, [pool.name for pool in pools], tally, setting.forms))
