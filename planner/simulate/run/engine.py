"""`simulate(fleet, requests)`: builds the state arrays, runs the event loop, and makes the results.

result = simulate(fleet, requests)
result.ttft_s, result.tpot_s, result.summary()
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.simulate.fleet.context import ENDLESS, answer_tokens
from planner.simulate.fleet.elastic import common_arrays, most_prefill_tokens
from planner.simulate.fleet.front_ends import fronts_of
from planner.simulate.fleet.instances import (
    EVICTIONS,
    POLICIES,
    QUEUEINGS,
    ROLES,
    ROUTINGS,
    Fleet,
    Instance,
    MemoryTier,
)
from planner.simulate.fleet.operation import ACTIONS, Change, Control
from planner.simulate.fleet.shares import instances_of
from planner.simulate.fleet.step_grid import StepGrid, stacked
from planner.simulate.loop import fields as f
from planner.simulate.loop.state import RunState
from planner.simulate.requests.stream import Requests
from planner.simulate.run.evicted import tier_arrays
from planner.simulate.run.result import SimulationResult

PIECE_EVENTS = 200_000  # of a run that is watched: some 0.2 CPU-s


def simulate(
    fleet: Fleet,
    requests: Requests,
    *,
    seed: int = 0,
    limit_s: float = math.inf,
    most_events: int = 2**62,
    watch: Callable[[], object] | None = None,
) -> SimulationResult:
    """Simulates the requests on the fleet until all are answered, or to `limit_s` of simulated time.

    Equal arguments give equal bytes. `watch` is called every `PIECE_EVENTS` events, and may raise to end the run.
    Raises PlannerError for requests that the step times of the fleet do not cover.
    """
    state = initial_state(fleet, requests, seed, limit_s, most_events)
    run_to_end(fleet, requests, state, watch)
    return SimulationResult.of_state(requests, state)


def simulate_streams(
    fleet: Fleet,
    streams: Sequence[Requests],
    *,
    seed: int = 0,
    watch: Callable[[], object] | None = None,
) -> list[SimulationResult]:
    """Simulates independent streams, each on a fleet of its own, side by side on the processors at hand.

    Results and errors are those of `simulate` for one stream after another.
    """
    with ThreadPoolExecutor(max(min(len(streams), _processors()), 1)) as pool:
        return list(pool.map(lambda requests: simulate(fleet, requests, seed=seed, watch=watch), streams))


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_to_end(fleet: Fleet, requests: Requests, state: RunState, watch: Callable[[], object] | None = None) -> None:
    """Runs the loop of a fleet from an initial state, which it changes to that at the end, watched as it goes.

    numba is loaded, and the loop compiled once a machine, when it is first wanted.
    """
    run = _loop(fleet, requests)
    if watch is None:
        run(state)
        return
    most = state.run[f.MOST_EVENTS]
    stopped = True
    while stopped and state.run[f.NUM_EVENTS] < most:
        watch()
        state.run[f.MOST_EVENTS] = min(state.run[f.NUM_EVENTS] + PIECE_EVENTS, most)
        run(state)
        stopped = state.run[f.NUM_EVENTS] == state.run[f.MOST_EVENTS]


def _loop(fleet: Fleet, requests: Requests) -> Callable[[RunState], None]:
    """The compiled loop of a fleet; one that its limit of events stopped goes on from the state that it left."""
    if fleet.elastic is None:
        from planner.simulate.loop.events import run_loop

        return run_loop
    from planner.simulate.loop.elastic.events import run_elastic_loop

    common = common_arrays(fleet, requests)
    return lambda state: run_elastic_loop(state, common)


def initial_state(fleet: Fleet, requests: Requests, seed: int, limit_s: float, most_events: int) -> RunState:
    """The state of a run that has not begun; raises PlannerError where step times end before the requests do."""
    _refuse_elastic_of(fleet, requests)
    served = instances_of(fleet, requests)
    outputs = answer_tokens(fleet, requests, *served)
    _require_covered(fleet, requests, outputs, *served)
    grids = _grids(fleet)
    caches = fleet.prefix_caching and len(requests.prefix_tokens) > 0
    tiers = fleet.tiers if caches else ()
    stages = max(instance.stages for instance in fleet.instances)
    most = max(instance.most_sequences for instance in fleet.instances)
    workloads = 1 if requests.workload is None else int(requests.workload.max(initial=0)) + 1
    table = stacked(grids)
    instance, instance_s = _instances(fleet, {id(grid): index for index, grid in enumerate(grids)}, tiers)
    rows = len(instance)
    request, request_s = _requests(requests, outputs, *served)
    return RunState(
        run=_run(fleet, requests, seed, most_events, caches),
        run_s=_run_seconds(fleet, limit_s),
        request=request,
        request_s=request_s,
        instance=instance,
        instance_s=instance_s,
        outstanding=np.zeros(rows, dtype=np.int64),
        turn=np.zeros((2, max(instance.model for instance in fleet.instances) + 1), dtype=np.int64),
        batch=np.zeros((rows, most + 1), dtype=np.int64),
        listed=np.zeros((rows, most + 1), dtype=np.int64),
        ending=np.zeros((rows, most + 1), dtype=np.int64),
        residue=np.zeros((rows, fleet.block_tokens), dtype=np.int64),
        winner=_tournament(rows),
        end_s=np.full(len(_tournament(rows)) // 2, math.inf),
        dirty=np.zeros(rows, dtype=np.int64),
        decode_s=table.decode_s,
        mixed_s=table.mixed_s,
        joint_s=table.joint_s,
        least_s=table.least_s,
        axes=table.axes,
        lengths=table.lengths,
        adapters=_adapters(requests, rows),
        links=_links(fleet),
        skew=np.array(fleet.skew, dtype=np.float64),
        change_s=np.array([change.time_s for change in _changes(fleet)], dtype=np.float64),
        change=np.array([(c.instance, ACTIONS[c.action]) for c in _changes(fleet)], dtype=np.int64).reshape(-1, 2),
        stage_free_s=np.zeros((rows, stages)),
        fresh=np.zeros((rows, most + 1), dtype=np.int64),
        mates=np.zeros((rows, workloads), dtype=np.int64),
        encode_s=_encoding(fleet, workloads, rows),
        gap_counts=np.zeros((workloads, f.GAP_PARTS, f.GAP_BINS), dtype=np.int64),
        gap_s=np.zeros((workloads, f.GAP_PARTS)),
        **_prefixes(fleet, requests, len(fleet.instances) + len(tiers), caches=caches),
        **tier_arrays(fleet, requests if caches else None),
    )


def _tournament(rows: int) -> Ints:
    """The winners [2 Q] where none has an end: the first below each place, the leaves behind all of these."""
    leaves = 1 << (rows - 1).bit_length()
    winner = np.concatenate([np.zeros(leaves, np.int64), np.arange(leaves)])
    for place in range(leaves - 1, 0, -1):
        winner[place] = winner[2 * place]
    return winner


def _refuse_elastic_of(fleet: Fleet, requests: Requests) -> None:
    """Raises PlannerError for requests that elastic instances are not simulated on."""
    if fleet.elastic is None:
        return
    if requests.hit_tokens is not None:
        raise PlannerError(
            "stated prefix hits with elastic instances", where="elastic", hint="leave one of the two out"
        )
    if requests.encoded is not None:
        raise PlannerError("images or sounds with elastic instances", where="elastic", hint="leave one of the two out")


def _grids(fleet: Fleet) -> list[StepGrid]:
    """Every table of step times of the instances and their drafts, once."""
    tables = (
        grid
        for instance in fleet.instances
        for grid in (instance.grid, instance.speculation.grid if instance.speculation else None)
    )
    return list({id(grid): grid for grid in tables if grid is not None}.values())


def _prefixes(fleet: Fleet, requests: Requests, holders: int, *, caches: bool) -> dict[str, Any]:
    """The prefixes of prompts, and what of them and of answers each holder has: instances and tiers; small ones
    where nothing is cached."""
    count = len(requests)
    sizes = requests.prefix_tokens if caches else np.zeros(1, dtype=np.int64)
    full = sizes // fleet.block_tokens  # blocks: what does not fill one is not cached
    held = (holders, len(sizes) + count, 3) if caches else (1, 1, 3)
    return {
        "prefix_of": requests.prefix_of if caches else np.zeros(count + 1, dtype=np.int64),
        "prefix": requests.prefix if caches else np.zeros(1, dtype=np.int64),
        "prefix_size": np.stack([full * fleet.block_tokens, full], axis=1),
        "cached": np.full(held, f.NONE, dtype=np.int64),
    }


def _require_covered(fleet: Fleet, requests: Requests, outputs: Ints, first: Ints, last: Ints) -> None:
    """Refuses contexts and steps beyond the step times of an instance, but for those of requests that are refused."""
    inputs = np.where(outputs == ENDLESS, 1, requests.input_tokens)
    whole = inputs + np.where(outputs == ENDLESS, 0, outputs)
    numbers = {instance.model for instance in fleet.instances}
    served = {number: (first == number) | (last == number) for number in numbers} if len(numbers) > 1 else {}
    for instance in {id(instance): instance for instance in fleet.instances}.values():
        grid, own = instance.grid, served.get(instance.model, slice(None))
        longest, prompt = int(whole[own].max(initial=1)) - 1, int(inputs[own].max(initial=1))
        if longest > max(grid.contexts[-1], 1) and instance.role != "prefill":
            raise PlannerError(
                f"step times end at a context of {grid.contexts[-1]:g} tokens, the longest request has {longest}",
                hint="price them over longer contexts",
            )
        most = min(instance.token_budget, prompt * instance.most_sequences)
        most = most if instance.chunked else max(most, prompt)
        if fleet.elastic is not None:
            most = most_prefill_tokens(instance.token_budget, len(fleet.instances), prompt)
        if most > grid.tokens[-1] and instance.role != "decode":
            raise PlannerError(
                f"step times end at {grid.tokens[-1]:g} tokens of prefill, a step may have {most}",
                hint="price them over larger chunks, or lower the token budget",
            )


def _run(fleet: Fleet, requests: Requests, seed: int, most_events: int, caches: bool) -> Any:  # noqa: ANN401 - an array
    run = np.zeros(f.RUN_FIELDS, dtype=np.int64)
    run[f.NUM_OPEN] = requests.num_open
    run[f.NEXT_CLIENT] = requests.num_open
    run[f.NUM_CLOSED] = len(requests) if requests.clients else 0
    run[f.PENDING] = run[f.TRANSFERS] = f.NONE
    run[f.ROUTING], run[f.DECODE_ROUTING] = ROUTINGS[fleet.routing], ROUTINGS[fleet.decode_routing]
    run[f.QUEUEING] = QUEUEINGS[fleet.queueing]
    run[f.SEED] = seed
    run[f.BLOCK_TOKENS] = fleet.block_tokens
    run[f.FIRST_AT_DECODE] = int(fleet.first_token_from == "decode")
    run[f.MOST_EVENTS] = most_events
    run[f.CACHES] = int(caches)
    run[f.UNROUTED] = f.NONE
    run[f.NUM_TIERS] = len(fleet.tiers) if caches else 0
    run[f.TIER] = len(fleet.instances) if run[f.NUM_TIERS] else f.NONE
    run[f.EVICTION] = EVICTIONS[fleet.eviction] if run[f.NUM_TIERS] else f.LEAST_RECENT
    run[f.CHANGES] = int(bool(fleet.changes) or fleet.control is not None)
    run[f.LEAST_OPEN] = fleet.control.least if fleet.control else 0
    run[f.NUM_MODELS] = max(instance.model for instance in fleet.instances) + 1
    return run


def _run_seconds(fleet: Fleet, limit_s: float) -> Any:  # noqa: ANN401 - an array
    run_s = np.zeros(f.RUN_SECONDS)
    run_s[f.REQUEST_OVERHEAD], run_s[f.LIMIT], run_s[f.QUANTUM] = fleet.request_overhead_s, limit_s, fleet.quantum_s
    run_s[f.PERIOD] = run_s[f.TICK] = fleet.migration_period_s
    run_s[f.CROWDED], run_s[f.SPARE] = fleet.crowded_below, fleet.spare_above
    control = fleet.control or Control(math.inf)
    run_s[f.CONTROL] = run_s[f.NEXT_CONTROL] = control.period_s
    run_s[f.CROWDED_ABOVE], run_s[f.IDLE_BELOW] = control.crowded_above, control.idle_below
    run_s[f.START_SECONDS], run_s[f.FLIP_ABOVE] = control.start_s, control.flip_above
    run_s[f.FRONT_REQUEST] = fleet.frontend_s
    run_s[f.FRONT_BESIDE if fleet.tokenises_together else f.FRONT_TOKEN] = fleet.frontend_token_s
    run_s[f.HANDOVER] = fleet.handover_s
    return run_s


def _instances(fleet: Fleet, table_of: dict[int, int], tiers: tuple[MemoryTier, ...]) -> tuple[Any, Any]:
    """Rows of the instances, of memory tiers, and of further batches of pipelines, group by group and batch by batch.

    The rows of further batches have the rules of their engine, but no memory, and nothing is sent to them.
    """
    ints = np.zeros((len(fleet.instances) + len(tiers), f.INSTANCE_FIELDS), dtype=np.int64)
    seconds = np.zeros((len(fleet.instances) + len(tiers), f.SECONDS_FIELDS))
    for index, instance in enumerate(fleet.instances):
        _fill(ints[index], instance, table_of[id(instance.grid)], fleet)
        seconds[index, f.LINK_RATE] = instance.link_tokens_per_s
        seconds[index, f.LINK_LATENCY] = instance.link_latency_s
        seconds[index, f.SWAP_RATE] = instance.swap_tokens_per_s / fleet.block_tokens
        seconds[index, f.ADAPTER_SECONDS] = instance.adapter_load_s
        if instance.speculation is not None:
            ints[index, f.VERIFY_TABLE] = table_of[id(instance.speculation.grid)]
            ints[index, f.DRAFTS] = instance.speculation.draft_tokens
            seconds[index, f.ACCEPTANCE] = instance.speculation.acceptance
    for row, tier in enumerate(tiers, len(fleet.instances)):
        memory = replace(fleet.instances[0], kv_tokens=tier.kv_tokens, up=False, model=-1, stages=1)
        _fill(ints[row], memory, 0, fleet)
        seconds[row, f.LINK_RATE], seconds[row, f.REQUEST_RATE] = tier.tokens_per_s, tier.request_tokens_per_s
    sizes = np.array((fleet.groups or (1,) * len(fleet.instances)) + (1,) * len(tiers), dtype=np.int64)
    ints[:, f.LEADER] = np.repeat(np.cumsum(sizes) - sizes, sizes)
    ints[:, f.MEMBERS] = np.repeat(sizes, sizes)
    ints[:, f.FRONT] = fronts_of(fleet) + [0] * len(tiers)
    joint = np.array([len(instance.grid.joint_s) > 1 for instance in fleet.instances] + [False] * len(tiers))
    single = (ints[:, f.MEMBERS] > 1) | (len(fleet.skew) > 0) | (ints[:, f.DRAFTS] > 0) | joint
    ints[:, f.SINGLE] = single | (ints[:, f.STAGES] > 1)
    seconds[:, f.OPENS] = math.inf
    ints[:, f.ENGINE], rows = np.arange(len(ints)), _further_rows(ints)
    ints, seconds = np.concatenate([ints, ints[rows]]), np.concatenate([seconds, seconds[rows]])
    batches = ints[len(ints) - len(rows) :]
    batches[:, [f.CAPACITY, f.FREE, f.HOST_CAPACITY, f.HOST_FREE, f.WATERMARK]] = 0
    batches[:, f.LIFE], batches[:, f.SERVES] = f.OFF, f.NONE
    return ints, seconds


def _further_rows(ints: Ints) -> Ints:
    """The engine of each further row; sets where those of each engine begin."""
    rows: list[int] = []
    for leader in np.flatnonzero((ints[:, f.LEADER] == np.arange(len(ints))) & (ints[:, f.STAGES] > 1)).tolist():
        engines = np.arange(leader, leader + ints[leader, f.MEMBERS])
        ints[engines, f.FURTHER] = len(ints) + len(rows) + engines - leader
        rows += engines.tolist() * int(ints[leader, f.STAGES] - 1)
    return np.array(rows, dtype=np.int64)


def _fill(row: Any, instance: Instance, table: int, fleet: Fleet) -> None:  # noqa: ANN401 - a row of an array
    block_tokens = fleet.block_tokens
    row[f.ROLE], row[f.TABLE], row[f.POLICY] = ROLES[instance.role], table, POLICIES[instance.policy]
    row[f.TOKEN_BUDGET], row[f.MOST_SEQUENCES] = instance.token_budget, instance.most_sequences
    row[f.CHUNKED], row[f.STAGES] = int(instance.chunked), instance.stages
    row[f.ASYNCHRONOUS] = int(instance.asynchronous)
    row[f.RESERVES] = int(instance.reserves and instance.role != "prefill")
    row[f.SWAPS] = int(instance.preemption == "swap")
    row[f.CAPACITY] = row[f.FREE] = instance.kv_tokens // block_tokens
    row[f.WATERMARK] = int(instance.watermark * row[f.CAPACITY])
    row[f.HOST_FREE] = instance.host_kv_tokens // block_tokens
    row[f.HOST_CAPACITY] = row[f.HOST_FREE]
    row[f.PLAIN_TABLE], row[f.RESERVING] = table, int(instance.reserves)
    row[f.SERVES], row[f.POOL], row[f.SLOTS] = instance.model, instance.pool, instance.adapter_slots
    row[f.LIFE] = f.OPEN if instance.up else f.OFF
    for name in (f.QUEUE, f.PARTIAL, f.ARRIVED, f.OLDEST, f.NEWEST, f.MIGRANT, f.NEXT_ROLE, f.DRAFT_BLOCKS):
        row[name] = f.NONE


def _requests(requests: Requests, outputs: Ints, first: Ints, last: Ints) -> tuple[Any, Any]:
    ints = np.zeros((len(requests), f.REQUEST_FIELDS), dtype=np.int64)
    seconds = np.zeros((len(requests), f.REQUEST_SECONDS))
    ints[:, f.INPUT], ints[:, f.OUTPUT] = requests.input_tokens, outputs
    ints[:, f.PREDICTED], ints[:, f.PRIORITY] = requests.predicted_tokens, requests.priority
    ints[:, f.SUCCESSOR] = requests.successor
    ints[:, f.ENTRY] = ints[:, f.HOME] = f.NONE
    ints[:, f.DEGREE] = 1
    ints[:, f.STATED_HITS] = 0 if requests.hit_tokens is None else requests.hit_tokens
    ints[:, f.MODEL], ints[:, f.LAST] = first, last
    ints[:, f.WORKLOAD] = 0 if requests.workload is None else requests.workload
    ints[:, f.FETCH_FROM] = f.NONE
    ints[:, f.ADAPTER] = f.NONE if requests.adapter is None else requests.adapter
    seconds[:, f.ARRIVAL], seconds[:, f.THINK] = requests.arrival_s, requests.think_s
    seconds[:, f.STARTED : f.FINISHED + 1] = -1.0
    seconds[:, f.ENCODED] = 0.0 if requests.encoded is None else requests.encoded
    return ints, seconds


def _encoding(fleet: Fleet, workloads: int, rows: int) -> Any:  # noqa: ANN401 - an array
    """[I, W, 2] seconds to encode: of a run, and of a token; further rows and memory tiers encode nothing."""
    seconds = np.zeros((rows, workloads, 2))
    for row, instance in enumerate(fleet.instances):
        for workload, times_s in enumerate(instance.encode_s[:workloads]):
            seconds[row, workload] = times_s
    return seconds


def _adapters(requests: Requests, instances: int) -> Any:  # noqa: ANN401 - an array
    """[I, A, 2] users and last use of every adapter; none is loaded."""
    count = 0 if requests.adapter is None else max(int(requests.adapter.max()) + 1, 0)
    adapters = np.zeros((instances, count, 2), dtype=np.int64)
    adapters[:, :, f.LAST_USE] = f.NONE
    return adapters


def _links(fleet: Fleet) -> Any:  # noqa: ANN401 - an array
    """[P, P, 3] rate, latency and the time from which they are free of the links between pools."""
    pools = max(instance.pool for instance in fleet.instances) + 1
    links = np.zeros((pools, pools, 3))
    links[:, :, f.RATE] = math.inf
    for link in fleet.pool_links:
        links[link.source, link.goal, : f.FREE_FROM] = link.tokens_per_s, link.latency_s
    return links


def _changes(fleet: Fleet) -> list[Change]:
    """By time; those of one time as given."""
    return sorted(fleet.changes, key=lambda change: change.time_s)


def is_compiled(*, elastic: bool = False) -> bool:
    """Whether a program as it stands has been compiled on this machine; else the next run takes some seconds longer.

    Elastic fleets have a program of their own.
    """
    from planner.simulate.loop.elastic.events import run_elastic_loop
    from planner.simulate.loop.events import run_loop
    from planner.solvers.compilation.kept import is_kept

    return is_kept(run_elastic_loop if elastic else run_loop)
