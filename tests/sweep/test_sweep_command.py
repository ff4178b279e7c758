"""`planner sweep` from file to results: order, formats, digests, break-even points, bad files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.errors import Infeasible
from planner.load.problems import load_problem
from planner.progress import Limits
from planner.sweep import files, identity, ray_workers, workers
from planner.sweep.point import SolveTask, plan_label, solve_task

Sweep = Callable[..., Any]

AXES = "axes: [{field: rate, values: [2/s, 20/s]}, {field: price, values: [1USD/h, 2USD/h]}]"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return files.read_table(str(path)).rows


def refuse_to_solve(job: SolveTask) -> None:
    raise AssertionError(f"solved {job.key} again")


def test_rows_come_in_axis_order_with_what_was_solved(sweep: Sweep, folder: Path) -> None:
    assert sweep(AXES, "-o", "out.json").code == 0
    rows = rows_of(folder / "out.json")
    given = [(row["rate_per_s"], row["price_usd_per_hour"]) for row in rows]
    assert given == [(2.0, 1.0), (2.0, 2.0), (20.0, 1.0), (20.0, 2.0)]
    assert [row["point"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["usd_per_hour"] == pytest.approx(2 * rows[0]["usd_per_hour"])
    assert rows[0]["bound"] == pytest.approx(rows[0]["objective"])
    assert rows[0]["ttft_s"] <= 1.0
    assert rows[0]["plan_digest"] != rows[1]["plan_digest"]


def test_all_formats_hold_the_same_rows(sweep: Sweep, folder: Path) -> None:
    for name in ("out.json", "out.csv", "out.parquet"):
        assert sweep(AXES, "-o", name).code == 0
    rows = rows_of(folder / "out.json")
    assert rows_of(folder / "out.parquet") == rows
    assert rows_of(folder / "out.csv") == rows


def test_json_on_stdout_is_one_document_with_everything_found(sweep: Sweep) -> None:
    document = json.loads(sweep(AXES, "--json").out)
    assert document["schema"] == "planner.sweep_results/1"
    assert {"rows", "columns", "break_evens", "sensitivity", "inputs"} <= document.keys()


def test_infeasible_points_say_which_limits_conflict(sweep: Sweep, folder: Path) -> None:
    assert sweep("axes: [{field: ttft, values: [1s, 1ms]}]", "-o", "out.json").code == 0
    rows = rows_of(folder / "out.json")
    assert [row["status"] for row in rows] == ["ok", "infeasible"]
    assert "ttft <= 1" in rows[1]["conflict"]
    assert rows[1]["plan"] is None


def test_what_was_solved_is_never_solved_again(sweep: Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(AXES, "-o", "first.parquet")
    monkeypatch.setattr(workers, "solve_task", refuse_to_solve)
    again = sweep(AXES, "-o", "second.parquet")
    assert again.code == 0
    assert "5 of 5 points were kept" in again.err
    assert (folder / "first.parquet").read_bytes() == (folder / "second.parquet").read_bytes()


@pytest.mark.parametrize("change", [("--set", "seed=7"), ("--gap", "5%"), ("--set", "costs.calibration=none")])
def test_other_inputs_are_solved_anew(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]) -> None:
    sweep(AXES)
    monkeypatch.setattr(workers, "solve_task", refuse_to_solve)
    assert sweep(AXES, *change).code == 4


def test_points_of_other_software_are_ignored_with_a_note(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(AXES)
    newer = {**identity.software(), "planner": "99"}
    monkeypatch.setattr("planner.sweep.runner.software", lambda: newer)
    monkeypatch.setattr(identity, "software", lambda: newer)
    again = sweep(AXES)
    assert again.code == 0
    assert "ignored 5 kept points of other software" in again.err
    assert "were kept" not in again.err


def test_without_a_cache_nothing_is_kept(sweep: Sweep, folder: Path) -> None:
    assert sweep(AXES, "--no-cache").code == 0
    assert not (folder / "cache").exists()


def test_a_half_written_output_is_rebuilt_and_refused_as_a_baseline(sweep: Sweep, folder: Path) -> None:
    sweep(AXES, "-o", "out.parquet")
    whole = (folder / "out.parquet").read_bytes()
    (folder / "out.parquet").write_bytes(whole[: len(whole) // 2])
    refused = sweep(AXES, "--baseline", "out.parquet")
    assert refused.code == 2
    assert "not a whole Parquet file" in refused.err
    assert sweep(AXES, "-o", "out.parquet").code == 0
    assert (folder / "out.parquet").read_bytes() == whole


def test_scenarios_vary_the_base_and_sets_apply_to_all(sweep: Sweep, folder: Path) -> None:
    text = "set: {price: 7USD/h}\nscenarios: [{name: now}, {name: more, set: {rate: 20/s}}]"
    assert sweep(text, "-o", "out.json").code == 0
    rows = rows_of(folder / "out.json")
    assert [row["scenario"] for row in rows] == ["now", "more"]
    assert rows[0]["gpus"] < rows[1]["gpus"]
    assert rows[0]["usd_per_hour"] == pytest.approx(7 * rows[0]["gpus"])


def test_break_even_points_are_narrowed_to_the_tolerance(sweep: Sweep, folder: Path) -> None:
    text = "axes: [{field: rate, values: [2/s, 60/s]}]\nbreakeven: true\ntolerance: 0.05"
    document = json.loads(sweep(text, "--json").out)
    (change,) = document["break_evens"]
    assert 2 <= change["low"] < change["high"] <= 60
    assert change["high"] - change["low"] <= 0.05 * change["high"]
    text = f"axes: [{{field: rate, values: [{change['low']!r}/s, {change['high']!r}/s]}}]"
    rows = json.loads(sweep(text, "--json").out)["rows"]
    assert [row["plan"] for row in rows] == [change["before"], change["after"]]


def test_the_best_choice_is_the_decision(sweep: Sweep) -> None:
    cases = "{cheap: {price: 9USD/h}, dear: {price: 10USD/h}}"
    text = f"axes: [{{field: rate, values: [2/s, 4/s]}}, {{name: offer, choice: true, cases: {cases}}}]"
    document = json.loads(sweep(text, "--json").out)
    assert document["break_evens"] == []
    crossing = text.replace("{price: 9USD/h}", "{price: 9USD/h, workloads.0.output_tokens: 4000}")
    assert len(json.loads(sweep(crossing, "--json").out)["rows"]) == 4


def test_choices_that_are_equally_good_are_named_together(sweep: Sweep) -> None:
    cases = "{loose: {tpot: 30ms}, tight: {tpot: 18ms}}"  # both take one GPU of little load
    text = f"axes: [{{field: rate, values: [0.01/s, 5/s]}}, {{name: limit, choice: true, cases: {cases}}}]"
    (change,) = json.loads(sweep(text, "--json").out)["break_evens"]
    assert (change["before"], change["after"]) == ("loose or tight", "loose")


def test_cost_moves_in_step_with_the_price(sweep: Sweep) -> None:
    document = json.loads(sweep("axes: [{field: price, from: 1USD/h, to: 4USD/h, steps: 3}]", "--json").out)
    (price,) = document["sensitivity"]["axes"]
    assert price["elasticity"] == pytest.approx(1.0)
    assert price["objective_spread"] == pytest.approx(3.0)
    assert price["decision_changes"] == 0.0
    sampled = "axes: [{field: price, from: 1USD/h, to: 4USD/h, steps: 3}, {field: ttft, from: 1s, to: 2s, steps: 2}]"
    document = json.loads(sweep(f"{sampled}\nmode: sample\nsamples: 6", "--json").out)
    elasticities = [axis["elasticity"] for axis in document["sensitivity"]["axes"]]
    assert elasticities == [pytest.approx(1.0), pytest.approx(0.0, abs=1e-6)]


BAD_SWEEPS = {
    "axes: [{field: slo.ttff, values: [1s]}]": "did you mean `ttft`",
    "axes: [{field: rte, values: [1/s]}]": "did you mean `rate`",
    "axes: [{field: cluster.pools.3.gpu, values: [h200]}]": "the only index is 0",
    "axes: [{field: gpu, values: [h2000]}]": "unknown hardware `h2000`",
    "axes: [{field: model, values: [Qwen/Qwen3-33B]}]": "unknown model",
    "axes: [{field: options.tpp, values: [[1]]}]": "unknown key `tpp`",
    "axes: [{name: a, cases: {x: {slo.ttff: 1s}}}]": "unknown key `ttff`",
    "scenarios: [{name: a, set: {slo.ttff: 1s}}]": "scenarios.0.set.slo.ttff",
    "axes: [{field: rate, value: [1/s]}]": "unknown key `value`",
    "axes: [{field: rate, values: [1/s]}]\nmetrics: [usd_per_token]": "unknown metric `usd_per_token`",
    "axes: [{field: rate, values: [1/s]}]\nsamples: 3": "belong together",
    "axes: []": "a sweep needs",
}


@pytest.mark.parametrize("text", BAD_SWEEPS)
def test_a_bad_sweep_is_a_named_error(sweep: Sweep, text: str) -> None:
    outcome = sweep(text, "-o", "out.csv")
    assert outcome.code == 2
    assert outcome.err.startswith("error: sweep.yaml:")
    assert BAD_SWEEPS[text] in outcome.err
    assert not Path("out.csv").exists()


def test_a_sweep_of_a_future_schema_is_refused(sweep: Sweep, folder: Path) -> None:
    (folder / "future.yaml").write_text("schema: planner.sweep/9\nbase: problem.yaml\n")
    from planner.cli.main import main

    assert main(["sweep", "future.yaml"]) == 2


def test_a_missing_base_and_a_wrong_base_are_named(sweep: Sweep, folder: Path) -> None:
    (folder / "problem.yaml").rename(folder / "other.yaml")
    said = sweep(AXES).err
    assert "file not found: `problem.yaml`" in said
    (folder / "problem.yaml").write_text("schema: planner.problem/1\nkind: serve\n")
    outcome = sweep(AXES)
    assert outcome.code == 2
    assert outcome.err.startswith("error: problem.yaml")


def test_a_point_that_is_no_problem_is_named_and_the_others_are_solved(sweep: Sweep, folder: Path) -> None:
    outcome = sweep("axes: [{field: rate, values: [2/s, fast]}]", "-o", "out.json")
    assert outcome.code == 2
    assert "must be a rate" in outcome.err
    assert [row["status"] for row in rows_of(folder / "out.json")] == ["ok", "error"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-o", "out.xlsx"), "format"),
        (("-o", "nowhere/out.csv"), "no directory"),
        (("--engine", "slurm"), "no engine"),
        (("--ray-address", "1.2.3.4:5"), "needs `--engine ray`"),
        (("--fail-on", "cost > 3%"), "without a sign"),
        (("--fail-on", "cost_per_mtok > +3%"), "needs a baseline"),
        (("--baseline", "none.parquet"), "file not found"),
        (("--cache", "problem.yaml"), "journal"),
        (("--cache", "c", "--no-cache"), "exclude each other"),
    ],
)
def test_bad_flags_are_named_before_anything_is_solved(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(workers, "solve_task", refuse_to_solve)
    outcome = sweep(AXES, *flags)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert words in outcome.err


def test_ray_that_is_not_installed_is_named(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda name: None)
    outcome = sweep(AXES, "--engine", "ray")
    assert outcome.code == 2
    assert "'.[ray]'" in outcome.err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere", "host:99999"])
def test_a_ray_cluster_that_cannot_be_reached_is_named(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda name: object())
    outcome = sweep(AXES, "--engine", "ray", "--ray-address", address)
    assert outcome.code == 2
    assert f"`{address}`" in outcome.err


def test_labels_tell_decisions_apart() -> None:
    role = {"function": "decode", "replicas": 2, "pool": "a", "parallelism": {"tp": 4, "moe_tp": 2, "pp": 1}}
    assert plan_label({"roles": [role]}) == "2 x decode tp4 moe-tp2"
    assert plan_label({"roles": [role, {**role, "pool": "b", "parallelism": {}}]}) == (
        "2 x decode tp4 moe-tp2 on a + 2 x decode tp1 on b"
    )


def test_labels_of_days_are_node_hours_and_tell_splits_apart() -> None:
    days = [{"job": "chat", "node_hours": 305.0}, {"job": "grpo", "node_hours": 142.0}]
    early, late = (plan_label({"days": days, "windows": [{"nodes": {"chat": nodes}}]}) for nodes in (1, 2))
    assert early.startswith("chat 305 + grpo 142 node hours, split ")
    assert len(early) < 50
    assert early != late
    idle = plan_label({"days": days, "windows": [{"nodes": {"chat": 1}, "idle_nodes": 3}]})
    assert idle == plan_label({"days": days, "windows": [{"nodes": {"chat": 1}, "idle_nodes": 4}]})


def test_labels_of_workflows_say_what_every_stage_is() -> None:
    search = {"stage": "search", "option": "probe-16", "servers": 2}
    answer = {"stage": "answer", "option": "h100", "servers": None, "roles": ["answer-0"], "plan": {"kind": "serve"}}
    role = {"name": "answer-0", "function": "both", "replicas": 3, "pool": "a", "parallelism": {"tp": 2}}
    assert plan_label({"roles": [role], "stages": [search, answer]}) == ("search probe-16 x 2 + answer (3 x both tp2)")
    assert plan_label({"stages": [search], "first_chunk_tokens": 5}) == "search probe-16 x 2 + first chunk 5"


def test_labels_of_schedules_tell_them_apart() -> None:
    sales = {"stage": "sales", "option": "functions", "functions": 4}
    alone, grouped = (plan_label({"stages": [sales], "groups": groups}) for groups in ([], [{"stages": ["sales"]}]))
    assert alone.startswith("4 functions, 0 groups, schedule ")
    assert alone != grouped
    early, late = (plan_label({"stages": [sales], "batches": [{"start_s": start}]}) for start in (0.0, 1.0))
    assert early.startswith("1 batches, schedule ")
    assert early != late


@pytest.mark.parametrize("variable", ["PLANNER_SEED", "PLANNER_THREADS"])
def test_variables_that_no_sweep_reads_are_refused(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "2")
    done = sweep(AXES)
    assert done.code == 2
    assert done.err.startswith(f"error: {variable}: ")


@pytest.mark.parametrize(("proved", "status"), [(True, "infeasible"), (False, "none-found")])
def test_a_point_without_a_plan_is_infeasible_by_a_proof_alone(
    proved: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise Infeasible([{"limit": "8 GPUs", "nearest": "9"}], proved=proved)

    monkeypatch.setattr("planner.api.solve", none)
    resolved = load_problem(Path(__file__).parents[2] / "examples" / "place-four-models.yaml")
    assert solve_task(SolveTask("key", resolved, Limits()))["status"] == status
