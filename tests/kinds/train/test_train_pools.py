"""One job across several pools: against every plan of small problems, and against one pool of the same GPUs."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pools_oracle import every_pipeline, every_spread
from train_problems import job, jobs, problem

from planner.check import check_plan
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.execute.shards.spec import role_spec
from planner.kinds.registry import checksummed
from planner.kinds.train.choice import LEAST_S, gone_on
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.pools.across import ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.pools.search import PoolsSearch, ReplicasSearch, StagesSearch
from planner.kinds.train.pools.weigh import best_use, searches_of_uses
from planner.kinds.train.search.search import prove
from planner.kinds.train.solve import cautious, solve
from planner.kinds.train.space.space import Space, space_of
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, sharing_of
from planner.load.problems import resolve_document
from planner.plan.reader import read_plan
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.progress import Limits

TWO: dict[str, Any] = {"pools": [{"gpu": "h100_sxm", "nodes": 1}, {"gpu": "a100_sxm", "nodes": 2}]}
PLAIN: dict[str, Any] = {"cp": 1, "tp": 4, "micro_batch": [1, 2], "recompute": ["none", "full"]}
CASES: dict[str, dict[str, Any]] = {
    "plain": problem(
        global_batch=24, cluster=TWO, search={**PLAIN, "tp": [2, 4], "pp": [2, 3], "vpp": 1, "recompute": "none"}
    ),
    "chunks": problem(
        global_batch=24,
        cluster=TWO,
        search={
            **PLAIN,
            "pp": [2, 4],
            "vpp": [1, 2],
            "schedule": ["1f1b", "interleaved", "zb_v"],
            "zero_stage": [1, 3],
        },
    ),
    "little memory": problem(
        global_batch=24,
        cluster={"pools": [{"gpu": "h100_sxm", "nodes": 1}, {"gpu": "a100_sxm_40gb", "nodes": 2}]},
        memory_utilisation=0.45,
        search={**PLAIN, "pp": [2, 3], "vpp": 1, "zero_stage": [0, 1, 2]},
    ),
    "slow link": problem(
        global_batch=24,
        cluster={**TWO, "links": [{"pools": ["h100_sxm", "a100_sxm"], "bandwidth": "2GB/s"}]},
        search={**PLAIN, "pp": [1, 2], "vpp": 1, "zero_stage": [0, 1]},
    ),
    "per GPU": problem(
        global_batch=24,
        cluster=TWO,
        objective={"maximize": "tokens_per_s_per_gpu"},
        search={**PLAIN, "pp": [2], "vpp": 1, "zero_stage": 1},
    ),
}


def _proven(searches: list[PoolsSearch]) -> tuple[float | None, float]:
    prove(searches, Limits())
    results = [search.result("finished") for search in searches]
    values = [result.value for result in results if result.value is not None]
    for result in results:
        tally = result.tally
        assert tally.candidates == tally.evaluated + tally.unfit + sum(tally.bounded.values())
    return min(values, default=None), min(result.bound for result in results)


@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_across_pools_is_the_best_of_all(case: str) -> None:
    pools = jobs(CASES[case])
    searches = [StagesSearch(order, Limits()) for order in (pools, pools[::-1])]
    value, bound = _proven(list(searches))
    plans = list(every_pipeline(pools))
    best = min(plan.objective for plan in plans)
    assert value == pytest.approx(best, rel=1e-9)
    assert bound == pytest.approx(best, rel=1e-6)
    for plan in plans:
        whole, ranks = plan.choice, tuple(len(part.rows) for part in plan.across)
        across = StagesAcross(tuple(part.choice for part in plan.across), ranks)
        assert across.floor_s(None, 0) <= plan.step_s * (1 + 1e-9)
        again = None if whole.full_layers else whole.mode
        assert across.floor_s(again, whole.full_layers * whole.vpp) <= plan.step_s * (1 + 1e-9)


@pytest.mark.parametrize("case", ["chunks", "little memory", "slow link", "per GPU"])
def test_replicas_across_pools_are_the_best_of_all(case: str) -> None:
    data = CASES[case]
    less = {**data["options"]["search"], "micro_batch": 1, "pp": [1, 2], "zero_stage": 1}
    pools = jobs({**data, "options": {**data["options"], "global_batch": 8, "search": less}})
    search = ReplicasSearch(pools, Limits())
    value, bound = _proven([search])
    plans = list(every_spread(pools))
    best = min((plan.objective for plan in plans), default=None)
    assert value == (None if best is None else pytest.approx(best, rel=1e-9))
    assert best is None or bound == pytest.approx(best, rel=1e-6)


def test_replicas_across_pools_share_states_only_where_ranks_exchange_once_a_step() -> None:
    """ZeRO 2 and 3 exchange every micro-batch, of which the pools do different numbers."""
    search = {"cp": 1, "tp": 4, "pp": 1, "vpp": 1, "micro_batch": 1, "recompute": "none"}
    across = ReplicasSearch(jobs(problem(global_batch=8, cluster=TWO, search=search)), Limits())
    across.set_up()
    candidates = list(across.candidates(0))
    assert {part.zero_stage for candidate in candidates for part in candidate.parts} == {0, 1}


def _same_gpus(schedule: Any, pp: int, vpp: int) -> tuple[list[PlanChoice], PlanChoice]:  # noqa: ANN401
    """A choice on each of two equal pools, and on one pool of all their nodes."""
    equal = {"pools": [{"gpu": "h100_sxm", "nodes": 1, "name": name} for name in ("a", "b")]}
    tables = [
        CostTable(own_job, ShardShape(2, 1, 1, 1, 1)) for own_job in (*jobs(problem(cluster=equal)), job(problem()))
    ]
    dp = 8 // pp
    choices = [
        PlanChoice(table, sharing_of(table, dp, 1, frozenset()), pp, dp, schedule, vpp, 1, frozenset(), table.modes[0])
        for table in tables
    ]
    return choices[:2], choices[2]


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 4), ("zb_v", 2)])
def test_two_pools_of_the_same_gpus_are_as_fast_as_one(schedule: str, vpp: int) -> None:
    parts, whole = _same_gpus(schedule, 2, vpp)
    counts = (32 // (2 * vpp),) * (2 * vpp)
    across = StagesAcross(tuple(parts), (1, 1)).evaluated(counts)
    assert across.step_s == pytest.approx(evaluate(whole, counts).step_s, rel=1e-12)
    assert across.memory.total_R == pytest.approx(evaluate(whole, counts).memory.total_R)


def test_replicas_in_two_pools_of_the_same_gpus_are_as_fast_as_in_one() -> None:
    parts, whole = _same_gpus("1f1b", 1, 1)
    joined = joined_sharing([part.table for part in parts], 1, 8, 1, frozenset())
    halves = ReplicasAcross(tuple(replace(part, dp=4, sharing=joined) for part in parts))
    shared, alone = halves.evaluated((32,), (8, 8)), evaluate(whole, (32,))
    assert shared.step_s == pytest.approx(alone.step_s, rel=1e-12)
    assert shared.memory.total_R == pytest.approx(np.repeat(alone.memory.total_R, 2))


def _solved(data: dict[str, Any]) -> tuple[Envelope, TrainDecision]:
    envelope = checksummed(solve(resolve_document(given_document(data, "problem"), Path()), Limits()))
    return envelope, TrainDecision.model_validate(envelope.decision)


@pytest.mark.parametrize("use", ["one", "stages", "replicas"])
def test_plans_across_pools_pass_their_check_and_lies_in_them_do_not(use: str) -> None:
    data = problem(global_batch=48, cluster=TWO, search={"cp": 1, "pools": use, "tp": [2, 4, 8], "pp": [1, 2, 3]})
    envelope, decision = _solved(data)
    assert [finding.rule for finding in check_plan(envelope, decision) if not finding.ok] == []
    assert envelope.certificate.status == "optimal"
    assert len(envelope.certificate.axes["pools"]) == (1 if use == "replicas" else 2)
    assert decision.pools == use
    if use == "one":
        return
    lies: dict[str, dict[str, Any]] = {"stages": {"pools": "replicas"}, "replicas": {"role_micro_batches": (1, 1)}}
    wrong = decision.model_copy(update=lies[use])
    assert any(not finding.ok for finding in check_plan(envelope, wrong))
    first, second = decision.roles
    wider = second.parallelism.model_copy(update={"tp": 2 * second.parallelism.tp})
    unlike = decision.model_copy(update={"roles": (first, second.model_copy(update={"parallelism": wider}))})
    assert "train.role" in {finding.rule for finding in check_plan(envelope, unlike) if not finding.ok}


def test_the_best_use_is_the_best_of_its_uses_and_bounds_every_one() -> None:
    data = problem(global_batch=48, cluster=TWO, search={"cp": 1, "tp": [2, 4], "pp": [1, 2, 3], "micro_batch": 1})
    together = best_use(jobs(data), Limits())
    apart = []
    for use in ("one", "stages", "replicas"):
        own = {**data, "options": {**data["options"], "search": {**data["options"]["search"], "pools": use}}}
        apart.append(best_use(jobs(own), Limits()).value)
    assert together.value == min(value for value in apart if value is not None)
    assert together.bound == pytest.approx(together.value, rel=1e-6)
    assert together.best is not None
    assert together.best.across, "more GPUs of two kinds beat those of one"
    assert len(together.uses) == 5


THREE: dict[str, Any] = {"pools": [*TWO["pools"], {"gpu": "l40s", "nodes": 1}]}


def test_three_pools_have_a_plan_early_and_a_bound_of_all_their_uses() -> None:
    search = {**PLAIN, "pp": [1, 2, 3], "vpp": 1, "micro_batch": 1, "recompute": "none"}
    pools = jobs(problem(global_batch=24, cluster=THREE, search=search))
    early, proven = best_use(pools, Limits(gap=0.9)), best_use(pools, Limits())
    assert early.value is not None
    assert proven.value is not None
    assert early.bound <= proven.bound <= proven.value <= early.value
    assert proven.bound == pytest.approx(proven.value, rel=1e-6)
    assert early.tally.evaluated < proven.tally.evaluated
    assert early.tally.candidates == proven.tally.candidates
    assert len(early.uses) == 19


def test_searches_go_on_from_where_their_time_ended_and_count_all_candidates_in_every_answer() -> None:
    search = {**PLAIN, "pp": [1, 2, 3], "vpp": 1, "micro_batch": 1, "recompute": "none"}
    pools = jobs(problem(global_batch=24, cluster=THREE, search=search))
    searches, proven = searches_of_uses(pools, Limits()), best_use(pools, Limits())
    answers = [searches.proven(Limits(time_limit_s=0.05))]
    while answers[-1].stop_reason == "time_limit":
        answers.append(searches.proven(Limits(time_limit_s=0.05)))
    assert proven.value is not None
    assert answers[-1].value == proven.value
    assert answers[-1].bound == pytest.approx(proven.bound, rel=1e-6)
    for answer in answers:
        assert answer.bound <= proven.value
        assert sum(group.candidates for group in answer.tally.groups.values()) == answer.tally.candidates
        assert min(group.least for group in answer.tally.groups.values()) <= answer.bound * (1.0 + 1e-9)


def test_without_time_left_no_other_plan_is_preferred_to_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    search = {"cp": 1, "pools": "stages", "tp": [1, 2], "pp": [2, 3], "micro_batch": [4, 8]}
    data = problem(global_batch=48, cluster=TWO, search=search)
    usual, _ = _solved(data)
    monkeypatch.setattr("planner.kinds.train.solve.left_of", lambda limits, _: replace(limits, time_limit_s=LEAST_S))
    stopped, _ = _solved(data)
    assert usual.certificate.within is not None
    assert stopped.certificate.within is None
    assert (usual.certificate.status, stopped.certificate.status) == ("feasible", "optimal")


def test_what_was_preferred_in_time_stays_so_where_none_is_left() -> None:
    search = {"cp": 1, "pools": "stages", "tp": [1, 2], "pp": [2, 3], "micro_batch": [4, 8]}
    pools = jobs(problem(global_batch=48, cluster=TWO, search=search))
    fastest, none_left = best_use(pools, Limits()), Limits(time_limit_s=LEAST_S)
    usual = cautious(pools, fastest, Limits, 0.0)
    late = cautious(pools, fastest, lambda: none_left, 0.0, usual.inside)
    assert usual.best is not fastest.best
    assert (late.best, late.bound) == (usual.best, usual.bound)
    on = gone_on(replace(usual, bound=0.0), fastest)
    assert (on.best, on.bound, on.inside) == (usual.best, fastest.bound, usual.inside)
    assert gone_on(replace(usual, inside=()), replace(fastest, bound=2.0 * usual.decided_value)).bound == usual.value


def test_nodes_across_pools_are_all_that_numbers_allow() -> None:
    pools = jobs(problem(global_batch=24, cluster=THREE, search={"cp": 1, "tp": [4, 8], "pp": [1, 3, 5]}))
    stages, replicas = StagesSearch(pools, Limits()), ReplicasSearch(pools, Limits())
    gpus = [own_job.num_gpus for own_job in pools]
    expected = [
        (shape, pp, dp, taken)
        for shape, pp, dp in _rows(stages.space)
        for taken in product(range(1, pp + 1), repeat=3)
        if sum(taken) == pp and all(shape.tp * dp * own <= most for own, most in zip(taken, gpus, strict=True))
    ]
    assert [stages.nodes.node(index) for index in range(len(stages.nodes.pp_N))] == expected
    each = [_rows(space_of(own_job, replicas.space.axes["dp"])) for own_job in pools]
    spread = [
        (shape, pp, sum(dp for _, _, dp in rows), tuple(dp for _, _, dp in rows))
        for rows in product(*each)
        if len({(own_shape, own_pp) for own_shape, own_pp, _ in rows}) == 1
        for shape, pp, _ in rows[:1]
    ]
    nodes = [replicas.nodes.node(index) for index in range(len(replicas.nodes.pp_N))]
    assert len(nodes) == len(spread)
    assert set(nodes) == set(spread)


def _rows(space: Space) -> list[tuple[ShardShape, int, int]]:
    return [(space.shape(row), int(space.pp[row]), int(space.dp[row])) for row in range(len(space))]


def test_pools_that_lack_the_precision_are_left_out_and_wishes_for_one_pool_are_refused() -> None:
    assert [own_job.pool.name for own_job in jobs(problem(cluster=TWO, precision="fp8"))] == ["h100_sxm"]
    saved = {"remote_write": "50GB/s"}
    with pytest.raises(PlannerError, match=r"reliability(.|\n)*pools: one"):
        best_use(jobs(problem(cluster=TWO, reliability=saved)), Limits())


def test_a_pipeline_across_pools_is_launched_in_its_order_and_each_pool_executes_its_own_stages(tmp_path: Path) -> None:
    search = {"cp": 1, "pools": "stages", "tp": 8, "pp": 3, "dp": 1, "vpp": 1, "micro_batch": 1}
    envelope, decision = _solved(problem(global_batch=48, cluster=TWO, search=search))
    script = emit(envelope, decision, "megatron-lm")["launch.sh"]
    layers = [run.num_layers for run in decision.stage_runs for _ in range(run.stages)]
    assert "--nnodes 3" in script
    assert "--pipeline-model-parallel-size 3" in script
    assert f"'Et*{layers[0]}|t*{layers[1]}|t*{layers[2]}L'" in script
    path = tmp_path / "plan.json"
    path.write_text(plan_json(envelope), encoding="utf-8")
    plan = read_plan(path)
    layers_of_stages = [[stage.layers for stage in role_spec(plan, role.name).stages] for role in plan.roles]
    assert [len(stages) for stages in layers_of_stages] == [role.parallelism.pp for role in decision.roles]
    assert [layer for stages in layers_of_stages for layers in stages for layer in layers] == list(range(32))


def test_no_launcher_takes_replicas_with_batches_of_their_own() -> None:
    search = {"cp": 1, "pools": "replicas", "tp": 8, "pp": 1, "micro_batch": 1}
    with pytest.raises(PlannerError, match=r"different numbers of micro-batches(.|\n)*pools: \[one, stages\]"):
        emit(*_solved(problem(global_batch=48, cluster=TWO, search=search)), "megatron-lm")
