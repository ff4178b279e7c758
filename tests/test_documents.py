"""Documents: what plain YAML and JSON mean, where errors point, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from counted_calls import calls_in
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.read import Document, load_document, parse_document
from planner.errors import PlannerError

_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), max_size=12)
_ONE_LINE_TEXT = _TEXT.filter(lambda text: not set(text) & {"\u2028", "\u2029"})  # line breaks to YAML 1.1, not to JSON

A_HUNDRED_LINES = "".join(f"key_{n}: {{a: 200ms, b: {n}, c: [1, 2.5, x]}}\n" for n in range(100))


def json_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | text,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
        max_leaves=20,
    )


def error_of(text: str, source: str = "job.yaml") -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        parse_document(text, source)
    return caught.value


@given(json_values(_TEXT))
def test_json_text_reads_back_as_the_same_value(value: object) -> None:
    assert parse_document(json.dumps(value), "x").data == value


@given(json_values(_ONE_LINE_TEXT), st.sampled_from([None, 2, "\t"]))
def test_json_read_as_yaml_and_as_json_agree_on_value_and_lines(value: object, indent: int | str | None) -> None:
    text = json.dumps({"k": value}, indent=indent, ensure_ascii=False)
    by_json = parse_document(text, "x")
    by_yaml = parse_document("# read as YAML\n" + text, "x")
    assert by_json.data == by_yaml.data
    assert {path: line + 1 for path, line in by_json.lines.items()} == by_yaml.lines


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("on", "on"),
        ("no", "no"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("1e3", 1000.0),
        ("1.5e-3", 0.0015),
        (".5", 0.5),
        ("5.", 5.0),
        ("12_000", 12000),
        ("1_000.5", 1000.5),
        ("0x1F", 31),
        ("010", 10),
        ("-7", -7),
        ("+7", 7),
        ("1.2.3", "1.2.3"),
        ("200ms", "200ms"),
        ("1_", "1_"),
        ("٣", "٣"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
        ("! 12", "12"),
    ],
)
def test_plain_yaml_scalars_have_their_yaml_1_2_value(written: str, value: object) -> None:
    data = parse_document(f"k: {written}\n", "x").data["k"]
    assert data == value
    assert type(data) is type(value)


def test_a_python_tag_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    problem = error_of(f"a: 1\nb: !!python/object/apply:os.system ['touch {witness}']\n")
    assert problem.where == "job.yaml:2"
    assert "!!python/object/apply:os.system" in problem.what
    assert not witness.exists()


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "key `a` appears twice"),
        ('{\n "a": 1,\n "b": {"c": 1,\n "c": 2}}', 4, "key `c` appears twice"),
        ("a: 1\n3: x\n", 2, "a key must be text, found 3"),
        ("true: x\n", 1, "a key must be text, found true"),
        ("a:\n  ? [x, y]\n  : 1\n", 2, "a key must be text, found a list or a mapping"),
        ("a: 1\n---\nb: 2\n", 2, "several documents"),
        ("a: [1, 2\nb: 3\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("a: *b\n", 1, "alias `*b` names nothing"),
        ("a: &b\n  - *b\n", 2, "alias `*b` names nothing"),
        ("a: 1\nb: .inf\n", 2, "not a finite number"),
        ("a: 1e999\n", 1, "too large"),
        ("a: !!int x\n", 1, "not a value of tag `!!int`"),
        ("a: !point [1, 2]\n", 1, "tag `!point` is not allowed"),
        ("a: !!set {x, y}\n", 1, "tag `!!set` is not allowed"),
        ("a: 1\nb: \x00\n", 2, "U+0000"),
        ("a: 1\nb: \ud800\n", 2, "U+D800"),
        ('a: 1\nb: ["x\\0y"]\n', 2, "U+0000"),
        ('a: 1\n"x\\0y": 2\n', 2, "U+0000"),
        ("a: " + "9" * 309, 1, "309 digits is too large"),
        ("a: -" + "9" * 308, 1, "309 digits is too large"),
        ("a: 0x" + "f" * 254, 1, "256 digits is too large"),
        ("[" * 100_000, 1, "nested more than 200"),
        ("- " * 100_000, 1, "nested more than 200"),
    ],
)
def test_bad_yaml_is_one_error_with_its_line_and_a_hint(text: str, line: int, what: str) -> None:
    problem = error_of(text)
    assert problem.where == f"job.yaml:{line}"
    assert what in problem.what
    assert problem.hint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"a": \n NaN}', "not a finite number"),
        ('{"a": \n -Infinity}', "not a finite number"),
        ('{"a": \n 1e999}', "too large"),
        ('{"a": \n "\\ud800"}', "surrogate"),
        ('{"a": \n "x\\u0000y"}', "U+0000"),
        ('{"a": \n ' + "9" * 309 + "}", "309 digits is too large"),
        ("\n" + "[" * 250 + "]" * 250, "nested more than 200"),
        ("\n" + "[" * 100_000 + "]" * 100_000, "nested more than 200"),
    ],
)
def test_json_that_a_document_may_not_hold_is_refused(text: str, what: str) -> None:
    problem = error_of(text, "plan.json")
    assert what in problem.what
    assert problem.where == "plan.json:2"
    assert problem.hint


@pytest.mark.parametrize("text", ["", " \n", "# only a comment\n"])
def test_an_empty_document_is_refused(text: str) -> None:
    assert error_of(text).what == "is empty"


def test_a_truncated_json_file_is_an_error_of_json_with_its_line() -> None:
    problem = error_of('{"a": 1,\n "b": [1, 2', "plan.json")
    assert problem.where == "plan.json:2"
    assert "not valid JSON" in problem.what


def test_brackets_inside_text_do_not_count_as_nesting() -> None:
    assert parse_document(json.dumps({"a": "[" * 1000}), "x").data == {"a": "[" * 1000}


def test_aliases_that_multiply_are_refused_quickly() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    assert "aliases repeat" in error_of(bomb).what
    assert calls_in(lambda: error_of(bomb)) < 5_000  # written out they would be 9**12 values


def test_an_alias_repeats_its_anchor() -> None:
    document = parse_document("a: &x {k: [1, 2]}\nb: *x\n", "x")
    assert document.data == {"a": {"k": [1, 2]}, "b": {"k": [1, 2]}}
    assert document.lines[("b",)] == 2
    assert document.lines[("b", "k", 1)] == 1


def test_where_names_the_deepest_part_that_exists() -> None:
    document = parse_document("slo:\n  ttft: 200ms\npools:\n  - name: a\n  - name: b\n    gpus: 8\n", "job.yaml")
    assert document.where() == "job.yaml:1"
    assert document.where(("slo", "ttft")) == "job.yaml:2"
    assert document.where(("pools", 1, "gpus")) == "job.yaml:6"
    assert document.where(("pools", 1, "price", "unit")) == "job.yaml:5"
    assert document.where(("nothing",)) == "job.yaml:1"


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "problem.yaml").write_text("a: 1")
    with pytest.raises(PlannerError) as caught:
        load_document(tmp_path / "problm.yaml")
    assert caught.value.hint == f"did you mean `{tmp_path / 'problem.yaml'}`?"
    with pytest.raises(PlannerError, match="there is no directory"):
        load_document(tmp_path / "no" / "problem.yaml")


def test_undecodable_bytes_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(PlannerError, match="0xFF") as caught:
        load_document(path)
    assert caught.value.where == f"{path}:2"


def test_a_directory_an_impossible_name_and_an_unreadable_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="is a directory"):
        load_document(tmp_path)
    with pytest.raises(PlannerError, match="cannot be read"):
        load_document("a\x00b")
    if os.geteuid() != 0:
        secret = tmp_path / "secret.yaml"
        secret.touch(mode=0o000)
        with pytest.raises(PlannerError, match="Permission denied"):
            load_document(secret)


def test_a_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.documents.read.MAX_BYTES", 10)
    path = tmp_path / "x.yaml"
    path.write_text("a: 1234567\n")
    with pytest.raises(PlannerError, match="larger than"):
        load_document(path)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_document(path).data == {"a": 1}


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\n")))
    document = load_document("-")
    assert (document.source, document.data) == ("<stdin>", {"a": 1})


def test_lines_and_checks_take_few_calls_for_each_event_of_the_parser() -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events = len(list(yaml.parse(A_HUNDRED_LINES, Loader=loader)))
    of_parser = calls_in(lambda: list(yaml.parse(A_HUNDRED_LINES, Loader=loader)))
    assert calls_in(lambda: parse_document(A_HUNDRED_LINES, "x")) - of_parser < 15 * events  # some 10


def test_documents_compare_by_source_and_data() -> None:
    assert parse_document("a: 1", "x") == parse_document('{"a": 1}', "x")
    assert isinstance(parse_document("a: 1", "x"), Document)
