"""Verdicts of a gate on small tables, and their reports."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.render.sweep import render_gate, render_sweep
from planner.errors import PlannerError
from planner.sweep.gate import Gate, judge
from planner.sweep.reports import MOST_LINES, annotations, comment, junit_xml, markdown_summary
from planner.sweep.results import ResultTable, TableCell, Type
from planner.sweep.rules import parse_rule

COLUMNS: dict[str, Type] = {
    "point": "integer", "scenario": "text", "rate_per_s": "number", "status": "text",
    "usd_per_mtok": "number", "ttft_s": "number", "plan": "text", "conflict": "text", "error": "text",
}  # fmt: skip


def row(rate: float, cost: float | None, scenario: str = "base", **more: TableCell) -> dict[str, TableCell]:
    status = "ok" if cost is not None else "infeasible"
    given: dict[str, TableCell] = {"rate_per_s": rate, "usd_per_mtok": cost, "scenario": scenario, "status": status}
    rest: dict[str, TableCell] = dict.fromkeys(COLUMNS) | {"ttft_s": 0.2, "plan": "2 x decode tp2"}
    return rest | given | more


def table(*rows: dict[str, TableCell], **inputs: object) -> ResultTable:
    return ResultTable(COLUMNS, list(rows), ("rate_per_s",), {"base": inputs}, "main.parquet")


def gate(now: ResultTable, before: ResultTable | None, *rules: str) -> Gate:
    return judge(now, before, [parse_rule(rule) for rule in rules])


def test_a_point_over_the_limit_fails_and_one_at_it_passes() -> None:
    before = table(row(1, 100.0), row(2, 100.0))
    verdict = gate(table(row(1, 103.0), row(2, 103.1)), before, "cost_per_mtok > +3%")
    assert [point.ok for point in verdict.verdicts] == [True, False]
    assert "100 -> 103.1" in verdict.failed[0].breaches[0].why


def test_rules_of_a_scenario_leave_the_others_alone() -> None:
    before = table(row(1, 1.0), row(1, 1.0, "peak"))
    now = table(row(1, 2.0), row(1, 2.0, "peak"))
    verdict = gate(now, before, "peak: cost_per_mtok > +3%")
    assert [point.ok for point in verdict.verdicts] == [True, False]


def test_the_screen_says_among_which_plans_a_point_is_the_best_where_that_is_not_all() -> None:
    told = "optimal among plans where runs were measured"
    for within, shown in ((told, True), (None, False)):
        rows = [row(rate, 1.0, objective_metric=None, within=each) for rate, each in ((1, None), (2, within))]
        text = render_sweep(table(*rows), {"break_evens": [], "sensitivity": {"axes": []}})
        assert [
            line.endswith(end) for line, end in zip(text.splitlines()[2:5], ("within", "-", told), strict=True)
        ] == ([shown] * 3)


def test_a_plan_lost_fails_without_any_rule() -> None:
    verdict = gate(table(row(1, None, conflict="ttft <= 1 s")), table(row(1, 1.0)))
    assert not verdict.ok
    assert "ttft <= 1 s" in verdict.failed[0].breaches[0].why


def test_a_point_that_never_had_a_plan_passes_against_its_baseline() -> None:
    assert gate(table(row(1, None)), table(row(1, None)), "cost_per_mtok > +3%").ok


def test_levels_judge_without_a_baseline_and_points_without_a_plan_fail_them() -> None:
    assert gate(table(row(1, 1.0)), None, "ttft_s > 300ms").ok
    assert not gate(table(row(1, 1.0)), None, "ttft_s > 100ms").ok
    assert not gate(table(row(1, None)), None, "ttft_s > 300ms").ok


def test_the_worst_point_comes_first() -> None:
    before = table(row(1, 1.0), row(2, 1.0), row(3, 1.0))
    verdict = gate(table(row(1, 1.1), row(2, 1.3), row(3, 1.2)), before, "cost_per_mtok > +3%")
    assert [point.row["rate_per_s"] for point in verdict.failed] == [2, 3, 1]


def test_new_and_lost_points_are_noted() -> None:
    verdict = gate(table(row(1, 1.0), row(9, 1.0)), table(row(1, 1.0), row(2, 1.0)), "cost_per_mtok > +3%")
    assert verdict.ok
    assert len(verdict.notes) == 2


def test_points_that_are_not_compared_are_counted_apart_from_those_that_pass() -> None:
    points = [row(rate, 1.0 + rate) for rate in range(9)]
    verdict = gate(table(*points), table(*points[:6], row(9, 1.0)), "cost_per_mtok > +3%")
    assert verdict.ok
    assert render_gate(verdict).splitlines()[-1] == "ok    gate: 6 of 9 points pass, 3 not compared"
    assert "6 of 9 points pass, 3 not compared" in markdown_summary(verdict, "nightly")
    root = ElementTree.fromstring(junit_xml(verdict, "nightly"))
    assert root.attrib["skipped"] == "3"
    assert len(root.findall("testsuite/testcase/skipped")) == 3
    new_alone = gate(table(*points), table(*points[:6]))
    assert new_alone.counted == "6 of 9 points pass, 3 not compared"
    levels = gate(table(*points), table(*points[:6]), "ttft_s > 300ms")
    assert levels.counted == "9 of 9 points pass"
    freed = gate(table(row(1, 1.0), row(2, 1.0)), table(row(1, None), row(2, 1.0)), "cost_per_mtok > +3%")
    assert freed.counted == "1 of 2 points pass, 1 not compared"


def test_a_rule_on_what_the_load_alone_decides_is_refused() -> None:
    points = [row(rate, 1.0, requests_per_s=rate) for rate in (1, 2)]
    columns: dict[str, Type] = {**COLUMNS, "requests_per_s": "number"}
    least = ResultTable(columns, points, ("rate_per_s",), {"base": {"objective": {"minimize": "cost"}}}, "main.csv")
    most = replace(least, inputs={"base": {"objective": {"maximize": "goodput_per_gpu"}}})
    with pytest.raises(PlannerError, match="can never fail: where `cost` is minimised"):
        gate(least, least, "requests_per_s < -2%")
    assert gate(most, most, "requests_per_s < -2%").ok
    assert gate(least, least, "requests_per_s < 0.01").ok


def test_a_figure_that_is_one_number_everywhere_is_noted() -> None:
    now = table(row(1, 1.0), row(2, 1.0))
    assert any("saw nothing that moves" in note for note in gate(now, now, "cost_per_mtok > +3%").remarks)
    moving = table(row(1, 1.0), row(2, 2.0))
    assert not gate(moving, moving, "cost_per_mtok > +3%").remarks


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("cost_per_mtk > +3%", "unknown metric"),
        ("quiet: cost_per_mtok > +3%", "unknown scenario"),
        ("plan > +3", "unknown metric"),
        ("point > +3", "unknown metric"),
    ],
)
def test_rules_on_nothing_are_refused(rule: str, words: str) -> None:
    with pytest.raises(PlannerError, match=words):
        gate(table(row(1, 1.0)), table(row(1, 1.0)), rule)


def test_a_rule_that_no_point_can_answer_is_refused() -> None:
    with pytest.raises(PlannerError, match="no point has"):
        gate(table(row(1, None, status="ok")), table(row(1, 1.0)), "cost_per_mtok > +3%")
    with pytest.raises(PlannerError, match="needs a baseline"):
        gate(table(row(1, 1.0)), None, "cost_per_mtok > +3%")
    with pytest.raises(PlannerError, match="shares no point"):
        gate(table(row(1, 1.0)), table(row(2, 1.0)), "cost_per_mtok > +3%")


def test_the_summary_says_what_failed_and_which_input_changed() -> None:
    before, now = table(row(1, 1.0), price=3.5, same=1), table(row(1, 1.05), price=3.675, same=1)
    text = markdown_summary(gate(now, before, "cost_per_mtok > +3%"), "nightly")
    assert "1 of 1 points fail" in text
    assert "price: 3.5 -> 3.675" in text
    assert "same" not in text
    assert "+5 %" in text


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4, unique=True), st.booleans())
def test_reports_are_well_formed_whatever_the_names(names: list[str], dearer: bool) -> None:
    encodable = [name.encode("utf-8", "replace").decode() for name in names]
    before = table(*(row(1, 1.0, name, plan=name) for name in encodable))
    now = table(*(row(1, 2.0 if dearer else 1.0, name, plan=name + "x") for name in encodable))
    verdict = gate(now, before, "cost_per_mtok > +3%")
    root = ElementTree.fromstring(junit_xml(verdict, encodable[0]))
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(set(encodable)) == int(root.attrib["tests"])
    failures = sum(case.find("failure") is not None for case in cases)
    assert failures == int(root.attrib["failures"]) == (len(cases) if dearer else 0)
    lines = annotations(verdict, "sweep.yaml")
    assert len(lines) == (len(cases) if dearer else 0)
    assert all(line.startswith("::error file=sweep.yaml,title=") and "\n" not in line for line in lines)
    assert all(line.count("|") >= 2 for line in markdown_summary(verdict, "s").splitlines() if line.startswith("|"))


def test_a_baseline_from_csv_matches_whatever_its_types() -> None:
    before = table(row(1, 1.0))
    before = replace(before, rows=[{**before.rows[0], "rate_per_s": 1}])
    assert not gate(table(row(1.0, 2.0)), before, "cost_per_mtok > +3%").ok


def test_a_comment_has_ten_lines_at_most_and_none_where_nothing_changed() -> None:
    same = table(*(row(float(rate), 1.0, plan="a") for rate in range(30)))
    assert comment(gate(same, same), "load") is None
    now = table(*(row(float(rate), 1.0 + 0.1 * (rate % 3), plan="b" if rate % 2 else "a") for rate in range(30)))
    told = comment(gate(now, same, "usd_per_mtok > +5%"), "load")
    assert told is not None
    lines = told.rstrip("\n").split("\n")
    assert len(lines) == MOST_LINES
    assert lines[0].startswith("**load**: 20 of 30 points fail")
    assert "more points" in lines[-1]
    new = table(*(row(float(rate), 1.0, plan="a") for rate in range(31)))
    assert "not in the baseline" in str(comment(gate(new, same), "load"))
