"""The cheapest mix that keeps its limits in simulation, beside all mixes of the unpruned space."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from serve_problems import small

from planner.kinds.serve.bounds.bound import ProblemBounds, bound_of_types
from planner.kinds.serve.bounds.demands import workloads_of
from planner.kinds.serve.bounds.engines import engine_types
from planner.kinds.serve.bounds.types import type_bound
from planner.kinds.serve.plan.certificate import objective
from planner.kinds.serve.plan.decode import envelope
from planner.kinds.serve.simulated.placements import Deployment, with_placement
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import relaxed
from planner.kinds.serve.steady.formulate import formulate
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, list_candidates, prepare, search
from planner.kinds.serve.verified.budget import Budget
from planner.kinds.serve.verified.capacity import LoadKept
from planner.kinds.serve.verified.cheaper import Cheaper
from planner.kinds.serve.verified.climb import Climb
from planner.kinds.serve.verified.kept import Kept
from planner.kinds.serve.verified.loop import Search
from planner.kinds.serve.verified.neighbours import Axes
from planner.kinds.serve.verified.trials import Variants
from planner.plan.restated import unproven
from planner.progress import Limits

BATCHES = (8, 64)


def setting_of(rate: float, modes: str = "colocated") -> ServeSetting:
    workload = {
        "name": "chat",
        "input_tokens": {"mean": 900, "cv": 1.0},
        "output_tokens": {"mean": 80, "cv": 0.5},
        "load": {"rate": f"{rate}/s", "arrival_cv": 2.0},
        "slo": {"ttft": {"p95": "400ms"}, "tpot": {"p90": "20ms"}},
    }
    edits = {
        "workloads.0": workload,
        "objective": {"minimize": "gpus"},
        "options": {"tp": [1, 2], "pp": [1], "max_batch": list(BATCHES), "chunk_tokens": [2048], "modes": [modes]},
    }
    return prepare(small(edits))


def searched(setting: ServeSetting) -> tuple[Search, Outcome]:
    outcome = search(setting, setting.targets, Limits())
    return Search.of(setting, outcome, Budget(Limits(), time.monotonic()), 1.0, None), outcome


def dear(search_of: Search, outcome: Outcome) -> Kept:
    """The plan of steady state as if it cost 99."""
    value = outcome.objective
    assert value is not None
    plan = envelope(search_of.setting, outcome, unproven(objective(outcome, value)), (), ())
    costly = replace(outcome, result=replace(outcome.result, objective=99.0))
    return Kept(costly, Variants.of(plan, sum(outcome.solution.served_per_s)), LoadKept(1.0, frozenset()))


def judged(search_of: Search, outcome: Outcome, types: list[Candidate], counts: tuple[int, ...]) -> Kept:
    """A mix at the load of the problem, simulated."""
    listed = replace(outcome, formulated=replace(outcome.formulated, candidates=tuple(types)))
    deployment = Deployment(tuple(enumerate(counts)), 1.0)
    placed = with_placement(listed, (deployment,), outcome.solution.served_per_s)
    cost = float(sum(each.shape.devices * count for each, count in zip(types, counts, strict=True)))
    placed = replace(placed, result=replace(placed.result, objective=cost))
    result = search_of.tried_beside(dear(search_of, outcome), placed)
    assert result is not None
    return result


def all_plans(setting: ServeSetting, outcome: Outcome) -> Iterator[tuple[list[Candidate], tuple[int, ...]]]:
    """Every mix of colocated types on 4 GPUs with every batch."""
    axes = Axes(setting)
    shapes = {each.shape: replace(each, together=1) for each in outcome.formulated.candidates}
    types = [at for each in shapes.values() for batch in BATCHES if (at := axes.at(each, batch, 2048)) is not None]
    for size in (1, 2):
        for mix in itertools.combinations(types, size):
            if len({each.shape for each in mix}) == size:
                for counts in itertools.product(*(range(1, 4 // each.shape.devices + 1) for each in mix)):
                    if sum(each.shape.devices * count for each, count in zip(mix, counts, strict=True)) <= 4:
                        yield list(mix), counts


def test_no_plan_of_the_unpruned_space_costs_less_and_none_is_judged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of(30.0)
    search_of, outcome = searched(setting)
    everything = [judged(search_of, outcome, types, counts) for types, counts in all_plans(setting, outcome)]
    passing = [each for each in everything if not each.load.refuted]
    shapes = [each.outcome.formulated.candidates[0].shape.tp for each in passing]
    wide = next(each for each, tp in zip(passing, shapes, strict=True) if (tp, each.value) == (2, 4.0))
    assert len(wide.outcome.solution.counts) == 1
    tried: list[object] = []
    judge = Search.tried_beside

    def counted(self: Search, known: Kept, proposed: Outcome, least: float) -> Kept | None:
        tried.append([(item.candidate.shape, item.candidate.max_batch, item.count) for item in proposed.roles])
        return judge(self, known, proposed, least)

    monkeypatch.setattr(Search, "tried_beside", counted)
    best = Climb(search_of, (outcome,), ProblemBounds(setting)).best(wide)
    assert len({str(each) for each in tried}) == len(tried) > 1
    assert best.value == min(each.value for each in passing) < wide.value


@pytest.mark.parametrize("modes", ["colocated", "disaggregated"])
def test_no_mix_that_a_bound_excludes_is_listed_and_the_cheapest_one_bounds_it(modes: str) -> None:
    setting = setting_of(30.0, modes)
    search_of, outcome = searched(setting)
    bounds = ProblemBounds(setting)
    cheaper = Cheaper((outcome,), dear(search_of, outcome), bounds)
    mixes = list(cheaper.promising())
    least = bounds.whole.value
    assert mixes
    assert least is not None
    assert min(mix.cost for mix in mixes) >= least * (1.0 - 1e-9)
    assert [mix.level for mix in mixes] == sorted(mix.level for mix in mixes)
    assert all(len(cheaper.outcome(mix).roles) == len(mix.counts) for mix in mixes)  # no type of it is idle


def by_stage(parts: list[tuple[Candidate, int]], each: Callable[[Candidate], float]) -> float:
    """Of the stage with the least, what so many instances of each candidate do."""
    roles = ({"colocated", "prefill"}, {"colocated", "decode"})
    return min(
        sum(count * each(candidate) for candidate, count in parts if candidate.function in able) for able in roles
    )


@pytest.mark.parametrize("modes", ["colocated", "disaggregated"])
def test_the_mixes_listed_are_those_of_the_definition(modes: str) -> None:
    """All numbers of instances of all candidates, alone and in pairs, at the strictest limits that promise the load."""
    rate, most, setting = 30.0, 6.0, setting_of(30.0, modes)
    (search_of, stated), bounds = searched(setting), ProblemBounds(setting)
    candidates = list_candidates(setting, relaxed(setting.targets, 1.5), Tally())
    wider = replace(stated, formulated=formulate(setting.resolved, setting.targets, candidates))
    best = dear(search_of, stated)
    best = replace(best, outcome=replace(best.outcome, result=replace(best.outcome.result, objective=most)))
    listed = {
        (frozenset(mix.counts), mix.cost, mix.level) for mix in Cheaper((stated, wider), best, bounds).promising()
    }

    first: dict[frozenset[tuple[object, int]], tuple[float, int]] = {}
    for level, outcome in enumerate((stated, wider)):
        able = [each for each in outcome.formulated.candidates if min(each.rates_per_s) > 0.0]
        sets = [*itertools.combinations(able, 1), *itertools.combinations(able, 2)]
        for mix, number in itertools.product(sets, itertools.product(range(1, 6), repeat=2)):
            parts = list(zip(mix, number, strict=False))
            counts = frozenset(((each.function, each.shape, each.channel, each.draft_tokens), n) for each, n in parts)
            cost = sum(each.devices * count for each, count in parts)
            if len({each for each, _ in counts}) < len(mix) or len({each.channel for each in mix}) > 1 or cost >= most:
                continue
            alone = len(mix) == 1 or modes == "disaggregated"
            allowed = by_stage(parts, lambda each: bounds.most_per_s(each.function, each.shape, alone=alone))  # noqa: B023
            promised = by_stage(parts, lambda each: each.rates_per_s[0])
            if min(allowed, promised) >= rate * (1.0 - 1e-9) and all(each.together <= count for each, count in parts):
                first.setdefault(counts, (float(cost), level))
    assert {level for _, level in first.values()} == {0, 1}
    assert listed == {(counts, *row) for counts, row in first.items()}


@pytest.mark.parametrize(("rate", "modes"), [(4.0, "colocated"), (60.0, "disaggregated")])
def test_types_priced_as_they_are_used_give_the_bound_of_all(rate: float, modes: str) -> None:
    setting = setting_of(rate, modes)
    workloads = workloads_of(setting, (1.0,))
    context = setting.targets[0].context_tokens
    (pool_costs,) = setting.costs_of_pool.values()
    overhead_s = float(pool_costs.costs.engine.request_s(setting.resolved.workloads[0].input.mean_tokens))
    types = [type_bound(each, workloads, (0,), context, overhead_s) for each in engine_types(setting, workloads)]
    assert ProblemBounds(setting).whole.value == pytest.approx(bound_of_types(setting, types, workloads).value)
