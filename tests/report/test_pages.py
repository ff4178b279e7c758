"""Pages of plans, sweeps and checks are whole by themselves: no request, escaped text, clear refusals."""

import json
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.documents.units import figure, format_si
from planner.kinds.registry import find_kind
from planner.load.problems import load_plan, load_problem
from planner.plan.placement import gpus_in_use
from planner.plan.store import plan_digest, plan_json, write_checks
from planner.progress import Limits
from planner.report.candidates import candidates_section, launch_flags
from planner.report.charts import Bar, Point, cells, cloud, spans, stacked, waterfall
from planner.report.documents import report
from planner.report.marks import Scale, prose, table
from planner.report.page import MOST_BYTES

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PLANS = sorted((Path(__file__).parent.parent / "plans").glob("*.json"))
SERVED = Path(__file__).parent.parent / "plans" / "serve.json"
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


def test_a_page_says_what_the_gpus_in_use_draw_at_most() -> None:
    """700 W each of H100 and H200 on SXM boards, by their data sheets."""
    told = 0
    for path in PLANS:
        envelope, decision = load_plan(path)
        cluster: Any = envelope.inputs["cluster"]
        if decision.roles and {pool["gpu"] for pool in cluster["pools"]} <= {"h100_sxm", "h200_sxm"}:
            most_w = 700.0 * gpus_in_use(decision.roles, decision.placement)
            assert format_si(most_w, "W") in report(str(path))
            told += 1
    assert told


def test_a_page_of_a_workflow_of_functions_alone_names_their_options_and_no_gpus(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    problem = load_problem(str(EXAMPLES / "workflow-functions.yaml"))
    path.write_text(plan_json(find_kind("workflow").solve(problem, Limits())))
    page = report(str(path))
    assert "Run cut (8-functions), detect (8-functions), search (eight-parts)." in page
    assert ">GPUs<" not in page


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


LINE = {
    "schema": "planner.parametric/1",
    "axis": "rate",
    "metric": "usd_per_hour",
    "segments": [
        {"low": 5.0, "high": 6.2, "objective": 7.0, "decision": "2 x <colocated>"},
        {"low": 6.21, "high": 9.0, "objective": 10.5, "decision": "3 x decode"},
        {"low": 9.01, "high": 10.0, "objective": None, "decision": "no plan"},
    ],
}
RUN = {
    "schema": "planner.simulation/1",
    "requests": 100,
    "complete": 100,
    "span_s": 12.5,
    "mean_s": {"waiting": 0.1, "decode": 2.0},
    "quantiles": {"ttft_s": [0.1, 0.2, 0.9], "tpot_s": [0.01, 0.012, 0.02], "latency_s": []},
}


def test_a_line_has_its_breakpoints_and_a_slider_that_says_what_is_best_at_each_value(tmp_path: Path) -> None:
    (tmp_path / "line.json").write_text(json.dumps(LINE))
    page = report(str(tmp_path / "line.json"))
    assert _read(page).fetched == ["data:,"]
    assert "changes 2 times" in page
    (rows,) = re.findall(r'data-rows="([^"]*)"', page)
    told = json.loads(unescape(rows))
    assert told[0] == "rate 5.000: 7.00 USD/h, 2 x <colocated>"
    assert told[-1].startswith("rate 10.00: no plan")
    assert sum("10.5 USD/h" in row for row in told) == pytest.approx(len(told) * (9.01 - 6.21) / 5.0, abs=2)


def test_a_simulation_stands_against_the_limits_of_its_plan(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    page = report(str(SERVED), str(tmp_path / "run.json"))
    assert _read(page).fetched == ["data:,"]
    assert "50 % of requests within 200 ms" in page
    assert 'data-tip="p95 &lt;= 1.00 s"' in page
    assert "p95" not in report(str(tmp_path / "run.json"))


def test_what_was_simulated_of_a_plan_is_on_its_page_and_of_another_is_not(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text((SERVED).read_text())
    digest = plan_digest(plan.read_text())
    write_checks(plan, digest, "simulate", [], RUN)
    assert "Latencies against limits" in report(str(plan))
    plan.write_text(plan.read_text() + "\n")
    assert "Latencies against limits" not in report(str(plan))


def test_points_of_candidates_say_what_engines_are_told() -> None:
    assert launch_flags("decode/m/2x1x1x2x1/104/2048", "vllm") == (
        "--tensor-parallel-size 2 --max-num-seqs 104 --max-num-batched-tokens 2048"
    )
    assert (
        launch_flags("colocated/m/1x1x8x1x8/64/0", "sglang")
        == "--tp-size 1 --dp-size 8 --ep-size 8 --max-running-requests 64"
    )
    assert launch_flags("frontier", "vllm") == ""


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"schema": "planner.parametric/1", "axis": "rate"}', "no whole answer along a line"),
        ('{"schema": "planner.simulation/1"}', "holds no times"),
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


def test_a_page_is_of_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(PLANS[0]), str(PLANS[1]), "-o", str(tmp_path / "page.html")]) == 2
    assert "of one plan" in capsys.readouterr().err


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


def test_the_cloud_has_every_type_that_fits_and_rings_those_of_the_plan(tmp_path: Path) -> None:
    problem = str(EXAMPLES / "serve-cost-one-pool.yaml")
    plan = str(tmp_path / "plan.json")
    assert main(["solve", problem, "--level", "static", "--set", "options.tp=[1,2]", "-o", plan]) == 0
    envelope, decision = load_plan(plan)
    (section,) = candidates_section(envelope, decision, tmp_path)
    everything = find_kind("serve").considered(load_problem(problem, overrides=["options.tp=[1,2]"]))
    said = [int(more) + 1 for more in re.findall(r"and (\d+) more here", section.body)]
    alone = section.body.count('class="mark"') - len(said)
    assert sum(said) + alone == len(everything)
    assert section.body.count('class="ring"') == sum(role.function != "prefill" for role in decision.roles)
    assert "--max-num-seqs" in section.body
    assert len(everything) > 3 * len(envelope.certificate.proof["mix"]["shapes"])  # type: ignore[arg-type,call-overload,index]  # parsed JSON
