"""Closed loops of one instance with requests of one length: what benchmarks of engines run.

    from planner.simulate.run.closed import closed_loop
    grid = StepGrid.of_table(table, most_sequences=64)      # once for a shape; or pass the StepTable itself
    figures = closed_loop(grid, isl=1024, osl=1024, concurrency=64, num_requests=320)
    figures.mean_ttft_s, figures.median_tpot_s, figures.output_tokens_per_s

`table` is what `planner.costs.serving.tables.step_table` prices. For requests of one length few values do: decode
batches 0, 1,
2, 4, .. concurrency; contexts isl, isl + osl / 2, isl + osl; prefill tokens 0, a chunk, what is left after the last
chunk, and the least of isl; prefill contexts 0 and isl. `step_grid` also prices steps of several prompts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.loop.fields import ARRIVAL, FINISHED, FIRST
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import play_arrays

if TYPE_CHECKING:
    from planner.costs.serving.tables import StepTable

UNLIMITED_TOKENS = 2**50


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Figures of the requests after the warm-up; throughput over the time in which those finished."""

    mean_ttft_s: float
    median_ttft_s: float
    mean_tpot_s: float
    median_tpot_s: float
    mean_e2e_s: float
    requests_per_s: float
    output_tokens_per_s: float


def closed_loop(
    times: "StepTable | StepGrid",
    *,
    isl: int,
    osl: int,
    concurrency: int,
    num_requests: int,
    token_budget: int = 8192,
    most_sequences: int | None = None,
    policy: str = "mixed",
    kv_tokens: int = UNLIMITED_TOKENS,
    reserves: bool = False,
    think_s: float = 0.0,
    request_overhead_s: float = 0.0,
    warm_up: int = 0,
) -> ClosedLoop:
    """Plays `num_requests` requests of `concurrency` clients, who start together, on one instance.

    `most_sequences` is `concurrency` where absent. The first `warm_up` requests sent are left out of the figures.
    Raises PlannerError for step times that end before the batch does, and where KV cache holds no request.
    """
    most = concurrency if most_sequences is None else min(most_sequences, concurrency)
    grid = times if isinstance(times, StepGrid) else StepGrid.of_table(times, most_sequences=most)
    if min(isl, osl, concurrency, num_requests - warm_up) < 1 or think_s < 0.0:
        raise PlannerError(f"no closed loop: {isl} in, {osl} out, {concurrency} clients, {num_requests} requests")
    if kv_tokens < isl + osl:
        raise PlannerError(f"a request has {isl + osl} tokens, the KV cache holds {kv_tokens}")
    instance = Instance(
        grid,
        kv_tokens,
        policy=policy,
        token_budget=token_budget,
        most_sequences=most,
        reserves=reserves,
    )
    requests = _alike(num_requests, isl, osl, concurrency, think_s)
    times_s = play_arrays(Fleet((instance,), request_overhead_s=request_overhead_s), requests).request_s[warm_up:]
    arrival_s, finished_s = times_s[:, ARRIVAL], times_s[:, FINISHED]
    ttft_s, e2e_s = np.sort(times_s[:, FIRST] - arrival_s), finished_s - arrival_s
    tpot_s = np.sort(finished_s - times_s[:, FIRST]) / max(osl - 1, 1)
    count, middle = len(ttft_s), len(ttft_s) // 2
    rate = count / max(float(finished_s.max()) - float(arrival_s.min()), 1e-12)
    return ClosedLoop(
        mean_ttft_s=float(ttft_s.sum()) / count,
        median_ttft_s=0.5 * float(ttft_s[middle] + ttft_s[count - 1 - middle]),
        mean_tpot_s=float(tpot_s.sum()) / count,
        median_tpot_s=0.5 * float(tpot_s[middle] + tpot_s[count - 1 - middle]),
        mean_e2e_s=float(e2e_s.sum()) / count,
        requests_per_s=rate,
        output_tokens_per_s=rate * osl,
    )


def _alike(count: int, isl: int, osl: int, clients: int, think_s: float) -> Requests:
    """A closed loop of equal requests, made without the checks of `Requests.closed_loop`, which take longer than it."""
    outputs, none = np.full(count, osl), np.zeros(count, dtype=np.int64)
    return Requests(
        arrival_s=np.zeros(count),
        input_tokens=np.full(count, isl),
        output_tokens=outputs,
        predicted_tokens=outputs,
        priority=none,
        think_s=np.full(count, think_s),
        successor=none - 1,
        num_open=min(clients, count),
        clients=clients,
    )
