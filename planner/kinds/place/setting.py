"""What placements of a problem are searched and judged with: shapes of groups priced, limits, loads and streams."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.errors import PlannerError, errors_at
from planner.hardware.cluster import Pool
from planner.kinds.place.decision import PlaceOptions
from planner.kinds.place.floor import read_floor
from planner.kinds.place.prices import Prices, priced
from planner.kinds.place.replay import gaps_of, replayed
from planner.problem.resolve import Resolved, Workload
from planner.simulate.plans.workload import SEEDS, drawn_lengths
from planner.simulate.requests.arrivals import arrivals
from planner.solvers.placement.floor import Floor, Kind
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups

WARM_UP = 0.1  # of the requests of a stream whose engines batch: not judged
BATCH_STEPS = range(1, 8)  # times powers of two: sequences that engines may take at a time
MOST_SIZE = 2**20  # of a group, in devices: far beyond any node


@dataclass(frozen=True, slots=True, eq=False)
class PlaceSetting:
    """A resolved problem with its costs; model suffix M, in the order of the problem's workloads."""

    resolved: Resolved
    options: PlaceOptions
    calibration: Calibration
    prices: Prices
    groups: SharedGroups
    floor: Floor | None = None
    gaps: Floats | None = None  # of arrivals that are replayed

    @property
    def pool(self) -> Pool:
        """The pool that all groups stand on."""
        return self.resolved.pools[0]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """One of each model."""
        return self.resolved.workloads

    @property
    def rate_per_s_M(self) -> Floats:
        """Requests per second of each model."""
        return np.array([_rate(workload) for workload in self.workloads])

    @property
    def load_M(self) -> Floats:
        """Work of each model, relative: its rate times what a request takes on the shape that it is fastest on."""
        pace_CM = np.array([shape.bottleneck_s_M / shape.devices for shape in self.groups.shapes])
        fits_CM = np.array([shape.weight_bytes_M <= self.groups.memory_bytes for shape in self.groups.shapes])
        least_M = np.where(fits_CM, pace_CM, np.inf).min(axis=0)
        return np.asarray(self.rate_per_s_M * least_M / least_M.mean())

    @property
    def required_M(self) -> Floats:
        """The share of each model's requests that is to be on time."""
        return np.array([required(workload) for workload in self.workloads])

    def way_s(self, workload: Workload, time: str) -> float:
        """What a request takes on its way to the scheduler, of the `time` that users see."""
        if time == "tpot" or not self.options.batching:
            return 0.0
        return float(self.overheads.request_s(workload.input.mean_tokens))

    @property
    def overheads(self) -> EngineOverheads:
        """What the engine adds to its kernels."""
        engine = self.resolved.problem.engine
        return self.calibration.engine(engine.name, engine.version)

    def kinds(self, groups: Sequence[Group]) -> list[Kind]:
        """Groups as the floor has them."""
        return [(self.groups.shapes[group.shape].devices, group.models) for group in groups]

    def on(self, devices: int) -> SharedGroups | None:
        """The same on so many devices; None where they have no room for the group that some model needs."""
        return on_devices(self.groups, devices)

    @property
    def sequences_M(self) -> tuple[int, ...]:
        """What engines of each model take at a time, at most."""
        batches = self.groups.batches
        return (1,) * len(self.workloads) if batches is None else tuple(batches.most_M.tolist())

    def with_batches(self, sequences_M: Sequence[int]) -> "PlaceSetting | None":
        """The same with so many sequences of engines of each model; None where one has no room for them."""
        try:
            return read_setting(self.resolved, sequences_M)
        except PlannerError:
            return None

    def stream(self, seed: int) -> Stream:
        """Requests of all models for as long as brings the number of the options, by a seed."""
        rate = self.rate_per_s_M
        horizon_s = self.options.simulated_requests / float(rate.sum())
        times, models, prompts, answers = [], [], [], []
        for index, workload in enumerate(self.workloads):
            own = seed + SEEDS * index
            time_s = (
                _arrivals(workload, float(rate[index]), horizon_s, own)
                if self.gaps is None
                else replayed(self.gaps, float(rate[index]), horizon_s, own)
            )
            draws = np.random.default_rng(own + 1)
            times.append(time_s)
            models.append(np.full(len(time_s), index, dtype=np.intp))
            prompts.append(_lengths(workload, "input_tokens", len(time_s), draws))
            answers.append(_lengths(workload, "output_tokens", len(time_s), draws))
        time_s, model = np.concatenate(times), np.concatenate(models)
        order = np.argsort(time_s, kind="stable")
        first = int(WARM_UP * len(order)) if self.groups.batches is not None else 0
        return Stream(
            time_s[order], model[order], np.concatenate(prompts)[order], np.concatenate(answers)[order], first
        )


def on_devices(groups: SharedGroups, devices: int) -> SharedGroups | None:
    """The same on so many devices; None where they have no room for the group that some model needs."""
    try:
        return replace(groups, devices=devices)
    except PlannerError:
        return None


def batch_sizes(most: int) -> list[int]:
    """Sequences that engines may take at a time, up to `most`, the largest first: four steps from one power
    of two to the next.

    They are the same whatever the limit: a larger one allows every engine that a smaller one does.
    """
    steps = {step << power for power in range(most.bit_length()) for step in BATCH_STEPS}
    return sorted((size for size in steps if size <= most), reverse=True)


def widest_setting(resolved: Resolved) -> PlaceSetting:
    """The setting with the most sequences that engines may take and every model has room for.

    Raises PlannerError for problems that no placement of this kind answers, whatever that number.
    """
    options = PlaceOptions.model_validate(resolved.problem.options)
    if not options.batching:
        return read_setting(resolved)
    sizes = batch_sizes(options.max_batch)
    for sequences in sizes[:-1]:
        try:
            return read_setting(resolved, (sequences,) * len(resolved.workloads))
        except PlannerError:
            continue
    return read_setting(resolved, (sizes[-1],) * len(resolved.workloads))


def read_setting(resolved: Resolved, sequences_M: Sequence[int] | None = None) -> PlaceSetting:
    """The setting of a problem, with so many sequences of engines of each model in place of the most they may take.

    Raises PlannerError for problems that no placement of this kind answers.
    """
    options = PlaceOptions.model_validate(resolved.problem.options)
    _require_form(resolved)
    _require_lengths(resolved, options)
    calibration = load_calibration(resolved.problem.costs.calibration)
    most = options.max_batch if options.batching else 1
    prices = priced(resolved, options, calibration, sequences_M or (most,) * len(resolved.workloads))
    pool = resolved.pools[0]
    limit_s_M = np.full(len(resolved.workloads), math.inf)
    if not options.batching:
        limit_s_M = np.array([_latency_limit(resolved, index) for index in range(len(resolved.workloads))])
    floor = read_floor(resolved, options)
    free = len(pool.job_devices) if floor is None else sum(node.free for node in floor.nodes)
    devices = min(free, resolved.problem.limits.gpus or MOST_SIZE)
    sizes = sorted({shape.devices for shape in prices.shapes})
    apart = _apart(resolved, options)
    with errors_at(resolved.where(("cluster", "pools", 0))):
        groups = SharedGroups(
            devices,
            min(pool.node.num_gpus, devices) if floor is None else pool.node.num_gpus,
            prices.room_bytes,
            prices.shapes,
            limit_s_M,
            prices.batches,
            options.min_replicas,
            () if floor is None else tuple((size, floor.room_of_all(size)) for size in sizes),
            apart,
            np.array([required(workload) for workload in resolved.workloads]),
        )
    _require_replicas(resolved, groups)
    return PlaceSetting(resolved, options, calibration, prices, groups, floor, _gaps(resolved, options))


def _require_replicas(resolved: Resolved, groups: SharedGroups) -> None:
    """Refuses more groups of a model than there are when all are of the smallest shape that it fits."""
    for index, workload in enumerate(resolved.workloads):
        least = min(groups.shapes[shape].devices for shape in groups.usable if groups.hosts(shape)[index])
        most = groups.devices // least
        if most < groups.least_hosts:
            what = f"{groups.least_hosts} groups with `{workload.model}`, and {groups.devices} GPUs make {most}"
            place = resolved.where(("options", "min_replicas"))
            raise PlannerError(what, where=place, hint=f"ask for at most {most}, or name more GPUs")


def _gaps(resolved: Resolved, options: PlaceOptions) -> Floats | None:
    """Of arrivals that are replayed; raises PlannerError for workloads whose gaps are said to vary otherwise."""
    if options.arrivals is None:
        return None
    for index, workload in enumerate(resolved.workloads):
        if workload.spec.load is not None and workload.spec.load.arrival_cv != 1.0:
            place = resolved.where(("workloads", index, "load", "arrival_cv"))
            raise PlannerError("gaps are those of `options.arrivals`", where=place, hint="remove one of the two")
    return gaps_of(options.arrivals, resolved.where(("options", "arrivals")))


def _apart(resolved: Resolved, options: PlaceOptions) -> frozenset[tuple[int, int]]:
    """Pairs of models that share no group, as indices of workloads."""
    names = [workload.model for workload in resolved.workloads]
    pairs = set()
    for index, pair in enumerate(options.floor.never_together if options.floor is not None else ()):
        strange = [name for name in pair if name not in names]
        if strange or pair[0] == pair[1]:
            place = resolved.where(("options", "floor", "never_together", index))
            what = f"no model is called `{strange[0]}`" if strange else f"`{pair[0]}` is apart from itself"
            raise PlannerError(what, where=place, hint=f"name two of {', '.join(names)}")
        first, second = sorted(names.index(name) for name in pair)
        pairs.add((first, second))
    return frozenset(pairs)


def required(workload: Workload) -> float:
    """The share of a workload's requests that is to keep every limit: its attainment, or the highest percentile."""
    slo = workload.spec.slo
    percentiles = [float(name[1:]) / 100.0 for _, name, _ in slo.limits() if name != "mean"]
    return max([*percentiles, slo.attainment or 0.0])


def _require_form(resolved: Resolved) -> None:
    problem, where = resolved.problem, resolved.where
    if len(resolved.pools) != 1:
        what = f"{len(resolved.pools)} pools"
        raise PlannerError(what, where=where(("cluster", "pools")), hint="place models on one pool")
    if problem.cluster.pools[0].nic_bandwidth_bytes_per_s is not None:
        what = "groups lie within nodes, and `nic_bandwidth` is of what joins these"
        raise PlannerError(what, where=where(("cluster", "pools", 0, "nic_bandwidth")), hint="remove it")
    if problem.cluster.pools[0].usd_per_gpu_hour is not None:
        what = "placements of models count GPUs, and no prices"
        raise PlannerError(what, where=where(("cluster", "pools", 0, "price")), hint="remove it")
    if problem.cluster.links:
        what = "groups lie within nodes of one pool, and links join pools"
        raise PlannerError(what, where=where(("cluster", "links")), hint="remove them")
    served = [workload.model for workload in resolved.workloads]
    idle = sorted(set(problem.models) - set(served))
    if idle:
        hint = "give it a workload with a rate, or remove it"
        raise PlannerError(f"model `{idle[0]}` has no workload", where=where(("models", idle[0])), hint=hint)
    for index, workload in enumerate(resolved.workloads):
        place = ("workloads", index)
        resolved.require_priceable(workload.model)
        if workload.model in served[:index]:
            what = f"two workloads of model `{workload.model}`"
            raise PlannerError(what, where=where(place), hint="give each workload a model of its own, or join the two")
        if workload.spec.load is None or workload.spec.load.rate_per_s is None:
            what = f"workload `{workload.spec.name}` has no rate"
            raise PlannerError(what, where=where((*place, "load")), hint="write `load: {rate: 2/s}`")
        if not workload.spec.slo.percentile_limits():
            what = f"workload `{workload.spec.name}` limits no percentile of a time, so that no request is late"
            raise PlannerError(what, where=where((*place, "slo")), hint="write `slo: {latency: {p99: 2s}}`")
        for name, statistic, _ in workload.spec.slo.limits():
            if statistic == "mean" or name == "itl":
                what = f"placements are judged by requests that are on time, and `{name}.{statistic}` is of none"
                hint = "limit a percentile of ttft, tpot or latency"
                raise PlannerError(what, where=where((*place, "slo", name)), hint=hint)


def _require_lengths(resolved: Resolved, options: PlaceOptions) -> None:
    """Without batches a request of a model takes a time of its own: one pass over prompts of one length."""
    for index, workload in enumerate(resolved.workloads):
        place = ("workloads", index)
        if options.batching:
            continue
        if workload.spec.output_tokens != 1 or workload.input.cv > 0.0:
            raise PlannerError(
                f"`batching: false` is for requests of one pass, and those of `{workload.spec.name}` differ in length "
                "or answer in several tokens",
                where=resolved.where((*place, "output_tokens")),
                hint="write `output_tokens: 1` and one `input_tokens`, or leave `batching` out",
            )


def _latency_limit(resolved: Resolved, index: int) -> float:
    """Of requests of one pass, their answer is their first token."""
    strictest = resolved.workloads[index].spec.slo.percentile_limits()
    return min(bound_s for name, bound_s in strictest.items() if name != "tpot")


def _rate(workload: Workload) -> float:
    assert workload.spec.load is not None
    assert workload.spec.load.rate_per_s is not None
    return workload.spec.load.rate_per_s


def _arrivals(workload: Workload, rate_per_s: float, horizon_s: float, seed: int) -> Floats:
    """Times before the horizon."""
    assert workload.spec.load is not None
    cv, count = workload.spec.load.arrival_cv, 0
    times = np.zeros(0)
    while not len(times) or times[-1] < horizon_s:
        count = max(2 * count, int(rate_per_s * horizon_s * 1.5) + 50)
        times = (
            arrivals("gamma", rate_per_s, count, cv=cv, seed=seed)
            if cv > 0.0
            else np.arange(1, count + 1, dtype=np.float64) / rate_per_s
        )
    return times[times < horizon_s]


def _lengths(
    workload: Workload, side: str, count: int, draws: np.random.Generator
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    facts = workload.input if side == "input_tokens" else workload.output
    if facts.traced:
        return draws.choice(np.array(facts.traced, dtype=np.int64), count)
    return drawn_lengths(workload.spec, side, count, draws)
