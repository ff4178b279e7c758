"""Days of a cluster split between jobs: against every way to split, bounds of larger days, exchanges, and bad data."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.schedules.days.bounded import bounded
from planner.solvers.schedules.days.columns import bound_at, relaxed
from planner.solvers.schedules.days.exchange import exchanged
from planner.solvers.schedules.days.joint import jointly, most_of_units
from planner.solvers.schedules.days.labels import labelled
from planner.solvers.schedules.days.rows import recombined
from planner.solvers.schedules.days.solve import MANY, split_day
from planner.solvers.schedules.days.split import DayJob, DaySplit, Goal, of_one_pool


def problem_of(seed: int, *, hours: int, nodes: int, jobs: int, goals: bool = True, most: int = 4) -> DaySplit:
    """Jobs that earn with their nodes, lose where these grow, and some that are asked for progress."""
    draws = np.random.default_rng(seed)
    made = []
    for k in range(jobs):
        size = int(draws.integers(1, min(most, nodes + 1) + 1))
        counts = tuple(sorted({0 if k else int(draws.integers(0, 2)), *draws.choice(nodes + 1, size - 1).tolist()}))
        nodes_A = np.array(counts, dtype=np.float64)
        grown_AA = np.maximum(nodes_A[None, :] - nodes_A[:, None], 0.0) > 0.0
        speed_AA = nodes_A**0.9 * (1.0 - 0.4 * grown_AA)
        first_A = nodes_A**0.9 * (1.0 - 0.4 * (nodes_A > 0.0))
        wanted_T = draws.uniform(0.0, nodes, hours)
        earned = [np.minimum(speed_AA, wanted) * 4.0 for wanted in wanted_T]
        if goals and draws.random() < 0.5:
            goal = Goal(float(draws.uniform(0.2, 0.8) * hours * nodes), 3.0, float(draws.choice([0.0, 5.0])))
            later = np.zeros((hours - 1, len(counts), len(counts)))
            made.append(DayJob(of_one_pool(counts), np.zeros(len(counts)), later, goal, first_A, speed_AA))
        else:
            later = np.array(earned[1:]).reshape(-1, len(counts), len(counts))
            made.append(DayJob(of_one_pool(counts), np.minimum(first_A, wanted_T[0]) * 4.0, later))
    return DaySplit((nodes,), tuple(made))


def on_two_pools(seed: int) -> DaySplit:
    """Jobs whose nodes are of two pools, of one of them or of both at a time, with start-ups after every change."""
    draws = np.random.default_rng(seed)
    nodes, hours = (int(draws.integers(1, 4)), int(draws.integers(1, 3))), 2 + seed % 2
    jobs = []
    for k in range(1 + seed % 3):
        rows = {(0, 0)} if k else {(0, 0), (0, 1)}
        rows |= {(int(draws.integers(0, nodes[0] + 1)), int(draws.integers(0, nodes[1] + 1))) for _ in range(2)}
        counts = tuple(sorted(rows))
        speed_A = np.array(counts) @ draws.uniform(0.5, 2.0, 2)
        changed_AA = ~np.eye(len(counts), dtype=bool)
        later_TAA = draws.uniform(0.5, 3.0, (hours - 1, 1, 1)) * speed_A * (1.0 - 0.5 * changed_AA)
        goal = Goal(float(draws.uniform(0.5, 2.0) * hours), 3.0, 2.0) if draws.random() < 0.4 else None
        jobs.append(DayJob(counts, speed_A, later_TAA, goal, 0.5 * speed_A, speed_A * (1.0 - 0.5 * changed_AA)))
    return DaySplit(nodes, tuple(jobs))


def fits(problem: DaySplit, row: tuple[int, ...]) -> bool:
    """Whether the nodes of every pool are there for the numbers with these indices."""
    rows = [job.counts[a] for job, a in zip(problem.jobs, row, strict=True)]
    return all(sum(own) <= there for own, there in zip(zip(*rows, strict=True), problem.nodes, strict=True))


def best_of_all(problem: DaySplit) -> float:
    """Over every split of every hour, by what jobs earn from hour to hour, written out anew."""
    rows = [row for row in itertools.product(*(range(len(job.counts)) for job in problem.jobs)) if fits(problem, row)]
    best = -np.inf
    for day in itertools.product(rows, repeat=problem.hours):
        worth = 0.0
        for k, job in enumerate(problem.jobs):
            earned, done = job.first_A[day[0][k]], 0.0
            if job.goal:
                done = job.progress_first_A[day[0][k]]
            for t in range(1, problem.hours):
                earned += job.later_TAA[t - 1][day[t - 1][k]][day[t][k]]
                if job.goal:
                    done += job.progress_AA[day[t - 1][k]][day[t][k]]
            if job.goal:
                paid = min(done, job.goal.target)
                earned += job.goal.worth * paid - job.goal.cost * (job.goal.target - paid)
            worth += earned
        best = max(best, worth)
    return float(best)


@pytest.mark.parametrize("tens", range(10))
def test_the_day_is_worth_what_the_best_of_all_days_is(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        hours = 3 if seed % 3 else 2
        problem = problem_of(seed, hours=hours, nodes=3 + seed % 2, jobs=1 + seed % 3, most=3)
        result = split_day(problem)
        assert result.status is Status.OPTIMAL
        assert result.solution is not None
        assert result.objective == pytest.approx(best_of_all(problem), rel=1e-7, abs=1e-7)
        assert all(fits(problem, row) for row in zip(*result.solution, strict=True))


def test_jobs_with_a_goal_have_the_fewest_node_hours_that_are_worth_as_much() -> None:
    told = 0
    for seed in range(100, 140):
        problem = problem_of(seed, hours=4, nodes=6, jobs=1 + seed % 2)
        day = split_day(problem).solution
        assert day is not None
        for k, job in enumerate(problem.jobs):
            if job.goal is None:
                continue
            rows = zip(*day, strict=True)
            beside = [sum(problem.jobs[j].counts[a][0] for j, a in enumerate(row) if j != k) for row in rows]
            spent = [
                sum(job.counts[a][0] for a in path)
                for path in itertools.product(range(len(job.counts)), repeat=4)
                if job.worth(path) >= job.worth(day[k]) - 1e-9
                and all(job.counts[a][0] + other <= 6 for a, other in zip(path, beside, strict=True))
            ]
            assert sum(job.counts[a][0] for a in day[k]) == min(spent)
            told += min(spent) < max(spent)
    assert told > 2  # jobs that could have had more


@pytest.mark.parametrize("tens", range(10))
def test_the_day_on_two_pools_is_worth_what_the_best_of_all_days_is(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        problem = on_two_pools(seed)
        result = split_day(problem)
        best = best_of_all(problem)
        assert result.solution is not None
        assert result.objective == pytest.approx(best, rel=1e-7, abs=1e-7), seed
        assert result.bound is not None
        assert result.bound >= best * (1 - 1e-9)
        assert all(fits(problem, row) for row in zip(*result.solution, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_the_joint_program_that_leaves_states_out_is_exact_on_two_pools(seed: int) -> None:
    problem = on_two_pools(3 * seed + 2)
    best = best_of_all(problem)
    day, bound = bounded(relaxed(problem), best - 1.0, 10**6)
    assert bound >= best * (1 - 1e-9)
    if not any(job.goal for job in problem.jobs):
        assert day is not None
        assert problem.worth(day) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(3))
def test_no_day_crosses_the_bound_of_a_larger_cluster(seed: int) -> None:
    problem = problem_of(seed, hours=10, nodes=14, jobs=4, most=5)
    result = split_day(problem, time_limit_s=1.0)
    assert result.solution is not None
    assert result.bound is not None
    assert problem.worth(result.solution) == result.objective
    assert result.objective <= result.bound
    relaxation = relaxed(problem)
    assert result.bound <= relaxation.bound * (1 + 1e-9)
    draws = np.random.default_rng(seed)
    idle = tuple((0,) * 10 for _ in problem.jobs)
    day = exchanged(problem, idle, relaxation.units)
    assert problem.worth(idle) <= problem.worth(day) <= result.bound * (1 + 1e-9)
    for _ in range(5):
        prices = type(relaxation.prices)(draws.uniform(0.0, 5.0, (10, 1)), relaxation.units)
        assert bound_at(problem, prices)[0] >= result.objective * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_joint_program_that_leaves_states_out_finds_the_best_day_and_proves_it(seed: int) -> None:
    problem = problem_of(seed, hours=8, nodes=8, jobs=3, goals=False)
    exact = split_day(problem)
    relaxation = relaxed(problem)
    assert exact.objective is not None
    assert exact.solution is not None
    worst = problem.worth(tuple((0,) * 8 for _ in problem.jobs))
    day, bound = bounded(relaxation, worst, 10**6)
    best = worst if day is None else problem.worth(day)
    assert max(best, worst) == pytest.approx(exact.objective)
    assert bound == pytest.approx(exact.objective)
    narrow, loose = bounded(relaxation, worst, 5)
    assert loose >= exact.objective * (1 - 1e-9)
    assert narrow is None or problem.worth(narrow) <= exact.objective * (1 + 1e-9)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_at_worths_of_progress_hold_and_their_days_fit(seed: int, whole: bool) -> None:
    problem = next(made for made in map(goals_of, range(seed * 100, seed * 100 + 100)) if made is not None)
    best = split_day(problem).objective
    assert best is not None
    idle = tuple((0,) * problem.hours for _ in problem.jobs)
    priced = jointly(relaxed(problem), idle, whole=whole)
    assert priced.bound >= best - 1e-6 * max(abs(best), 1.0)
    for day in priced.days:
        assert all(fits(problem, row) for row in zip(*day, strict=True))
        assert problem.worth(day) <= best + 1e-6 * max(abs(best), 1.0)


@pytest.mark.parametrize("seed", range(6))
def test_labels_that_count_progress_meet_the_best_of_all_days_and_bound_it_where_they_are_few(seed: int) -> None:
    numbers = range(seed * 100, seed * 100 + 100)
    drawn = (problem_of(number, hours=3, nodes=3, jobs=3) for number in numbers)
    problem = next(made for made in drawn if sum(job.goal is not None for job in made.jobs) > 1)
    best, idle = best_of_all(problem), tuple((0,) * 3 for _ in problem.jobs)
    prices = [tuple(0.3 * unit for unit in most_of_units(problem)), tuple(most_of_units(problem))]
    for width, own in ((10**6, prices), (10**6, prices[:1]), (2, prices)):
        day, bound = labelled(problem, problem.worth(idle), own, width)
        reached = problem.worth(idle if day is None else day)
        assert reached <= best + 1e-9 * abs(best)
        assert bound >= best - 1e-9 * abs(best)
        if width > 2:
            assert max(reached, problem.worth(idle)) == pytest.approx(best)
            assert bound == pytest.approx(best)


def test_days_of_many_jobs_fit_and_stay_within_their_bound_and_near_it() -> None:
    problem = problem_of(5, hours=6, nodes=40, jobs=MANY + 8)
    result = split_day(problem, gap=1e-4)
    assert result.solution is not None
    assert result.objective is not None
    assert result.objective == pytest.approx(problem.worth(result.solution))
    assert all(fits(problem, row) for row in zip(*result.solution, strict=True))
    assert result.gap is not None
    assert result.gap <= 0.02
    draws = np.random.default_rng(0)
    relaxation = relaxed(problem)
    prices = type(relaxation.prices)(draws.uniform(0.0, 1.0, relaxation.prices.hour_TP.shape), relaxation.units)
    assert result.objective <= bound_at(problem, prices)[0]


def goals_of(seed: int) -> DaySplit | None:
    """A problem of two goals or more, of a few hours."""
    problem = problem_of(seed, hours=4, nodes=5, jobs=3)
    return problem if sum(job.goal is not None for job in problem.jobs) > 1 else None


@pytest.mark.parametrize("seed", range(10))
def test_the_day_over_rows_of_other_days_is_the_best_of_all_of_them(seed: int) -> None:
    problem = problem_of(seed, hours=4, nodes=5, jobs=3)
    draws = np.random.default_rng(seed)
    rows = [row for row in itertools.product(*(range(len(job.counts)) for job in problem.jobs)) if fits(problem, row)]
    days = [[rows[i] for i in draws.integers(0, len(rows), 4)] for _ in range(3)]
    every = [tuple(zip(*day, strict=True)) for day in itertools.product(*zip(*days, strict=True))]
    made = recombined(problem, [tuple(zip(*day, strict=True)) for day in days], 10.0)
    assert made in every
    assert problem.worth(made) >= max(map(problem.worth, every)) - 2e-4 * abs(problem.worth(made)) - 1e-9


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_another_node_never_makes_a_day_worth_less(seed: int) -> None:
    problem = problem_of(seed, hours=4, nodes=5, jobs=2)
    larger = DaySplit((6,), problem.jobs)
    few, many = split_day(problem).objective, split_day(larger).objective
    assert few is not None
    assert many is not None
    assert many >= few - 1e-6


def test_bad_data_is_named() -> None:
    earn, few = np.zeros(2), of_one_pool((1, 2))
    with pytest.raises(PlannerError, match="5 nodes at the least, and there are 4"):
        DaySplit((4,), (DayJob(of_one_pool((5, 6)), earn, np.zeros((1, 2, 2))),))
    with pytest.raises(PlannerError, match="numbers of nodes"):
        DayJob(of_one_pool((2, 1)), earn, np.zeros((1, 2, 2)))
    with pytest.raises(PlannerError, match="worth of shapes"):
        DayJob(few, earn, np.zeros((1, 3, 2)))
    with pytest.raises(PlannerError, match="a goal without progress"):
        DayJob(few, earn, np.zeros((1, 2, 2)), Goal(1.0, 1.0))
    with pytest.raises(PlannerError, match="different hours"):
        DaySplit((4,), (DayJob(few, earn, np.zeros((1, 2, 2))), DayJob(few, earn, np.zeros((2, 2, 2)))))
