"""Screens fit 80 columns, say first what to launch, and show every limit as it was stated."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.render.columns import WIDTH, fitted, folded, items, ranges, wrapped
from planner.cli.render.map import render_map
from planner.cli.render.plan import render_plan
from planner.documents.units import span
from planner.explain.limits import stated_limits
from planner.kinds.registry import find_kind
from planner.load.problems import load_plan
from planner.plan.schema import Decision, Envelope

PLANS = sorted((Path(__file__).parent.parent / "plans").glob("*.json"))
words = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=20)
cells = st.one_of(st.just("-"), st.lists(words, min_size=1, max_size=12).map(" ".join))


def _edited(path: Path, change: Callable[[dict[str, Any]], None]) -> tuple[Envelope, Decision]:
    document = json.loads(path.read_text())
    change(document)
    envelope = Envelope.model_validate(document)
    return envelope, find_kind(envelope.kind).decision.model_validate(envelope.decision)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_of_any_kind_fits_a_screen_of_80_columns_and_says_first_what_to_launch(
    path: Path, verbose: bool
) -> None:
    envelope, decision = load_plan(path)
    text = render_plan(envelope, decision, verbose=verbose)
    assert max(map(len, text.split("\n"))) <= WIDTH
    order = [text.index(part) for part in ("\n  launch", f"\n  {envelope.certificate.objective.sense} ")]
    assert order == sorted(order)
    assert max(map(len, render_map(decision, {}).split("\n"))) <= WIDTH


@given(st.lists(st.tuples(words, cells, cells, cells), min_size=1, max_size=6))
def test_no_row_is_wider_than_the_screen_and_no_value_is_lost(rows: list[tuple[str, ...]]) -> None:
    text = fitted(("name", "first", "second", "third"), rows)
    assert max(map(len, text.split("\n"))) <= WIDTH
    told = text.split()
    assert all(word in told for row in rows for cell in row for word in cell.split() if word != "-")


@given(st.lists(cells, max_size=8))
def test_paragraphs_and_items_are_wrapped_between_words(texts: list[str]) -> None:
    for text in (items(texts), *(wrapped(text) for text in texts)):
        assert all(len(line) <= WIDTH for line in text.split("\n"))
    assert items(texts).split() == " ".join(texts).split()


def test_equal_rows_are_folded_and_numbers_that_go_one_way_say_from_where_to_where() -> None:
    rows = [("59 ms", "17.6"), ("59 ms", "17.4"), ("59 ms", "17.1"), ("60 s", "9")]
    assert folded("0123", rows) == [("0-2", "59 ms", "17.6..17.1"), ("3", "60 s", "9")]
    assert folded("0123", rows, varying=[0])[0] == ("0", "59 ms", "17.6")
    assert folded("01", [("a", "1"), ("b", "1")]) == [("0", "a", "1"), ("1", "b", "1")]
    assert folded("012", [("1",), ("2",), ("1",)]) == [("0-1", "1..2"), ("2", "1")]


def test_numbers_in_a_row_are_ranges_and_a_shared_unit_is_said_once() -> None:
    assert ranges([3, 4, 5, 8, 10, 11]) == "3-5, 8, 10-11"
    assert span("5.39 s", "7.26 s") == "5.39 to 7.26 s"
    assert span("900 ms", "1.10 s") == "900 ms to 1.10 s"


def test_every_stage_of_a_pipeline_is_shown_once_where_stages_are_alike() -> None:
    def stages(document: dict[str, Any]) -> None:
        memory = document["decision"]["roles"][0].get("memory") or {"capacity_bytes": 8e10}
        rank: dict[str, Any] = {
            "forward_s": 0.05,
            "backward_input_s": 0.1,
            "idle_share": 0.1,
            "peak_micro_batches": 2.0,
        }
        rank |= {"backward_weight_s": 0.02, "memory": memory}
        document["decision"]["pipeline_ranks"] = [rank] * 16

    envelope, decision = _edited(next(path for path in PLANS if path.stem == "train"), stages)
    lines = [line for line in render_plan(envelope, decision).split("\n") if line.startswith("  0-15")]
    assert len(lines) == 1
    assert "{" not in render_plan(envelope, decision)


@pytest.mark.parametrize(
    ("slo", "metric", "statistic"),
    [({"tpot": {"mean_s": 0.05}}, "tpot", "mean"), ({"ttft": {"p99.9_s": 9.0}}, "ttft", "p99.9")],
)
def test_a_limit_is_shown_as_stated_whatever_its_statistic(slo: dict[str, Any], metric: str, statistic: str) -> None:
    def limit(document: dict[str, Any]) -> None:
        document["inputs"]["workloads"][0]["slo"] = slo
        document["certificate"]["proof"].pop("verified", None)

    envelope, decision = _edited(next(path for path in PLANS if path.stem == "serve"), limit)
    (stated,) = (limit for limit in stated_limits(envelope) if limit.of)
    assert (stated.metric, stated.statistic, stated.sense) == (f"{metric}_s", statistic, "<=")
    (line,) = [line for line in render_plan(envelope, decision).split("\n") if line.startswith(f"  {metric} ")]
    assert statistic in line
    assert "<= " in line


def test_caps_of_the_whole_plan_are_limits_too() -> None:
    def caps(document: dict[str, Any]) -> None:
        document["inputs"]["limits"] = {"gpus": 4, "usd_per_hour": 10.0}

    envelope, _ = _edited(next(path for path in PLANS if path.stem == "serve"), caps)
    bounds = {limit.metric: (limit.bound, limit.kept) for limit in stated_limits(envelope) if not limit.of}
    assert bounds["gpus"][0] == 4.0
    assert set(bounds) == {"gpus", "usd_per_hour"}
