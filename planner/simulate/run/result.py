"""Result of a run: TTFT, TPOT and latency of every request, use of every instance. R requests, I instances."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.simulate.loop import fields as f
from planner.simulate.loop.state import RunState
from planner.simulate.requests.stream import Requests
from planner.simulate.run.gaps import Gaps

OF_REQUESTS = (
    "complete",
    "rejected",
    "cut",
    "arrival_s",
    "started_s",
    "prefilled_s",
    "first_token_s",
    "finished_s",
    "entry",
    "home",
    "batch",
    "preempted",
    "cached_tokens",
    "degree",
)


@dataclass(frozen=True, slots=True, eq=False)
class SimulationResult:
    """Times are NaN where a request did not get that far; TPOT also where it has a single token."""

    requests: Requests
    complete: Bools  # [R]
    rejected: Bools  # [R] too long for any instance
    cut: Bools  # [R] its answer ends at the limit of its instances; `requests` has what is left of it
    arrival_s: Floats  # [R]
    started_s: Floats  # [R] first step that works on it
    prefilled_s: Floats  # [R]
    first_token_s: Floats  # [R]
    finished_s: Floats  # [R]
    entry: Ints  # [R] instance that prefilled it; -1: none
    home: Ints  # [R] instance that it was on last; -1: none
    batch: Ints  # [R] which of the batches of that instance it decoded in last; 0 without a pipeline
    preempted: Ints  # [R] times
    cached_tokens: Ints  # [R] of the prompt, found in the prefix cache
    degree: Ints  # [R] instances that prefilled it together; 0: none
    stages: Ints  # [I]
    busy_s: Floats  # [I] of a pipeline the mean of its stages
    busy_prefill_s: Floats  # [I] of that, steps that prefill
    sequence_s: Floats  # [I] decoding sequences x busy time
    steps: Ints  # [I]
    prefill_steps: Ints  # [I]
    prefill_tokens: Ints  # [I] computed
    decode_tokens: Ints  # [I]
    hit_tokens: Ints  # [I] prompt tokens not computed
    peak_blocks: Ints  # [I]
    capacity_blocks: Ints  # [I]
    preemptions: Ints  # [I]
    migrations: Ints  # [I] requests that left for another instance
    accepted_tokens: Ints  # [I] of decode_tokens, drafts that were right
    adapter_loads: Ints  # [I]
    up_s: Floats  # [I] from being started to being off, or to the end
    gaps: Gaps  # between tokens
    end_s: float  # last event
    num_events: int

    @property
    def times_s(self) -> dict[str, Floats]:
        """The times that limits are stated on [R], by the names of `SloSpec`."""
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "latency": self.e2e_s}

    @classmethod
    def of_state(cls, requests: Requests, state: RunState) -> "SimulationResult":
        """Reads the state of a run that has ended."""
        engine = state.instance[:, f.ENGINE]
        running = state.instance[:, f.SERVES] >= 0  # all but the store
        request, request_s = state.request, state.request_s
        instance, instance_s = state.instance[running], state.instance_s[running]
        stages = instance[:, f.STAGES]

        def of_batches(column: int, values: Any) -> Any:  # noqa: ANN401 - an array
            """The sum over the batches of each instance."""
            total = np.zeros(len(values), dtype=values.dtype)
            np.add.at(total, engine, values[:, column])
            return total[running]

        times: dict[str, Any] = {
            name: np.where(request_s[:, column] >= 0.0, request_s[:, column], np.nan)
            for name, column in (
                ("started_s", f.STARTED),
                ("prefilled_s", f.PREFILLED),
                ("first_token_s", f.FIRST),
                ("finished_s", f.FINISHED),
            )
        }
        stage, outputs = request[:, f.STATE], np.minimum(request[:, f.OUTPUT], requests.output_tokens)
        cut, home = outputs < requests.output_tokens, request[:, f.HOME]
        further = state.instance[engine[home], f.FURTHER]
        return cls(
            requests=replace(requests, output_tokens=outputs) if cut.any() else requests,
            cut=cut,
            complete=stage == f.COMPLETE,
            rejected=stage == f.REJECTED,
            arrival_s=np.where(stage == f.TO_COME, np.nan, request_s[:, f.ARRIVAL]),
            **times,
            entry=request[:, f.ENTRY],
            home=np.where(home == f.NONE, f.NONE, engine[home]),
            batch=np.where(home == engine[home], 0, (home - further) // state.instance[home, f.MEMBERS] + 1),
            preempted=request[:, f.PREEMPTED],
            cached_tokens=request[:, f.CACHED],
            degree=np.where(request_s[:, f.STARTED] >= 0.0, request[:, f.DEGREE], 0),
            stages=stages,
            busy_s=of_batches(f.BUSY, state.instance_s) / stages,
            busy_prefill_s=of_batches(f.BUSY_PREFILL, state.instance_s) / stages,
            sequence_s=of_batches(f.SEQUENCE_SECONDS, state.instance_s) / stages,
            steps=of_batches(f.STEP_COUNT, state.instance),
            prefill_steps=of_batches(f.PREFILL_STEP_COUNT, state.instance),
            prefill_tokens=of_batches(f.PREFILL_TOKENS, state.instance),
            decode_tokens=of_batches(f.DECODE_TOKENS, state.instance),
            hit_tokens=instance[:, f.HIT_TOKENS],
            peak_blocks=instance[:, f.PEAK_BLOCKS],
            capacity_blocks=instance[:, f.CAPACITY],
            preemptions=instance[:, f.PREEMPTION_COUNT],
            migrations=instance[:, f.MIGRATION_COUNT],
            accepted_tokens=of_batches(f.ACCEPTED_TOKENS, state.instance),
            adapter_loads=instance[:, f.LOAD_COUNT],
            up_s=instance_s[:, f.UP_SECONDS]
            + np.where(instance[:, f.LIFE] == f.OFF, 0.0, state.run_s[f.NOW] - instance_s[:, f.UP_SINCE]),
            gaps=Gaps.of_counts(state.gap_counts, state.gap_s),
            end_s=float(state.run_s[f.NOW]),
            num_events=int(state.run[f.NUM_EVENTS]),
        )

    def of_workload(self, number: int) -> "SimulationResult":
        """The same run with the requests of one workload alone."""
        chosen = self.requests.is_of((number,))
        own: dict[str, Any] = {name: getattr(self, name)[chosen] for name in OF_REQUESTS}
        return replace(self, requests=self.requests.of_workloads((number,)), gaps=self.gaps.of_workload(number), **own)

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Floats:
        return self.finished_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Seconds per output token after the first."""
        gaps = self.requests.output_tokens - 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gaps > 0, (self.finished_s - self.first_token_s) / gaps, np.nan)

    @property
    def drained(self) -> bool:
        """Whether every request was answered or rejected."""
        return bool(np.all(self.complete | self.rejected))

    @property
    def num_unfinished(self) -> int:
        """Requests that were neither answered nor rejected."""
        return int(np.sum(~(self.complete | self.rejected)))
