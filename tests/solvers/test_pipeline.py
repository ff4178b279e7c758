"""Pipelines simulated pass by pass: the papers' formulas where these are exact, a plain graph of passes elsewhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_oracle import rank_ends, rank_peaks

from planner.errors import PlannerError
from planner.solvers.pass_orders import BACKWARD, CHUNKS, FORWARD, INPUT, JOINED, WEIGHT
from planner.solvers.schedules.pipeline import (
    SCHEDULES,
    Orders,
    StageTimes,
    orders,
    peak_resident,
    resident_over_passes,
    simulate,
    size_conflict,
)

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "data" / "training" / "schedule_truth.json"


def _even(order: Orders, forward: float, inputs: float, weights: float, joined: float = 0.0) -> StageTimes:
    unit = np.ones(order.num_stages)
    return StageTimes(forward * unit, inputs * unit, weights * unit, np.zeros(order.num_stages - 1), joined * unit)


def _bubble(schedule: str, ranks: int, chunks: int, batches: int, *times: float) -> float:
    """The longest time that a rank of an even pipeline is idle between its first pass and its last."""
    order = orders(schedule, ranks, chunks, batches)
    run = simulate(order, _even(order, *times))
    return float((run.end_s_R - run.first_s_R - run.busy_s_R).max())


def _resident(schedule: str, ranks: int, chunks: int, batches: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Chunks in flight at most, by rank, weights' part resident until the gradients of the weights."""
    order = orders(schedule, ranks, chunks, batches)
    unit = np.ones(order.num_stages)
    return peak_resident(order, unit, unit)


def _rows(order: Orders) -> list[list[tuple[int, int, int]]]:
    return [
        [tuple(map(int, row)) for row in rows[:count]]  # type: ignore[misc]  # three of them
        for rows, count in zip(order.row_RN3, order.count_R, strict=True)
    ]


SIZES = [(2, 4), (4, 8), (4, 16), (8, 24), (16, 48)]
TIMES = [(1.0, 1.0, 1.0), (1.0, 1.1, 0.9), (2.0, 2.2, 1.0), (1.0, 1.5, 0.0)]


@pytest.mark.parametrize(("ranks", "batches"), SIZES)
@pytest.mark.parametrize("times", TIMES)
def test_bubbles_of_1f1b_and_its_interleaved_form_are_those_of_the_papers(
    ranks: int, batches: int, times: tuple[float, float, float]
) -> None:
    whole = (ranks - 1) * sum(times)
    order = orders("1f1b", ranks, 1, batches)
    run = simulate(order, _even(order, *times))
    assert run.makespan_s == pytest.approx((batches + ranks - 1) * sum(times))
    for chunks in (2, 3, 4):
        order = orders("interleaved", ranks, chunks, batches)
        run = simulate(order, _even(order, *(time / chunks for time in times)))
        assert run.makespan_s == pytest.approx(batches * sum(times) + whole / chunks)


@pytest.mark.parametrize(("ranks", "batches"), SIZES)
@pytest.mark.parametrize("times", TIMES)
def test_bubbles_of_zero_bubble_schedules_are_those_of_the_paper(
    ranks: int, batches: int, times: tuple[float, float, float]
) -> None:
    forward, inputs, weights = times
    assert _bubble("zb_h1", ranks, 1, batches, *times) == pytest.approx((ranks - 1) * (forward + inputs - weights))
    wanted = (ranks - 1) * (forward + inputs - 2 * weights)
    assert _bubble("zb_h2", ranks, 1, batches, *times) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(("ranks", "batches"), SIZES)
def test_zb_v_has_no_bubble_where_the_three_passes_take_equally_long(ranks: int, batches: int) -> None:
    assert _bubble("zb_v", ranks, 2, batches, 1.0, 1.0, 1.0) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("ranks", "batches"), SIZES)
def test_bubbles_of_dualpipe_are_those_of_its_readme_where_the_three_passes_take_equally_long(
    ranks: int, batches: int
) -> None:
    """(PP/2 - 1)(F&B + B - 3W), B the whole backward pass; DualPipeV has PP/2 ranks."""
    forward_backward, backward, weights = 3.0, 2.0, 1.0
    wanted = forward_backward + backward - 3.0 * weights
    result = _bubble("dualpipe", ranks, 1, batches, 1.0, 1.0, 1.0)
    assert result == pytest.approx((ranks / 2 - 1) * wanted, abs=1e-9)
    assert _bubble("dualpipev", ranks, 2, batches, 1.0, 1.0, 1.0) == pytest.approx((ranks - 1) * wanted, abs=1e-9)


def test_passes_that_run_together_shorten_the_steady_state() -> None:
    order = orders("dualpipe", 4, 1, 16)
    apart, together = (simulate(order, _even(order, 1.0, 1.0, 1.0, saved)).makespan_s for saved in (0.0, 0.5))
    assert apart - 8 * 0.5 >= together >= apart - 16 * 0.5


@pytest.mark.parametrize(("ranks", "batches"), SIZES)
def test_micro_batches_in_flight_are_those_of_the_papers(ranks: int, batches: int) -> None:
    many = 2 * ranks  # enough micro-batches for every schedule to reach its most
    assert _resident("1f1b", ranks, 1, batches).tolist() == [min(batches, ranks - rank) for rank in range(ranks)]
    assert _resident("zb_h1", ranks, 1, many).max() == ranks
    assert _resident("zb_h2", ranks, 1, many).max() == 2 * ranks - 1
    assert _resident("zb_v", ranks, 2, many).tolist() == [2.0 * ranks] * ranks  # p whole ranks, alike on all
    assert _resident("dualpipe", ranks, 1, many).max() == ranks + 1
    assert _resident("dualpipev", ranks, 2, many).max() == 2 * ranks + 1
    for chunks in (2, 4):
        first = _resident("interleaved", ranks, chunks, many)[0] / chunks
        assert first == pytest.approx(ranks * (1 + (ranks - 1) / (ranks * chunks)))


def test_formulas_of_the_shared_truth_hold() -> None:
    if not TRUTH.exists():
        pytest.skip("the shared truth of pipeline schedules is not at hand")
    truth = json.loads(TRUTH.read_text())["formulas"]
    p, m, v = 8, 24, 3
    for tF, tB, tW in TIMES[:2]:
        names = {"p": p, "m": m, "v": v, "tF": tF, "tB": tB, "tW": tW}
        split = {schedule: truth[schedule]["bubble_time"].split("[")[0] for schedule in ("zb_h1", "zb_h2")}
        for schedule, formula in split.items():
            wanted = eval(formula, {}, names)
            assert _bubble(schedule, p, 1, m, tF, tB, tW) == pytest.approx(wanted), schedule
        names["tB"] = tB + tW
        assert _bubble("1f1b", p, 1, m, tF, tB, tW) == pytest.approx(
            eval(truth["gpipe_1f1b"]["bubble_time"], {}, names)
        )
        result = _bubble("interleaved", p, v, m, tF / v, tB / v, tW / v)
        assert result == pytest.approx(eval(truth["interleaved_1f1b"]["bubble_time"], {}, names))


@st.composite
def _pipelines(draw: st.DrawFn) -> tuple[str, int, int, int]:
    schedule = draw(st.sampled_from(SCHEDULES))
    ranks = draw(st.integers(1, 3)) * (2 if schedule == "dualpipe" else 1)
    chunks = CHUNKS.get(schedule) or draw(st.integers(2, 3))
    batches = draw(st.integers(1, 4)) * (ranks if schedule == "interleaved" else 1)
    if schedule.startswith("dualpipe"):
        batches = 2 * ranks + 2 * (batches - 1)
    return schedule, ranks, chunks, batches


SECONDS = st.floats(0.0, 4.0).map(lambda value: round(value, 3))


@settings(max_examples=80, deadline=None)
@given(_pipelines(), st.data())
def test_times_and_memory_are_those_of_the_graph_of_passes(
    sizes: tuple[str, int, int, int], data: st.DataObject
) -> None:
    order = orders(*sizes)
    stages = order.num_stages

    def drawn(length: int) -> list[float]:
        return data.draw(st.lists(SECONDS, min_size=length, max_size=length))

    forward, inputs, weights, handover = (drawn(n) for n in (stages, stages, stages, stages - 1))
    joined = [min(pair) for pair in zip(drawn(stages), forward, strict=True)]
    times = StageTimes(*(np.array(values, dtype=np.float64) for values in (forward, inputs, weights, handover, joined)))
    rows = _rows(order)
    run = simulate(order, times)
    assert run.end_s_R.tolist() == pytest.approx(rank_ends(rows, forward, inputs, weights, handover, joined))
    resident = np.array(drawn(stages))
    kept = resident * 0.25
    assert peak_resident(order, resident, kept).tolist() == pytest.approx(rank_peaks(rows, list(resident), list(kept)))


@settings(max_examples=60, deadline=None)
@given(_pipelines())
def test_every_pass_is_done_once_on_the_rank_that_holds_its_stage(sizes: tuple[str, int, int, int]) -> None:
    order = orders(*sizes)
    batches = sizes[3]
    done: dict[tuple[str, int, int], int] = {}
    for rank, rows in enumerate(_rows(order)):
        for kind, stage, batch in rows:
            assert stage in order.stages_of_rank[rank]
            names = {FORWARD: "F", JOINED: "F", INPUT: "I", WEIGHT: "W", BACKWARD: "IW"}[kind]
            for name in names:
                done[name, stage, batch] = done.get((name, stage, batch), 0) + 1
    assert set(done.values()) == {1}
    assert len(done) == 3 * order.num_stages * batches


def test_a_handover_shows_where_nothing_hides_it() -> None:
    order = orders("1f1b", 2, 1, 1)
    unit = np.ones(2)
    assert simulate(order, StageTimes(unit, unit, unit, np.array([0.5]))).makespan_s == pytest.approx(7.0)


def test_what_is_resident_goes_back_to_nothing() -> None:
    order = orders("zb_v", 3, 2, 7)
    unit = np.ones(6)
    levels = resident_over_passes(order, unit, 0.5 * unit)
    last = [levels[rank, count - 1] for rank, count in enumerate(order.count_R)]
    assert last == pytest.approx([0.5] * 3)  # what the last pass, a gradient of weights, still needs


@pytest.mark.parametrize(
    ("sizes", "hint"),
    [
        (("interleaved", 4, 2, 10), "use 8 micro-batches"),
        (("interleaved", 4, 1, 8), "2 or more chunks"),
        (("zb_v", 4, 1, 8), "give 2 chunks a rank"),
        (("dualpipe", 3, 1, 8), "use an even number"),
        (("dualpipe", 4, 1, 9), "use 10 micro-batches"),
        (("dualpipev", 4, 2, 7), "use 8 micro-batches"),
        (("gpipe", 4, 1, 8), "use one of 1f1b"),
        (("1f1b", 4, 1, 0), "at least one"),
    ],
)
def test_numbers_that_a_schedule_has_no_order_for_are_refused_with_the_nearest(
    sizes: tuple[str, int, int, int], hint: str
) -> None:
    assert hint in (size_conflict(*sizes) or ("", ""))[1]
    with pytest.raises(PlannerError, match=hint):
        orders(*sizes)


def test_times_of_other_stages_and_negative_times_are_refused() -> None:
    unit = np.ones(3)
    with pytest.raises(PlannerError, match="3 stages for 2"):
        simulate(orders("1f1b", 2, 1, 2), StageTimes(unit, unit, unit, np.zeros(2)))
    with pytest.raises(PlannerError, match="differ in number"):
        StageTimes(unit, unit, np.ones(2), np.zeros(2))
    with pytest.raises(PlannerError, match="negative"):
        StageTimes(unit, -unit, unit, np.zeros(2))
