"""Alternatives, parts fixed by hand and plans that somebody names, against every combination solved by itself."""

import json
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.alternatives.axes import AXES, fixed, read_wishes, with_wishes
from planner.alternatives.preferences import with_fewest_shapes
from planner.alternatives.ranking import Alternatives, alternatives
from planner.alternatives.why_not import why_not
from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.costs.rates.forms import PLAIN, STAGES
from planner.errors import Infeasible
from planner.kinds.registry import find_kind
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import load_problem
from planner.plan.findings import passed
from planner.plan.instance_types import role_degrees, unlimited_name
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem
from planner.progress import Limits

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SERVE, TRAIN = "serve-qwen3-32b-h200", "train-gpt3-175b-megascale"
SMALL_SERVE = (
    "cluster.pools.0.gpus=8",
    "options.max_batch=[16,64]",
    "options.chunk_tokens=[2048]",
    "options.tp=[1,2]",
    "options.pp=[1]",
    "options.modes=[disaggregated]",
)
SMALL_TRAIN = ("options.search.tp=[4,8]", "options.search.micro_batch=[1]", "options.search.vpp=[1,2]")


def _problem(name: str, *overrides: str) -> Resolved:
    return load_problem(EXAMPLES / f"{name}.yaml", overrides=overrides)


def _value(plan: Envelope) -> float:
    value = plan.certificate.objective.value
    assert value is not None
    return value


def _types(plan: Envelope) -> frozenset[str]:
    roles = ServeDecision.model_validate(plan.decision).roles
    return frozenset(unlimited_name(role.function, role.model, role_degrees(role), role.pool) for role in roles)


@pytest.fixture(scope="module")
def served() -> Alternatives:
    return alternatives(_problem(SERVE, *SMALL_SERVE), 3, Limits())


def test_serving_alternatives_are_the_best_of_every_set_of_instance_types(served: Alternatives) -> None:
    resolved = _problem(SERVE, *SMALL_SERVE)
    every = [f"{role}/qwen3/{tp}/h200" for role in ("prefill", "decode") for tp in ("tp1", "tp2")]
    plans: list[tuple[float, frozenset[str]]] = []
    for size in range(len(every)):
        for left_out in combinations(every, size):
            options = {**resolved.problem.options, "without": list(left_out)}
            try:
                plan = solve(_with(resolved, options), Limits(explain=False), level="static")
            except Infeasible:
                continue
            plans.append((_value(plan), _types(plan)))
    listed: list[tuple[float, frozenset[str]]] = []
    for value, types in sorted(plans, key=lambda row: (-round(row[0], 9), len(row[1]))):
        if len(listed) < 3 and not any(other <= types for _, other in listed):
            listed.append((value, types))
    assert [_value(plan) for plan in served.plans] == pytest.approx([value for value, _ in listed])


def test_alternatives_say_what_solve_takes_where_it_is_not_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = EXAMPLES.parent / "planner" / "costs" / "rates" / "calibration.yaml"
    costs = yaml.safe_load(shipped.read_text(encoding="utf-8")) | {"forms": {"prefill": [STAGES], "decode": [PLAIN]}}
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump(costs), encoding="utf-8")
    given = (
        *SMALL_SERVE,
        "options.tp=[1]",
        "options.pp=[1,2]",
        "objective.expected=false",
        f"costs.calibration={tmp_path / 'costs.yaml'}",
    )
    ranked, own = alternatives(_problem(SERVE, *given), 1, Limits()), solve(_problem(SERVE, *given), level="static")
    assert {role.parallelism.pp for role in ranked.plans[0].roles} == {1}
    assert ranked.preferred is not None
    assert ranked.preferred.decision == own.decision != ranked.plans[0].decision
    overrides = [word for override in given for word in ("--set", override)]
    assert main(["solve", str(EXAMPLES / f"{SERVE}.yaml"), *overrides, "--alternatives", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"{100 * (1 - _value(own) / _value(ranked.plans[0])):.2f} % worse by the costs alone, as plan 1 has no" in shown
    )


def _with(resolved: Resolved, options: dict[str, Any]) -> Resolved:
    from planner.api import with_options

    return with_options(resolved, options)


def test_every_alternative_is_a_whole_plan_that_passes_its_check(served: Alternatives) -> None:
    assert served.loss(0) == 0.0
    assert [served.loss(place) for place in range(3)] == sorted(served.loss(place) for place in range(3))
    for plan in served.plans:
        decision = find_kind("serve").decision.model_validate(plan.decision)
        assert passed(check_plan(plan, decision))


def test_training_alternatives_are_the_best_of_every_combination_of_degrees() -> None:
    resolved = _problem(TRAIN, *SMALL_TRAIN)
    ranked = alternatives(resolved, 6, Limits())
    values = {}
    for tp, pp in product((4, 8), (1, 2, 4, 8, 16, 32)):
        with suppress(Infeasible):
            values[tp, pp] = _value(solve(fixed(resolved, [f"tp={tp},pp={pp}"]), level="static"))
    assert [_value(plan) for plan in ranked.plans] == pytest.approx(sorted(values.values())[:6])


def test_a_part_fixed_by_hand_is_in_the_plan_and_in_the_problem_that_it_records() -> None:
    plan = solve(
        fixed(_problem(SERVE, "cluster.pools.0.gpus=8"), ["role.prefill.tp=2", "mode=disaggregated"]), level="static"
    )
    roles = ServeDecision.model_validate(plan.decision).roles
    assert {role.parallelism.tp for role in roles if role.function == "prefill"} == {2}
    assert {role.function for role in roles} == {"prefill", "decode"}
    assert plan.inputs["options"]["roles"] == {"prefill": {"tp": [2]}}  # type: ignore[index,call-overload]  # parsed JSON


def test_fewer_instance_types_within_a_stated_loss() -> None:
    resolved = _problem(SERVE, *SMALL_SERVE)
    best, few = solve(resolved, level="static"), solve(with_fewest_shapes(resolved, 0.5, Limits()), level="static")
    assert len(_types(few)) <= len(_types(best))
    assert _value(best) * 0.5 <= _value(few) <= _value(best)
    strict = solve(with_fewest_shapes(resolved, 0.0, Limits()), level="static")
    assert _value(strict) == pytest.approx(_value(best))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("tp=2", "% worse"),
        ("tp=3", "do not divide"),
        ("role.decode.tp=1,mode=disaggregated", "% worse"),
        ("pp=16", "more devices than"),
    ],
)
def test_a_plan_that_somebody_names_is_priced_or_named_with_its_rule(asked: str, told: str) -> None:
    plan = solve(_problem(SERVE, "cluster.pools.0.gpus=8"), level="static")
    decision = ServeDecision.model_validate(plan.decision)
    (fact,) = why_not(plan, decision, asked)
    assert told in fact.what
    if "loss" in fact.figures:
        other = solve(fixed(_problem(SERVE, "cluster.pools.0.gpus=8"), [asked]), level="static")
        assert fact.figures["loss"] == pytest.approx(1.0 - _value(other) / _value(plan))


@pytest.mark.parametrize("kind", sorted(AXES))
def test_every_axis_of_a_kind_is_an_option_that_it_takes(kind: str) -> None:
    options = find_kind(kind).options
    words = {
        "mode": "colocated",
        "schedule": "1f1b",
        "recompute": "full",
        "arrangement": "colocated",
        "synchrony": "synchronous",
    }
    needed: dict[str, dict[str, Any]] = {
        "train": {"global_batch": 8, "sequence_tokens": 8},
        "rl": {"algorithm": "grpo", "prompts": 4},
        "experts": {"ep": 8, "slots_per_rank": 9},
    }
    base = needed.get(kind, {})
    problem = Problem.model_validate({"kind": kind, "options": base})
    for axis in AXES[kind]:
        (wish,) = read_wishes([f"{axis}={words.get(axis.rpartition('.')[2], 1)}"], problem, "--fix")
        options.model_validate(with_wishes(base, [wish]))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("solve", "{problem}", "--fix", "tq=4"), "unknown axis `tq`"),
        (("solve", "{problem}", "--fix", "tp"), "no `axis=value`"),
        (("solve", "{problem}", "--alternatives", "0"), "must be 1 at least"),
        (("solve", "{problem}", "--alternatives", "2", "--level", "verified"), "ranked by formulas"),
        (("solve", "{problem}", "--alternatives", "2", "--fewest-shapes", "1%"), "goes with no"),
        (("explain", "{plan}", "--why-not", "tp=1", "--deep"), "goes with neither"),
        (("explain", "{plan}", "--why-not", "role.job.tq=4"), "unknown axis"),
    ],
)
def test_bad_wishes_are_refused_in_one_sentence(
    arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "problem": EXAMPLES / f"{SERVE}.yaml",
        "plan": EXAMPLES.parent / "tests" / "plans" / "train.json",
    }
    assert main([argument.format(**names) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "hint:" in error


def test_a_part_that_no_plan_can_have_is_named_with_its_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", str(EXAMPLES / f"{SERVE}.yaml"), "--fix", "tp=7", "--level", "static"]) == 1
    assert "tp=7: " in capsys.readouterr().out
    assert main(["solve", str(EXAMPLES / "train-gpt3-175b-megascale.yaml"), "--fix", "tp=7"]) == 1
    assert "tp does not divide the 96 attention heads" in capsys.readouterr().out


def test_alternatives_are_written_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "plan.json"
    overrides = [part for text in SMALL_SERVE for part in ("--set", text)]
    assert main(["solve", str(EXAMPLES / f"{SERVE}.yaml"), *overrides, "--alternatives", "2", "-o", str(output)]) == 0
    assert "worse by" in capsys.readouterr().out
    values = [
        json.loads(path.read_text())["certificate"]["objective"]["value"] for path in (output, tmp_path / "plan.2.json")
    ]
    assert values[0] >= values[1]
