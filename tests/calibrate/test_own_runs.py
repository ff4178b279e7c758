"""A few own runs: normal-normal shrinkage against an integral, what the calibration then carries, and refusals."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from static_level import solve

from planner.calibrate.own_runs import OwnRuns, believe, document_of
from planner.calibrate.serving import ServingRow, read_serving
from planner.cli.main import main
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.forms import STAGES
from planner.costs.rates.likeness import RERUN, TPOT
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.spread import NORMAL_80, ErrorSpread, GroupBias, SeenRun, group_of_runs
from planner.costs.rates.step import step_time
from planner.costs.serving.chances import chances_of
from planner.errors import PlannerError
from planner.estimate import estimate_jsonl
from planner.estimate.case import Case
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.own_runs import told_by_runs
from planner.kinds.serve.expected import CONFIDENCES, counts_expected
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import ServeSetting, list_candidates, prepare
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.verified.budget import Budget
from planner.kinds.serve.verified.shared_streams import SharedStreams
from planner.load.problems import load_problem
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.stream import Requests
from planner.solvers.stochastic.sequential_choice import Belief

HEADER = "id,model,weights,system,backend,mode,isl,osl,concurrency,gpus,tp,pp,dp,moe_tp,moe_ep,ttft_ms,tpot_ms\n"
PROBLEM = """
kind: serve
models: {m: {name: Qwen/Qwen2.5-7B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 2}]}
workloads: [{name: chat, input_tokens: 1000, output_tokens: 200, slo: {ttft: 1s, tpot: 15ms}}]
objective: {maximize: goodput_per_gpu}
"""
MODEL = "Qwen/Qwen2.5-7B-Instruct"  # of a group that the shipped costs were not fitted to


def rows_of(folder: Path, *tpot_ms: float, model: str = MODEL, weights: str = "bf16") -> tuple[ServingRow, ...]:
    path = folder / "runs.csv"
    lines = [
        f"r{clients},{model},{weights},h100_sxm,vllm,agg,1000,200,{clients},1,1,1,1,1,1,50,{time}\n"
        for clients, time in zip((8, 32, 64, 16), tpot_ms, strict=False)
    ]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return read_serving([str(path)], {}).rows


def estimated(calibration: str = "default", clients: int = 8) -> dict[str, Any]:
    request = {
        "models": {"m": {"name": MODEL}},
        "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
        "workloads": [{"input_tokens": 1000, "output_tokens": 200, "load": {"concurrency": clients}}],
        "costs": {"calibration": calibration},
        "decision": {},
    }
    (line,) = estimate_jsonl([json.dumps(request)])
    prediction: dict[str, Any] = json.loads(line)["prediction"]
    return prediction


@settings(max_examples=30, deadline=None)
@given(
    errors=st.lists(st.tuples(st.floats(-0.6, 0.6), st.floats(0.05, 0.5)), min_size=1, max_size=3),
    prior=st.tuples(st.floats(-0.3, 0.3), st.floats(0.05, 0.4)),
)
def test_beliefs_are_those_of_bayes_rule(errors: list[tuple[float, float]], prior: tuple[float, float]) -> None:
    bias = GroupBias(*prior, 0).after(*(np.array(side) for side in zip(*errors, strict=True)))
    grid = np.linspace(-4.0, 4.0, 80_001)
    log_density = -0.5 * ((grid - prior[0]) / prior[1]) ** 2
    for error, deviation in errors:
        log_density = log_density - 0.5 * ((error - grid) / deviation) ** 2
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = float(np.sum(density * grid))
    assert bias.mean == pytest.approx(mean, abs=1e-6)
    assert bias.deviation == pytest.approx(math.sqrt(float(np.sum(density * (grid - mean) ** 2))), rel=1e-5)
    assert bias.runs == len(errors)
    by_turns = GroupBias(*prior, 0)
    for error, deviation in errors:
        by_turns = by_turns.after(np.array([error]), np.array([deviation]))
    assert (by_turns.mean, by_turns.deviation) == pytest.approx((bias.mean, bias.deviation), abs=1e-12)


@settings(max_examples=10, deadline=None)
@given(between=st.floats(0.02, 0.5), within=st.floats(0.02, 0.5))
def test_a_run_never_hurts_in_expectation(between: float, within: float) -> None:
    """Over groups and runs drawn as is believed: the error left is smaller after it, and as wide as stated."""
    random = np.random.default_rng(0)
    prior = GroupBias.unseen((between, between))
    truth = prior.deviation * random.standard_normal(4000)
    runs = truth + within * random.standard_normal(4000)
    after = [prior.after(np.array([run]), np.array([within])) for run in runs]
    left = np.sqrt(np.mean((truth - np.array([bias.mean for bias in after])) ** 2))
    assert left < math.sqrt(float(np.mean(truth**2)))
    assert left == pytest.approx(after[0].deviation, rel=0.06)


@settings(max_examples=20, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=3, max_size=6, unique=True),
    errors=st.lists(st.floats(-0.4, 0.4), min_size=2, max_size=2),
    freedom=st.sampled_from((2.5, 8.0, math.inf)),
)
def test_what_runs_tell_of_others_is_the_belief_of_proposals_conditioned_on_them(
    places: list[tuple[int, int]], errors: list[float], freedom: float
) -> None:
    """By one system of equations, and by conditioning all alternatives on one run after another."""
    likeness = replace(TPOT, freedom=freedom)
    load = np.array([float(load) for load, _ in places])
    layout = np.array([[float(gpus), float(gpus), 0.0, 0.0, 0.0] for _, gpus in places])
    lengths = np.array([[1000.0, float(100 + index)] for index in range(len(places))])
    seen = [SeenRun(load[i], tuple(layout[i]), tuple(lengths[i]), error) for i, error in enumerate(errors)]
    told = likeness.told(seen, load, layout, lengths)
    belief = Belief(np.zeros(len(load)), likeness.covariance(load, layout), RERUN**2, freedom)
    for index, error in enumerate(errors):
        belief = belief.measured(index, error)
    assert told.mean == pytest.approx(belief.mean_M, abs=1e-9)
    wide = likeness.belief(belief.mean_M, belief.variance_M, belief.freedom)
    assert told.half[2:] == pytest.approx(wide.half[2:], rel=1e-9)


def test_runs_of_one_deployment_count_as_one_at_their_mean() -> None:
    """They share what is single of a run, so that a second one tells little more than the first."""
    load, layout, lengths = np.array([3.0, 6.0]), np.zeros((2, 5)), np.array([[1000.0, 200.0], [1000.0, 300.0]])
    run = SeenRun(3.0, (0.0,) * 5, (1000.0, 200.0), 0.2)
    runs = ([run], [replace(run, error=0.1), replace(run, error=0.3)], [run, replace(run, lengths=(2000.0, 200.0))])
    once, again, both = (TPOT.told(seen, load, layout, lengths).mean for seen in runs)
    assert np.allclose(once, again)
    assert once[0] == pytest.approx(0.2, rel=0.01)
    assert once[1] < both[1]


def test_bounds_take_what_is_left_in_place_of_what_lies_between_groups() -> None:
    spread = ErrorSpread(low=(-0.3, 0.0, 0.0), high=(0.3, 0.0, 0.0), between=(0.0, 0.4))
    row = np.array([[1.0, 0.0, 0.0]])
    low, high = (float(np.log(bound[0])) for bound in spread.known(0.1).bounds(np.ones(1), row))
    assert (low, high) == pytest.approx((-math.hypot(0.3, 0.1 * NORMAL_80), math.hypot(0.3, 0.1 * NORMAL_80)))
    for seen in (spread, spread.elsewhere(), spread.known(0.1)):
        sides = (np.log(bound) for bound in seen.bounds(np.ones(1), row))
        assert seen.within(*sides)[0] == pytest.approx(0.3 / NORMAL_80)


def test_the_file_makes_estimates_slower_and_narrower_and_takes_further_runs(tmp_path: Path) -> None:
    plain = estimated()
    slow_ms = 1.15 * plain["tpot_s"] * 1e3
    told = believe(rows_of(tmp_path, slow_ms), "default", None)
    ((group, bias),) = told.after.items()
    assert 0.0 < bias.mean < math.log(1.15)
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(document_of(told, "default", date="2026-01-31", sources=["runs.csv"])))
    known = load_calibration(str(path))
    assert known.runs[group].mean == pytest.approx(bias.mean, abs=1e-6)
    assert known.digest != load_calibration().digest
    ((run,), (written,)) = bias.seen, known.runs[group].seen
    assert written == replace(run, error=round(run.error, 6))
    at_run, near, far = (estimated(str(path), clients) for clients in (8, 16, 256))
    slower = [after["tpot_s"] / estimated(clients=c)["tpot_s"] for after, c in ((at_run, 8), (near, 16), (far, 256))]
    assert slower[0] == pytest.approx(1.15, rel=0.02)
    whole = TPOT.common**2 + TPOT.smooth**2 + TPOT.single**2 + RERUN**2
    assert slower[0] > slower[1] > slower[2] > 1.15 ** (TPOT.common**2 / whole)  # what is common to all loads
    assert at_run["ttft_s"] > plain["ttft_s"]
    at_run_width, near_width, far_width, plain_width = (
        math.log(p["tpot_s_interval"][1] / p["tpot_s_interval"][0]) for p in (at_run, near, far, plain)
    )
    assert at_run_width < near_width < min(far_width, plain_width)
    again = believe(rows_of(tmp_path, slow_ms), str(path), None).after[group]
    assert again.runs == 2
    assert bias.mean < again.mean < math.log(1.15)
    assert again.deviation < bias.deviation


def test_the_command_writes_what_few_rows_tell_and_nothing_where_they_tell_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of(tmp_path, 12.0, 14.0)
    output = tmp_path / "own.yaml"
    assert main(["calibrate", str(tmp_path / "runs.csv"), "-o", str(output)]) == 0
    assert "after 2 runs its steps are" in capsys.readouterr().err
    shipped, told = load_calibration().runs, load_calibration(str(output)).runs
    assert {group: bias for group, bias in told.items() if group in shipped} == shipped
    assert [bias.runs for group, bias in told.items() if group not in shipped] == [2]
    rows_of(tmp_path, 20.0, model="no/such-model")
    assert main(["calibrate", str(tmp_path / "runs.csv"), "-o", str(tmp_path / "none.yaml")]) == 2
    assert not (tmp_path / "none.yaml").exists()


def test_steps_of_a_solve_are_as_much_longer_and_the_plan_says_so(tmp_path: Path) -> None:
    shipped = load_calibration()
    path, problem = tmp_path / "own.yaml", tmp_path / "problem.yaml"
    problem.write_text(PROBLEM, encoding="utf-8")
    before = load_problem(problem)
    arch, pool = before.models["m"], before.pools[0]
    group = group_of_runs(arch, pool.node.accelerator.name, "vllm")
    told = OwnRuns({}, {group: GroupBias(0.25, 0.1, 2)}, ())
    path.write_text(yaml.safe_dump(document_of(told, "default", date="2026-01-31", sources=["a"])), encoding="utf-8")
    own = load_calibration(str(path))
    work, shards = Work.decode(np.array([8.0, 64.0]), np.array([500.0, 2000.0])), Shards.of(np.ones(2))
    times = [
        step_time(
            arch,
            make_pricer(pool, arch, engine="vllm", version=None, calibration=known, store=None),
            shards,
            work,
            known.engine("vllm"),
        )
        for known in (shipped, own)
    ]
    for part in ("device_s", "host_s", "seconds"):
        assert getattr(times[1], part) == pytest.approx(math.exp(0.25) * getattr(times[0], part), rel=1e-12)
    slower = solve(load_problem(problem, overrides=[f"costs.calibration={path}"]))
    goodput = [plan.certificate.objective.value for plan in (slower, solve(before))]
    assert goodput[0] is not None
    assert goodput[1] is not None
    assert goodput[0] < goodput[1]
    assert any("28.4% longer than the costs say, as 2 own runs of it tell" in line for line in slower.assumptions)
    text = path.read_text(encoding="utf-8").replace(group, "another group")
    path.with_name("other.yaml").write_text(text, encoding="utf-8")
    other = solve(load_problem(problem, overrides=[f"costs.calibration={path.with_name('other.yaml')}"]))
    assert any("are of another group, and move nothing here" in line for line in other.assumptions)


def own_calibration(folder: Path, tpot_ms: float) -> str:
    """The path of a calibration with one run, of 8 clients on a GPU."""
    told = believe(rows_of(folder, tpot_ms), "default", None)
    path = folder / "own.yaml"
    document = document_of(told, "default", date="2026-01-31", sources=["runs.csv"])
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def case_of(row: ServingRow, gpus: int, clients: int | None, *, apart: bool = False) -> Case:
    """The case of a row on eight GPUs: instances of so many, perhaps beside those that take their prompts."""
    part = replace(row.case.decode, tp=gpus, replicas=8 // gpus)
    rate_per_s, prefill = (0.0 if clients else 5.0), (part if apart else None)
    return replace(row.case, decode=part, gpus=8, prefill=prefill, clients=clients or 0, rate_per_s=rate_per_s)


def test_forms_of_own_runs_count_as_measured_those_of_prefill_too(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, 12.0)
    staged = replace(row.case.decode, pp=2)
    ran = replace(row.case, gpus=3, prefill=staged)
    believed = believe([replace(row, case=ran)], "default", None)
    path = tmp_path / "apart.yaml"
    path.write_text(
        yaml.safe_dump(document_of(believed, "default", date="2026-01-31", sources=["a"])), encoding="utf-8"
    )
    before, after = load_calibration().forms, load_calibration(str(path)).forms
    assert after == {**before, "prefill": before["prefill"] | {frozenset({STAGES})}}


@pytest.mark.parametrize(("clients", "traced"), [(64, False), (None, False), (None, True)])
def test_layouts_of_a_search_take_what_estimates_take(tmp_path: Path, clients: int | None, *, traced: bool) -> None:
    """On instances of any size: by the same runs, at its share of what is in flight, in either mode; of a trace too,
    whose answers are as long on average, and none of whose lengths are those of the run."""
    path, (row,) = own_calibration(tmp_path, 12.0), rows_of(tmp_path, 12.0)
    problem = tmp_path / "problem.yaml"
    load = "rate: 5/s" if clients is None else f"concurrency: {clients}"
    wide = PROBLEM.replace("gpus: 2", "nodes: 1").replace("15ms}", f"15ms}}, load: {{{load}}}")
    if traced:
        (tmp_path / "lengths.csv").write_text("arrival_s,input_tokens,output_tokens\n0,900,100\n1,1300,300\n", "utf-8")
        of_trace = "input_tokens: {trace: lengths.csv}, output_tokens: {trace: lengths.csv}"
        wide = wide.replace("input_tokens: 1000, output_tokens: 200", of_trace)
        row = replace(row, case=replace(row.case, isl=1100))
    problem.write_text(wide, encoding="utf-8")
    resolved = load_problem(problem, overrides=[f"costs.calibration={path}"])
    costs_of_pool = prepare(resolved).costs_of_pool["m", 0]
    costs = costs_of_pool.costs
    known, gpus = load_calibration(path), np.array([1, 2, 4, 8])
    for function in ("colocated", "decode"):
        cases = [case_of(row, each, clients, apart=function == "decode") for each in gpus.tolist()]
        told = told_by_runs(known, cases)
        longer = told.decode_longer * known.slowdown(row.case.group)
        near = costs_of_pool.near
        assert near is not None
        assert near.of_role(function).told(Shards.of(gpus)).half == pytest.approx(told.half, rel=1e-9)
        assert costs.of_role(function).pricer.slowdown_of(Shards.of(gpus)) == pytest.approx(longer, rel=1e-9)
        assert len(set(np.round(longer, 6))) == len(gpus)


def test_a_plan_predicts_and_simulates_its_role_as_an_estimate_of_it_does(tmp_path: Path) -> None:
    path, (row,) = own_calibration(tmp_path, 12.0), rows_of(tmp_path, 12.0)
    problem = tmp_path / "problem.yaml"
    text = PROBLEM.replace("gpus: 2", "gpus: 1").replace("15ms}", "15ms}, load: {concurrency: 8}")
    problem.write_text(text + "options: {modes: [colocated], max_batch: [8], chunk_tokens: [2048]}\n", encoding="utf-8")
    own, plain = (load_problem(problem, overrides=given) for given in ([f"costs.calibration={path}"], []))
    plans = [solve(resolved) for resolved in (own, plain)]
    known = load_calibration(path)
    (longer,) = told_by_runs(known, [row.case]).decode_longer * known.slowdown(row.case.group)
    (bare,) = evaluate([row.case], None)
    assert isinstance(bare, Estimate)
    assert longer * bare.tpot_s == pytest.approx(0.012, rel=0.02), "the run itself"
    steps = [(plan.evidence.steps or {})["colocated"].tpot_s_by_batch or {} for plan in plans]
    assert steps[0]["8"] / steps[1]["8"] == pytest.approx(longer, rel=1e-4)
    assert any("steps of `colocated` are" in line and "most like it" in line for line in plans[0].assumptions)
    load = Requests.open_stream([0.0], [1000], [200])
    fleets = [
        fleet_of_plan(plan, ServeDecision.model_validate(plan.decision), load, Policies(), calibration=name).fleet
        for plan, name in zip(plans, (path, None), strict=True)
    ]
    grids = [fleet.instances[0].grid for fleet in fleets]
    assert grids[0].decode_s == pytest.approx(longer * grids[1].decode_s, rel=1e-9)


def test_a_run_makes_its_own_deployment_as_sure_as_reruns_are(tmp_path: Path) -> None:
    """Margins of a confidence and the chance of a limit are those of what the run leaves to know, on its side of it."""
    path, problem = own_calibration(tmp_path, 12.0), tmp_path / "problem.yaml"
    text = (
        PROBLEM.replace("gpus: 2", "gpus: 1") + "options: {modes: [colocated], max_batch: [8], judged_by: queueing}\n"
    )

    def solved(calibration: str = path, confidence: str = "", clients: int = 8) -> Envelope:
        slo = f"40ms{confidence}}}, load: {{concurrency: {clients}}}"
        problem.write_text(text.replace("15ms}", slo), encoding="utf-8")
        return solve(load_problem(problem, overrides=[f"costs.calibration={calibration}"]))

    unsure, sure = (solved(each, ", confidence: 90%") for each in ("default", path))
    setting = prepare(load_problem(problem, overrides=[f"costs.calibration={path}"]))
    (slo,) = SharedStreams(setting, (1.0,), Budget(Limits(), 0.0)).slos(ServeDecision.model_validate(sure.decision))
    assert slo.tpot is not None
    assert slo.tpot.p95_s == pytest.approx(0.04 * math.exp(-sure.evidence.beliefs[1].high), rel=1e-9), "simulated ones"
    tpot = [float(re.findall(r"TPOT and latency by ([\d.]+)", " ".join(p.assumptions))[0]) for p in (sure, unsure)]
    assert 1.0 < tpot[0] < 1.0 + 4.0 * RERUN < 1.1 < tpot[1]
    near = solved()
    assert near.certificate.expected is not None
    assert near.certificate.confidence == CONFIDENCES[-1], "so sure that none expects more"
    beside = [solved(clients=clients).evidence.beliefs[1] for clients in (8, 4)]
    assert [belief.metric for belief in beside] == ["tpot_s", "tpot_s"]
    assert beside[0].high < 4.0 * RERUN < beside[1].high, "beside the run"
    decision = ServeDecision.model_validate(sure.decision)
    for off, kept in ((0.96, True), (1.04, False)):
        times = tuple(row.model_copy(update={"value": off * 0.04}) for row in sure.predictions)
        chances = chances_of(sure.model_copy(update={"predictions": times}), decision)
        (chance,) = (each.chance for each in chances if each.prediction.metric == "tpot_s")
        assert (chance > 0.9) if kept else (chance < 0.1)


@pytest.mark.parametrize(("function", "time"), [("colocated", "tpot"), ("colocated", "latency"), ("decode", "tpot")])
def test_a_confidence_divides_limits_by_what_is_left_to_know_of_each_layout(
    tmp_path: Path, function: str, time: str
) -> None:
    """What keeps a limit with it is, layout by layout, what keeps that limit over the layout's margin without."""
    path, problem = own_calibration(tmp_path, 12.0), tmp_path / "problem.yaml"
    mode = "colocated" if function == "colocated" else "disaggregated"
    text = PROBLEM.replace("gpus: 2", "nodes: 1") + f"options: {{modes: [{mode}]}}\n"
    limit_ms = {"tpot": 16.0, "latency": 4000.0}[time]

    def types(limit_ms: float, confidence: str = "") -> tuple[dict[InstanceShape, set[str]], ServeSetting]:
        slo = f"slo: {{{time}: {{mean: {limit_ms!r}ms}}{confidence}}}"
        problem.write_text(text.replace("slo: {ttft: 1s, tpot: 15ms}", slo), encoding="utf-8")
        setting = prepare(load_problem(problem, overrides=[f"costs.calibration={path}"]))
        by_shape: dict[InstanceShape, set[str]] = {}
        for each in list_candidates(setting, setting.targets, Tally()):
            if each.function == function:
                by_shape.setdefault(each.shape, set()).add(each.name)
        return by_shape, setting

    sure, setting = types(limit_ms, ", confidence: 90%")
    near = setting.costs_of_pool["m", 0].near
    assert near is not None
    margins = {}
    for shape in list(sure)[:4]:
        (margins[shape],) = near.of_role(function).margin(Shards.of(*shape.all_degrees), 0.9).tolist()
        kept, _ = types(limit_ms / margins[shape])
        assert kept[shape] == sure[shape]
    assert len(set(margins.values())) > 1
    assert sure != types(limit_ms)[0]


def test_other_kinds_price_layouts_by_runs_at_any_load_and_executed_shards_by_none(tmp_path: Path) -> None:
    path, (row,) = own_calibration(tmp_path, 12.0), rows_of(tmp_path, 12.0)
    case, known, gpus = row.case, load_calibration(path), np.array([1.0, 4.0])
    price = partial(make_pricer, case.pool, case.arch, engine="vllm", version=None, calibration=known, store=None)
    whole, *others = (each.slowdown_of(Shards.of(gpus)) for each in (price(), price(bare=True), price(alike=True)))
    layout = np.column_stack((np.log2(gpus), np.log2(gpus), np.zeros((2, 3))))
    told = TPOT.told(known.runs[case.group].seen, np.full(2, np.nan), layout, np.full((2, 2), np.nan))
    assert whole == pytest.approx(np.exp(told.mean), rel=1e-12)
    assert others == [1.0, known.slowdown(case.group)]


@pytest.mark.parametrize(
    ("edits", "counts"),
    [
        ({}, True),
        ({"objective.expected": "false"}, False),
        ({"costs.calibration": "default"}, False),
        ({"workloads.0.slo.confidence": "0.9"}, False),
        ({"workloads.0.slo": "{}"}, False),
        ({"objective": "{minimize: gpus}", "workloads.0.load": "{rate: 1/s}"}, False),
        ({"models.m.name": "Qwen/Qwen2.5-14B-Instruct"}, False),
        ({"options.judged_by": "simulation"}, False),
    ],
)
def test_own_runs_have_a_solve_pick_by_what_is_expected(tmp_path: Path, edits: dict[str, str], counts: bool) -> None:
    problem = tmp_path / "problem.yaml"
    problem.write_text(PROBLEM, encoding="utf-8")
    given = {"costs.calibration": own_calibration(tmp_path, 12.0)} | edits
    assert (
        counts_expected(load_problem(problem, overrides=[f"{key}={value}" for key, value in given.items()])) == counts
    )


def test_a_run_of_an_open_load_tells_its_own_deployment_most(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, 12.0)
    ran = replace(row.case, clients=0, rate_per_s=5.0)
    (bare,) = evaluate([ran], None)
    assert isinstance(bare, Estimate)
    own = believe([replace(row, case=ran, tpot_s=1.1 * bare.tpot_s)], "default", None)
    path = tmp_path / "open.yaml"
    path.write_text(yaml.safe_dump(document_of(own, "default", date="2026-01-31", sources=["a"])), encoding="utf-8")
    known = load_calibration(str(path))
    told = told_by_runs(known, [ran, replace(ran, rate_per_s=10.0), replace(ran, rate_per_s=80.0)])
    longer = told.decode_longer * known.slowdown(ran.group)
    assert longer[0] == pytest.approx(1.1, rel=0.02)
    assert longer[0] > longer[1] > longer[2] > 1.0
    assert told.half[0] < 4.0 * RERUN < told.half[1] < told.half[2]


def test_replicas_alike_are_one_deployment_with_its_share_of_the_load(tmp_path: Path) -> None:
    path, (row,) = own_calibration(tmp_path, 12.0), rows_of(tmp_path, 12.0)
    four = replace(row.case, decode=replace(row.case.decode, replicas=4), gpus=4, clients=32)
    once, again = told_by_runs(load_calibration(path), [row.case, four]).decode_longer
    assert once == again


def test_runs_of_groups_that_were_fitted_to_tell_nothing_more(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, 20.0, model="meta-llama/Llama-3.3-70B-Instruct", weights="fp8")
    if rows[0].case.group not in load_calibration().groups:
        pytest.skip("the shipped costs were fitted to other groups")
    with pytest.raises(PlannerError, match="fitted to runs of its group"):
        believe(rows, "default", None)
    with pytest.raises(PlannerError, match="does not tell how far estimates err"):
        believe(rows_of(tmp_path, 20.0), "none", None)


@pytest.mark.parametrize("runs", [{"g": {"mean": 0.1}}, {"g": {"mean": 0.1, "deviation": -1, "runs": 1}}, {"g": 3}])
def test_beliefs_that_cannot_be_are_refused_at_their_line(runs: object, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"schema": "planner.calibration/1", "runs": runs}))
    with pytest.raises(PlannerError) as refused:
        load_calibration(str(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "seen",
    [
        3,
        [{"load": 3.0}],
        [{"load": 3.0, "layout": [0.0, 0.0], "lengths": [1000.0, 200.0], "error": 0.1}],
        [{"load": 3.0, "layout": [0.0] * 5, "lengths": [1000.0, 200.0], "error": "much"}],
    ],
)
def test_what_is_no_run_of_a_group_is_refused_where_it_stands(tmp_path: Path, seen: object) -> None:
    path = tmp_path / "own.yaml"
    bias = {"mean": 0.1, "deviation": 0.1, "runs": 1, "seen": seen}
    path.write_text(yaml.safe_dump({"schema": "planner.calibration/1", "runs": {"g": bias}}), encoding="utf-8")
    with pytest.raises(PlannerError, match=r"own\.yaml:\d+: .* is no run of a group"):
        load_calibration(str(path))
