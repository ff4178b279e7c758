"""Problems as users write them: overrides, origins of values, paths, and the words of validation errors."""

import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

import planner
from planner.documents.read import Document, parse_document
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.load.json_schema import plan_schema, problem_schema
from planner.load.merged import merged_config
from planner.load.overrides import apply_overrides
from planner.load.problems import load_problem, override_problem
from planner.problem.schema import Problem
from planner.schema.base import Spec, Where, planner_error
from planner.schema.keys import known_keys, short_names, written_names

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "serve-qwen3-32b-h200.yaml"


def document(text: str) -> Document:
    return parse_document(text, "p.yaml")


PROBLEMS = sorted(path for path in (ROOT / "examples").glob("*.yaml") if not path.name.startswith("sweep-"))


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    resolved = load_problem(path)
    assert resolved.problem.name == path.stem
    reads = find_kind(resolved.problem.kind).reads  # graphs of functions stand on no GPUs
    assert bool(resolved.pools) is reads.pools(resolved.problem)
    models = reads.models(resolved.problem) and resolved.problem.kind != "fleet"  # whose jobs have the models
    assert bool(resolved.models) is models


def test_the_public_functions_are_found_and_no_others() -> None:
    assert planner.load_problem is load_problem
    assert {"solve", "load_plan", "Plan", "estimate", "simulate", "sweep", "calibrate", "audit"} <= set(dir(planner))
    assert all(callable(getattr(planner, name)) for name in planner.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="no attribute `slove`"):
        _ = planner.slove


def test_an_override_of_a_workload_applies_to_every_workload() -> None:
    text = "workloads: [{name: a}, {name: b, slo: {tpot: 20ms}}]"
    data = override_problem(document(text), ["slo.ttft=200ms"]).data
    assert data == {
        "workloads": [{"name": "a", "slo": {"ttft": "200ms"}}, {"name": "b", "slo": {"tpot": "20ms", "ttft": "200ms"}}]
    }


def test_an_override_reads_its_value_as_yaml() -> None:
    data = apply_overrides(document("a: {b: [1, 2]}"), ["a.b.1={c: [3]}", "d=true", "e=", "f=1e3", "g=null"]).data
    assert data == {"a": {"b": [1, {"c": [3]}]}, "d": True, "e": "", "f": 1000.0, "g": None}


def test_indices_in_brackets_and_after_dots_mean_the_same() -> None:
    text = "a: [{b: [[1, 2], [3, 4]]}]"
    brackets = apply_overrides(document(text), ["a[0].b[1][0]=9"])
    other = apply_overrides(document(text), ["a.0.b.1.0=9"])
    assert brackets.data == other.data == {"a": [{"b": [[1, 2], [9, 4]]}]}


def test_a_key_that_holds_dots_is_found() -> None:
    data = apply_overrides(document("models: {Qwen2.5: {weights: fp8}}"), ["models.Qwen2.5.weights=bf16"]).data
    assert data == {"models": {"Qwen2.5": {"weights": "bf16"}}}


def test_an_override_replaces_the_other_name_of_the_same_quantity() -> None:
    text = "cluster: {pools: [{gpu: h200, usd_per_gpu_hour: 2}]}"
    data = override_problem(document(text), ["cluster.pools.0.price=3USD/h"]).data
    assert data["cluster"]["pools"][0] == {"gpu": "h200", "price": "3USD/h"}


def test_a_later_override_wins_and_the_document_stays_as_it_was() -> None:
    source = document("a: 1")
    overridden = apply_overrides(source, ["a=2", "a=3"])
    assert overridden.data == {"a": 3}
    assert source.data == {"a": 1}
    assert overridden.origins == {("a",): "--set a"}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers())
def test_an_override_sets_exactly_its_path(keys: list[str], value: int) -> None:
    data = apply_overrides(document("{}"), [f"{'.'.join(keys)}={value}"]).data
    for key in keys:
        assert list(data) == [key]
        data = data[key]
    assert data == value


def test_overrides_reach_the_problem() -> None:
    resolved = load_problem(EXAMPLE, overrides=["slo.ttft=300ms", "cluster.pools.0.gpus=16"], seed=7)
    slo = resolved.problem.workloads[0].slo
    assert slo.ttft is not None
    assert slo.ttft.statistics() == {"p95": pytest.approx(0.3)}
    assert resolved.pools[0].num_gpus == 16
    assert resolved.problem.seed == 7


@pytest.mark.parametrize(
    "override",
    [
        "limits.price=-4USD/h",  # a short name, whose error is about the SI name
        "kind=train",  # the options of the file are then those of another kind
        'models.other={"name": "Qwen/Qwen3-8B"}',  # the workload of the file then names no model
        "workloads.0.load.concurrency=4",  # beside the rate of the file
        "cluster.pools.0.gpu=h20000",
        "current=plan.json",
        "workloads.0.slo.ttft=200",
    ],
)
def test_an_error_that_an_override_makes_names_the_override(tmp_path: Path, override: str) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text(EXAMPLE.read_text().replace("    slo:", "    load: {rate: 1/s}\n    slo:"))
    load_problem(path, overrides=["name=other"])
    with pytest.raises(PlannerError) as raised:
        load_problem(path, overrides=["name=other", override])
    assert raised.value.where.partition(": ")[0] == f"--set {override.partition('=')[0]}"


def test_paths_in_a_file_are_relative_to_it_and_flags_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text(f"{EXAMPLE.read_text()}costs: {{profiles: [tables]}}\n")
    assert load_problem(path).problem.costs.profiles == (str(tmp_path / "tables"),)
    assert load_problem(path, profiles=["mine"]).problem.costs.profiles == ("mine",)
    path.write_text(f"{EXAMPLE.with_name('rl-horizon-7b.yaml').read_text()}current: now.json\n")
    assert load_problem(path).problem.current == str(tmp_path / "now.json")


def test_the_merged_problem_names_the_origin_of_every_value() -> None:
    rows = {path: (value, origin) for path, value, origin in merged_config(EXAMPLE, ["slo.ttft=300ms"], seed=3)}
    assert rows["workloads.0.slo.ttft.p95_s"] == (0.3, "--set slo.ttft")
    assert rows["workloads.0.slo.tpot.p95_s"] == (0.02, f"{EXAMPLE}:20")
    assert rows["workloads.0.slo.tpot.p99_s"] == (None, "default")
    assert rows["cluster.pools.0.gpus"] == (32, f"{EXAMPLE}:13")
    assert rows["engine.name"] == ("vllm", "default")
    assert rows["seed"] == (3, "--seed or PLANNER_SEED")


def test_values_written_with_units_keep_their_origin(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(EXAMPLE.read_text().replace("gpus: 32", "gpus: 32\n      price: 2USD/h"))
    rows = {field: origin for field, _, origin in merged_config(path, [])}
    assert rows["cluster.pools.0.usd_per_gpu_hour"] == f"{path}:14"


def test_known_keys_follow_the_document_through_lists_maps_and_unions() -> None:
    data = {"models": {"m": {}}, "workloads": [{"input_tokens": {"low": 1}}]}
    known = known_keys(Problem, data)
    assert "schema" in known[()]
    assert "kv_cache" in known[("models", "m")]
    assert "slo" in known[("workloads", 0)]
    assert {"low", "high", "mean", "cv", "trace"} <= set(known[("workloads", 0, "input_tokens")])


def test_short_names_are_found_wherever_they_stand() -> None:
    shorts = short_names(Problem)
    assert shorts["price"] == {"usd_per_gpu_hour", "usd_per_hour"}
    assert shorts["rate"] == {"rate_per_s"}


class _Low(Spec):
    low: int
    high: int


class _Mean(Spec):
    mean: Annotated[float, Field(gt=0)]


class _Sample(Spec):
    sizes: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)] = (1,)
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    word: Annotated[str, Field(min_length=2)] = "ab"
    choice: Literal["red", "green"] = "red"
    only: Literal["one"] = "one"
    form: Annotated[int, Field(ge=1)] | _Low | _Mean = 1
    flag: bool = False
    named: dict[str, _Low] = {}  # noqa: RUF012 - pydantic copies it


@pytest.mark.parametrize(
    ("data", "where", "what", "hint"),
    [
        ({"sizes": []}, "sizes", "needs at least 1 entry, has 0", "give at least 1 entry"),
        ({"sizes": [1, 2, 3]}, "sizes", "needs at most 2 entries, has 3", "give at most 2 entries"),
        ({"sizes": 3}, "sizes", "must be a list, found 3", "write a list"),
        ({"sizes": ["x"]}, "sizes.0", "must be a whole number, found 'x'", "write a whole number"),
        ({"share": 1.5}, "share", "must be at most 1, found 1.5", "write a value at most 1"),
        ({"share": "most"}, "share", "must be a number, found 'most'", "write a number"),
        ({"word": "a"}, "word", "must have at least 2 characters", "write text of at least 2 characters"),
        ({"word": 7}, "word", "must be text, found 7", "write text"),
        ({"choice": "gren"}, "choice", "must be one of `red`, `green`, found 'gren'", "did you mean `green`"),
        ({"choice": 7}, "choice", "must be one of `red`, `green`, found 7", "write one of `red`, `green`"),
        ({"only": "two"}, "only", "must be `one`, found 'two'", "write `one`"),
        ({"form": "x"}, "form", "must be a whole number or a mapping, found 'x'", "write a whole number or a mapping"),
        ({"form": 0}, "form", "must be at least 1, found 0", "write a value at least 1"),
        ({"form": {"low": 1}}, "form", "`high` is missing", "add `high:`"),
        ({"form": {"low": 1, "hihg": 2}}, "form.hihg", "unknown key `hihg`", "did you mean `high`? "),
        ({"form": {"mean": -1}}, "form.mean", "must be above 0, found -1", "write a value above 0"),
        ({"flag": "maybe"}, "flag", "must be true or false, found 'maybe'", "write true or false"),
        ({"named": {"Low": {"low": 1}}}, "named.Low", "`high` is missing", "add `high:`"),
        ({"int": 3}, "int", "unknown key `int`", "the keys here are "),
        ({"[a]": 3}, "[a]", "unknown key `[a]`", "the keys here are "),
    ],
)
def test_validation_errors_are_said_in_our_own_words(data: dict[str, object], where: str, what: str, hint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Sample.model_validate(data)
    error = planner_error(caught.value, Where({}, "file"), known_keys(_Sample, data))
    assert error.where == f"file: {where}"
    assert error.what.startswith(what)
    assert error.hint.startswith(hint)


def test_written_names_hold_aliases_and_short_names() -> None:
    assert "schema" in written_names(Problem)
    assert "schema_" not in written_names(Problem)


@pytest.mark.parametrize("make", [problem_schema, plan_schema])
def test_json_schema_binds_each_kind_and_resolves_every_reference(make: object) -> None:
    assert callable(make)
    schema = make()
    assert {entry["if"]["properties"]["kind"]["const"] for entry in schema["allOf"]} >= {"serve", "train", "place"}
    text = json.dumps(schema)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}:
        assert reference in schema["$defs"]


def test_a_problem_of_a_kind_that_is_not_solved_says_so() -> None:
    from planner.kinds.registry import find_kind, kind_names

    unsolved = [name for name in kind_names() if not find_kind(name).solvable]
    if not unsolved:
        pytest.skip("every kind can be solved")
    text = EXAMPLE.read_text().replace("kind: serve", f"kind: {unsolved[0]}")
    options = {"train": {"global_batch": 1, "sequence_tokens": 1}, "experts": {"ep": 1, "slots_per_rank": 1}}
    source = document(text)
    from planner.load.problems import resolve_document

    given = [f"options={json.dumps(options.get(unsolved[0], {}))}"]
    with pytest.raises(PlannerError, match="can be checked but not solved"):
        planner.solve(resolve_document(source, Path(), overrides=given))
