"""What runs beside production, judged anew and without the solvers that placed it.

Gangs, rates, losses and speeds of opportunistic jobs are counted GPU by GPU; steps of elastic jobs come from spreading
their workers one by one (`solvers.schedules.equal_tasks`).
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.hardware.cluster import Pool
from planner.kinds.fleet.beside_options import ElasticJobSpec, OpportunisticSpec
from planner.kinds.fleet.decision import ElasticRun, FleetDecision, SharedRun, SharedWindow, Window
from planner.kinds.fleet.options import ELASTIC, FleetOptions, JobSpec
from planner.plan.findings import Finding
from planner.solvers.schedules.equal_tasks import spread_tasks

DUST = 1e-9  # of a loss, a speed or a step
HINT = "solve again"


def elastic_findings(decision: FleetDecision, options: FleetOptions, pools: Sequence[Pool]) -> Iterator[Finding]:
    """GPUs of the nodes that elastic jobs have, their steps and speeds, and least speeds in every window."""
    if options.elastic is None:
        return
    size = {pool.name: pool.node.num_gpus for pool in pools}
    whole = {pool.name: (len(pool.healthy_nodes) - options.reserve_nodes) * pool.node.num_gpus for pool in pools}
    for index, window in enumerate(decision.windows):
        nodes = window.pools.get(ELASTIC, {}) if len(pools) > 1 else {pools[0].name: window.nodes.get(ELASTIC, 0)}
        taken = {name: sum(run.gpus.get(name, 0) for run in window.elastic.values()) for name in size}
        there = {name: nodes.get(name, 0) * size[name] for name in size}
        right = all(taken[name] <= there[name] for name in size)
        what = f"elastic jobs have {', '.join(f'{taken[name]} of {there[name]} GPUs of {name}' for name in size)}"
        yield Finding("fleet.elastic_gpus", right, what, f"windows.{index}.elastic", HINT)
    for job in options.elastic.jobs:
        reference = job.reference_s or _step_s(job, whole)
        yield from _elastic(job, reference, decision.windows)


def _elastic(job: ElasticJobSpec, reference: float | None, windows: Sequence[Window]) -> Iterator[Finding]:
    """Of all windows together: the first that is not as it says, and the slowest."""
    least, wrong = float("inf"), ""
    for window in windows:
        run = window.elastic.get(job.name)
        least = min(least, 0.0 if run is None else run.speed)
        if run is not None and not wrong:
            wrong = _strange_step(job, reference, run)
            wrong = f"{wrong} in {window.hours}" if wrong else ""
    what = (
        wrong
        or f"`{job.name}` is as fast as {least:.4g} of its reference at the least, {job.least_speed:g} are asked for"
    )
    right = not wrong and least >= job.least_speed * (1.0 - DUST)
    yield Finding("fleet.elastic_speed", right, what, f"windows.{job.name}", HINT)


def _strange_step(job: ElasticJobSpec, reference: float | None, run: ElasticRun) -> str:
    """What of a step is not as the workers spread over its GPUs say; empty where all is."""
    step_s = _step_s(job, run.gpus)
    if step_s is None or reference is None:
        return f"`{job.name}` does not fit on its GPUs"
    if abs(step_s - run.step_s) > DUST * step_s or abs(reference / step_s - run.speed) > DUST * run.speed:
        return f"`{job.name}` takes {step_s:.6g} s a step, {reference / step_s:.6g} of its reference"
    return ""


def _step_s(job: ElasticJobSpec, gpus: Mapping[str, int]) -> float | None:
    """The shortest step of all workers on these GPUs, None where they do not fit."""
    kinds = [pool for pool, count in gpus.items() if pool in job.worker_s for _ in range(count)]
    most = [job.most_workers.get(pool, job.workers) for pool in kinds]
    return spread_tasks(job.workers, [job.worker_s[pool] for pool in kinds], most).objective if kinds else None


def opportunistic_findings(decision: FleetDecision, options: FleetOptions, pools: Sequence[Pool]) -> Iterator[Finding]:
    """Gangs whole, a job a GPU, production losing no more than is allowed, and speeds as they are stated."""
    spec = options.opportunistic
    if spec is None:
        return
    nodes_W = _by_window(decision, options)
    if len(decision.opportunistic) != options.windows or len(nodes_W) != options.windows:
        what = f"{len(decision.opportunistic)} windows of opportunistic jobs, and the day has {options.windows}"
        yield Finding("fleet.opportunistic", False, what, "opportunistic", HINT)
        return
    for window, shared in zip(nodes_W, decision.opportunistic, strict=True):
        hosts = _hosts(decision, options, pools, window, shared.window)
        wrong = next(_wrong(spec, hosts, shared), "")
        most = max(shared.losses.values(), default=0.0)
        what = wrong or f"{len(shared.runs)} jobs run beside production, which loses {100 * most:.3g} % at the most"
        yield Finding("fleet.opportunistic", not wrong, what, f"opportunistic.{shared.window}", HINT)


def _by_window(decision: FleetDecision, options: FleetOptions) -> list[Window]:
    """What holds in every window of the day."""
    return [
        window
        for phase, window in zip(decision.phases, decision.windows, strict=False)
        for _ in range(round((phase.duration_s or 0.0) / options.window_s))
    ]


Host = tuple[int, float, float, str]
"""GPUs of a production job, share of their time, bytes they leave, and what it is listed under."""


def _hosts(
    decision: FleetDecision, options: FleetOptions, pools: Sequence[Pool], window: Window, number: int
) -> dict[str, Host]:
    """The production jobs that may be shared in a window."""
    size = {pool.name: pool.node.num_gpus for pool in pools}
    made = {}
    for job in options.jobs:
        nodes = window.nodes.get(job.name, 0)
        if job.shared is None or not nodes:
            continue
        own = window.pools.get(job.name, {}) if len(pools) > 1 else {pools[0].name: nodes}
        gpus = sum(count * size.get(pool, 0) for pool, count in own.items())
        busy = job.shared.busy * _load_share(decision, job, window, number, options.windows)
        made[job.name] = (gpus, busy, job.shared.free_memory_bytes, job.shared.like or job.name)
    return made


def _load_share(decision: FleetDecision, job: JobSpec, window: Window, number: int, windows: int) -> float:
    """How much of what a job can serve the fullest slot of a window asks for; 1 without a load."""
    if job.load is None or job.load.rates_per_s is None:
        return 1.0
    slots = len(job.load.rates_per_s) // windows
    fullest = max(job.load.rates_per_s[number * slots : (number + 1) * slots]) * job.load.scale * max(job.load.levels)
    nodes, pools = window.nodes[job.name], window.pools.get(job.name, {})
    rate = next(
        (
            each.units_per_hour
            for each in decision.curves
            if (each.job, each.nodes, each.pools) == (job.name, nodes, pools)
        ),
        0.0,
    )
    return min(fullest * 3600.0 / rate, 1.0) if rate else 1.0


def _wrong(spec: OpportunisticSpec, hosts: Mapping[str, Host], shared: SharedWindow) -> Iterator[str]:
    """What is not as it should be."""
    jobs = {job.name: job for job in spec.jobs}
    taken: dict[str, int] = {}
    worst: dict[str, float] = {}
    usd = 0.0
    for run in shared.runs:
        job = jobs.get(run.job)
        if job is None or not run.gpus.keys() <= hosts.keys() or sum(run.gpus.values()) != job.gpus:
            yield f"`{run.job}` is no job, or does not run on as many GPUs of shared jobs as it asks for"
            return
        slowest = float("inf")
        for name, count in run.gpus.items():
            loss, speed = _beside(spec, run, hosts[name])
            slowest, taken[name] = min(slowest, speed), taken.get(name, 0) + count
            worst[name] = max(worst.get(name, 0.0), loss)
        if abs(slowest - run.speed) > 1e-9:
            yield f"`{run.job}` is as fast as {slowest:.6g}, not {run.speed:.6g}"
        usd += job.usd_per_gpu_hour * job.gpus * slowest
    names = [run.job for run in shared.runs]
    if len(set(names)) < len(names) or not all(run.rate in spec.rates for run in shared.runs):
        yield "a job runs twice, or at a rate that is none of the problem's"
    for name, count in taken.items():
        if count > hosts[name][0]:
            yield f"{count} jobs on {hosts[name][0]} GPUs of `{name}`"
        if worst[name] > spec.most_loss + DUST:
            yield f"`{name}` loses {100 * worst[name]:.3g} %, and {100 * spec.most_loss:.3g} % are allowed"
    if worst.keys() != shared.losses.keys() or any(abs(worst[name] - shared.losses[name]) > 1e-9 for name in worst):
        told = ", ".join(f"{100 * loss:.3g} % of {name}" for name, loss in worst.items())
        yield f"production loses {told or 'nothing'}"
    if abs(usd - shared.usd_per_hour) > 1e-6 * max(usd, 1.0) or shared.bound_usd_per_hour < usd * (1.0 - 1e-6):
        yield f"the jobs are worth {usd:.6g} USD an hour, the plan says {shared.usd_per_hour:.6g}"


def _beside(spec: OpportunisticSpec, run: SharedRun, host: Host) -> tuple[float, float]:
    """What a GPU of a production job loses, and how fast the job beside it is."""
    job = next(job for job in spec.jobs if job.name == run.job)
    _, busy, free_bytes, like = host
    over = max(busy + run.rate * job.busy - 1.0, 0.0)
    spilt = max(1.0 - free_bytes / job.memory_bytes, 0.0)
    contention = job.contention.get(like, 0.0) if isinstance(job.contention, dict) else job.contention
    loss = run.rate * (contention + spec.spill_loss * spilt) + spec.overload_loss * over
    return loss, run.rate * (1.0 - spec.spill_slowdown * spilt) * max(1.0 - over, 0.0)
