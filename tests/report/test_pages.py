"""Pages of plans, sweeps and checks are whole by themselves: no request, escaped text, clear refusals."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.documents.units import figure
from planner.load.problems import load_plan
from planner.report.charts import Bar, Point, cells, cloud, spans, stacked, waterfall
from planner.report.documents import report
from planner.report.marks import Scale, prose, table
from planner.report.page import MOST_BYTES

PLANS = sorted((Path(__file__).parent.parent / "plans").glob("*.json"))
VOID = {"meta", "link", "input", "br", "i"}
SWEEP: dict[str, Any] = {
    "schema": "planner.sweep_results/1",
    "axes": ["rate_per_s", "gpus"],
    "columns": {},
    "inputs": {},
    "break_evens": [{"axis": "rate_per_s", "low": 4.1, "high": 4.2, "before": "a", "after": "b", "at": {"gpus": 8}}],
    "rows": [
        {
            "scenario": "base",
            "rate_per_s": rate,
            "gpus": gpus,
            "status": "ok" if gpus > 4 else "infeasible",
            "objective_metric": "usd_per_hour",
            "objective": rate * 2.0,
            "plan": f"{gpus} x <b>tp1</b>" if gpus > 4 else None,
            "conflict": None if gpus > 4 else "gpus <= 4",
        }
        for rate in (1.0, 2.0, 4.0)
        for gpus in (4, 8, 16)
    ],
}


class _Balanced(HTMLParser):
    """Fails where tags do not nest, and collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.fetched += [value for name in ("src", "href", "action") if (value := named.get(name))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def _read(page: str) -> _Balanced:
    parser = _Balanced()
    parser.feed(page)
    assert not parser.open
    return parser


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_page_of_a_plan_of_any_kind_is_whole_by_itself(path: Path) -> None:
    page = report(str(path))
    assert _read(page).fetched == ["data:,"]
    assert len(page.encode()) <= MOST_BYTES
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\(", page)
    envelope, decision = load_plan(path)
    assert all(role.name in page for role in decision.roles[:6])
    objective = envelope.certificate.objective
    assert figure(objective.metric, objective.value) in page
    assert f"planner check {path.name}" in page


def test_text_of_a_plan_cannot_become_markup(edited_plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    document = edited_plan("serve", {"name": "<script>alert(1)</script>", "assumptions": ['"><img src=x onerror=y>']})
    (tmp_path / "plan.json").write_text(json.dumps(document))
    page = report(str(tmp_path / "plan.json"))
    assert _read(page).fetched == ["data:,"]
    assert "<script>alert" not in page
    assert page.count("<script>") == 1


def test_a_page_of_a_sweep_has_its_matrix_its_break_even_points_and_a_slider(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(SWEEP))
    page = report(str(path))
    assert _read(page).fetched == ["data:,"]
    assert page.count("data-out=") == 2
    assert "4.1 to 4.2" in page.replace("4.100", "4.1").replace("4.200", "4.2")
    assert page.count("infeasible: gpus &lt;= 4") >= 3
    assert "&lt;b&gt;tp1" in page


def test_a_page_of_a_check_lists_failures_first(tmp_path: Path) -> None:
    rows = [
        {"rule": "a.b", "verdict": "ok", "what": "fine"},
        {"rule": "c.d", "verdict": "failed", "what": "wrong", "hint": "mend"},
    ]
    path = tmp_path / "check.json"
    path.write_text(json.dumps({"schema": "planner.checks/1", "findings": rows}))
    page = report(str(path))
    assert page.index("c.d") < page.index("a.b")
    path.write_text(json.dumps({"schema": "planner.checks/1", "levels": {"static": {"findings": rows}}}))
    assert "Findings static" in report(str(path))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"schema": "other/1"}', "there is no page for it"),
        ("[1, 2]", "there is no page for it"),
        ('{"schema": "planner.checks/1"}', "holds no findings"),
        ('{"schema": "planner.sweep_results/1", "rows": 3, "axes": ["a"]}', "no whole result of a sweep"),
    ],
)
def test_foreign_documents_are_refused_in_one_sentence(
    content: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "document.json").write_text(content)
    assert main(["report", str(tmp_path / "document.json"), "-o", str(tmp_path / "page.html")]) == 2
    assert what in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("output", ["page.pdf", "plan.json", "no-folder/page.html"])
def test_a_page_goes_into_a_file_of_its_own(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(PLANS[0]), "-o", str(tmp_path / output)]) == 2
    assert "hint:" in capsys.readouterr().err


def test_pictures_keep_their_marks_inside_and_say_what_they_are() -> None:
    pictures = [
        stacked("bars", [Bar("a", [("x", 1.0, "x 1"), ("y", 2.0, "y 2")], 4.0), Bar("b", [])]),
        cloud("points", [Point(1.0, 2.0, "p", "f"), Point(2.0, 1.0, "q", "g", chosen=True)], "x", "y"),
        spans("spans", [("r", [(0.0, 1.0, "a", "a 1")])], "s"),
        waterfall("fall", 10, [("rule", 4), ("other", 5)]),
        cells("grid", ["1", "2"], ["a"], [[("v", 0, "tip"), ("", -1, "none")]]),
    ]
    for picture in pictures:
        _read(picture)
        numbers = [float(x) for x in re.findall(r' (?:x|cx|x1|x2)="(-?[\d.]+)"', picture)]
        assert all(-1.0 <= x <= 721.0 for x in numbers)
        assert 'data-tip="' in picture


def test_ticks_are_round_and_inside() -> None:
    for high in (0.013, 1.0, 7.3, 1234.0):
        ticks = Scale(0.0, high, 0.0, 1.0).ticks()
        assert 2 <= len(ticks) <= 7
        assert 0.0 <= min(ticks) <= max(ticks) <= high * 1.001


def test_code_in_prose_and_cells_of_tables_are_escaped() -> None:
    assert prose("run `a <b>` & go") == "run <code>a &lt;b&gt;</code> &amp; go"
    assert "&lt;x&gt;" in table(("h",), [("<x>",)])
