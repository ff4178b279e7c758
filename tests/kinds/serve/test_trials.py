"""Trials on shared streams: the first of them tell what they tell surely, and what has the same ones is judged once."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import judge_coverage
import numpy as np
import pytest

from planner.kinds.serve.verified.capacity import keeps
from planner.kinds.serve.verified.shared_streams import SEARCH_STREAMS
from planner.kinds.serve.verified.trials import FIRST_STREAMS, Trials
from planner.problem.slo import Limit, SloSpec
from planner.simulate.run.result import SimulationResult

REQUESTS = 20_000
LIMIT_S = judge_coverage.exact_s(judge_coverage.Queue("M", "M", 0.5), "p90")


class Queues:
    """Streams of a single server, whose decisions are its speed and a setting that is never reached."""

    def __init__(self) -> None:
        self.events = self.spared_events = 0
        self.simulated: list[int] = []  # streams of each call

    def slos(self, _: object) -> tuple[SloSpec, ...]:
        return (SloSpec(ttft=Limit(p90_s=LIMIT_S)),)

    def simulate(
        self,
        _: object,
        decision: tuple[float, int],
        rate_per_s: float,
        scale: float,
        count: int,
        seed: int,
        *,
        part: slice,
    ) -> Sequence[SimulationResult]:
        runs = []
        for stream in range(SEARCH_STREAMS)[part]:
            rng = np.random.default_rng([seed, stream])
            gaps_s = rng.exponential(1.0 / (rate_per_s * scale), count // SEARCH_STREAMS)
            services_s = rng.exponential(1.0 / decision[0], count // SEARCH_STREAMS)
            runs.append(judge_coverage.served(np.cumsum(gaps_s), services_s))
        self.events += sum(run.num_events for run in runs)
        self.simulated.append(len(runs))
        return runs


def variants(speed: float, largest: int = 64) -> Any:  # noqa: ANN401 - stands for variants of a plan
    decision = speed, largest
    return SimpleNamespace(plan=None, rate_per_s=0.5, told=decision, worst_first=lambda: iter([decision]))


@pytest.mark.parametrize(("speed", "kept"), [(1.3, True), (0.8, False)])
def test_first_streams_tell_what_lies_far_from_a_limit(speed: float, kept: bool) -> None:
    queues: Any = Queues()
    assert keeps(Trials(queues, REQUESTS).judged(variants(speed), 1.0)) is kept
    assert queues.simulated == [FIRST_STREAMS]


def test_all_streams_tell_what_lies_near_a_limit() -> None:
    queues: Any = Queues()
    Trials(queues, REQUESTS).judged(variants(1.0), 1.0)
    assert queues.simulated == [FIRST_STREAMS, SEARCH_STREAMS - FIRST_STREAMS]


def test_a_setting_that_is_never_reached_is_judged_once_and_counts_as_work() -> None:
    queues: Any = Queues()
    trials = Trials(queues, REQUESTS)
    first = trials.load_kept(variants(1.0, 64), 1.0, 1.0)
    work, runs = queues.events, len(queues.simulated)
    again = trials.load_kept(variants(1.0, 128), 1.0, 1.0)
    assert again == first
    assert queues.simulated[runs:] == [FIRST_STREAMS]
    assert queues.events + queues.spared_events == 2 * work
    assert trials.load_kept(variants(1.01), 1.0, 1.0) != first


def test_what_is_missed_by_far_is_not_simulated_at_a_little_less_load_and_counts_as_work() -> None:
    queues: Any = Queues()
    trials = Trials(queues, REQUESTS)
    far, near = variants(0.8), variants(0.97)
    known = [trials.load_kept(each, 2.0, 1.0) for each in (far, near)]
    assert all(load.refuted for load in known)
    work, runs = queues.events + queues.spared_events, len(queues.simulated)
    again = trials.load_kept(far, 2.0, 0.99)
    assert (again.refuted, again.scale, again.binding) == (True, 0.99, known[0].binding)
    assert 0.0 < again.missed < known[0].missed
    assert len(queues.simulated) == runs
    assert queues.events + queues.spared_events > work
    assert not keeps(Trials(queues, REQUESTS).judged(far, 0.99))
    trials.load_kept(near, 2.0, 0.9)
    assert len(queues.simulated) > runs + 1
