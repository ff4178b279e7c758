"""Names that users give stay single words of the launched commands, whatever they hold."""

import tempfile
from pathlib import Path

import pytest
from emit_plans import Case, RolePlan
from emit_runs import Call, Stage
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.emit.registry import emit
from planner.errors import PlannerError

MODEL, NODES = "MODEL-NAME", ("NODE-NAME-A", "NODE-NAME-B")
PREFILL = RolePlan("prefill", 1, {"tp": 2})
DECODE = RolePlan("decode", 1, {"dp": 2, "ep": 2})
HOSTILE = [
    "it's",
    'say "hi"',
    "two words",
    "$(touch broken)",
    "`touch broken`",
    "${HOME}",
    "a;touch broken",
    "a&&touch broken&",
    "a|tee broken",
    ">broken",
    "a # b",
    "'; touch broken; '",
    '"; touch broken; "',
    "}; touch broken; {",
    "\\",
    "trailing \\",
    "!!",
    "*",
    "~root",
    "{a,b}",
    "naïve-模型-🚀",
    "\u2028next",
    "%s%n",
    "=x",
]
letters = st.sampled_from("abc '\"$()`\\;&|<>{}*?#!~=%-_/.:@\u00e9\u6a21\U0001f680")
names = st.text(letters, min_size=1, max_size=24).filter(lambda name: not name.startswith("-"))
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def plan_files(target: str, model: str, nodes: tuple[str, str], name: str = "plan") -> dict[str, str]:
    case = Case((PREFILL, DECODE), {"default": {"name": model}}, 2, nodes, gpus_per_node=2, name=name)
    return emit(*case.build(), target)


def run_all(files: dict[str, str]) -> dict[str, list[Call]]:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        return {name: stage.run(text) for name, text in files.items()}


def renamed(call: Call, model: str, nodes: tuple[str, str]) -> tuple[str, ...]:
    arguments = (argument.replace(MODEL, model) if argument == MODEL else argument for argument in call.arguments)
    return tuple(argument.replace(NODES[0], nodes[0]).replace(NODES[1], nodes[1]) for argument in arguments)


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def plain(request: pytest.FixtureRequest) -> tuple[str, dict[str, list[Call]]]:
    """The calls that a plan with harmless names makes."""
    return request.param, run_all(plan_files(request.param, MODEL, NODES))


def assert_same_calls(plain: tuple[str, dict[str, list[Call]]], model: str, nodes: tuple[str, str], name: str) -> None:
    target, expected = plain
    started = run_all(plan_files(target, model, nodes, name))
    assert set(started) == set(expected) == {"launch-node-00.sh", "launch-node-01.sh", "launch-router.sh"}
    for file, calls in expected.items():
        assert calls
        assert [call.arguments for call in started[file]] == [renamed(call, model, nodes) for call in calls]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_arrives_as_one_argument_and_runs_nothing(
    plain: tuple[str, dict[str, list[Call]]], name: str
) -> None:
    assert_same_calls(plain, name, (name, f"{name}2"), name)


@given(model=names, node=names, name=any_text)
@settings(max_examples=10, deadline=None)
@example(model="a", node="b", name="x\ntouch broken\n")
@example(model="a", node="b", name="x\r\x0b\x0c\x1b[0m\u0085\u2028\u2029touch broken")
def test_any_names_arrive_as_they_are_and_run_nothing(
    plain: tuple[str, dict[str, list[Call]]], model: str, node: str, name: str
) -> None:
    assert_same_calls(plain, model, (node, f"{node}2"), name)


@given(name=any_text)
def test_a_plan_name_adds_no_line_to_a_script(name: str) -> None:
    plain_lines = plan_files("vllm", MODEL, NODES)["launch-node-00.sh"].count("\n")
    text = plan_files("vllm", MODEL, NODES, name)["launch-node-00.sh"]
    assert text.count("\n") == plain_lines == len(text.splitlines())


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "name", ["--trust-remote-code", "-x", "two\nlines", "bell\a", "zero\0", "escape\x1b[0m", "\x85"]
)
def test_names_that_no_command_can_carry_are_refused(target: str, name: str) -> None:
    with pytest.raises(PlannerError, match=r"flag|must not carry"):
        plan_files(target, name, NODES)
    with pytest.raises(PlannerError, match=r"flag|must not carry"):
        plan_files(target, MODEL, (name, "b"))


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_text_outside_unicode_is_refused(target: str) -> None:
    case = Case((PREFILL, DECODE), {"default": {"name": "a"}}, 2, NODES, gpus_per_node=2)
    envelope, decision = case.build()
    inputs = case.problem() | {"models": {"default": {"name": "half \ud800"}}}
    with pytest.raises(PlannerError):
        emit(envelope.model_copy(update={"inputs": inputs}), decision, target)
