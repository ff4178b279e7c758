"""Refitting the efficiencies: known ones are recovered, and what is written says what it rests on."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from emit_plans import QWEN, QWEN_MOE, Case, RolePlan
from executed_plans import STEPS, write_executed

from planner.calibrate.fit import EfficiencyFit, RelativeErrors, fit
from planner.calibrate.parameters import ExecutedTerms
from planner.calibrate.records import read_records
from planner.cli.main import main
from planner.costs.rates.calibration import Efficiencies, load_calibration
from planner.documents.files import digest
from planner.errors import PlannerError

BASE = load_calibration("default")
TRUTH = replace(
    BASE.efficiencies,
    gemm_flop=0.6,
    gemm_bandwidth=0.9,
    attention_flop=0.3,
    attention_bandwidth=0.55,
    elementwise_bandwidth=0.5,
    collective_bandwidth=0.5,
    gemm_start_s=4e-6,
)
DENSE = Case((RolePlan(degrees={"tp": 4}),), {"default": {"name": QWEN}})
MIXTURE = Case((RolePlan(degrees={"tp": 8, "ep": 8}),), {"default": {"name": QWEN_MOE}})


def fitted(*checks: Path) -> EfficiencyFit:
    return fit(read_records([str(path) for path in checks], BASE).steps, BASE.efficiencies)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> EfficiencyFit:
    """The fit to a dense model's steps without noise."""
    return fitted(write_executed(tmp_path_factory.mktemp("exact"), DENSE, TRUTH))


def test_known_efficiencies_are_recovered(exact: EfficiencyFit) -> None:
    fit = exact
    for name in ("gemm_flop", "gemm_bandwidth", "attention_flop", "attention_bandwidth", "elementwise_bandwidth"):
        assert getattr(fit.efficiencies, name) == pytest.approx(getattr(TRUTH, name), rel=0.02), name
    assert fit.after.mean < 0.01 < fit.before.mean


def test_recovery_survives_noise(tmp_path: Path) -> None:
    fit = fitted(write_executed(tmp_path, DENSE, TRUTH, noise=0.05))
    for name in ("gemm_flop", "gemm_bandwidth", "attention_bandwidth"):
        assert getattr(fit.efficiencies, name) == pytest.approx(getattr(TRUTH, name), rel=0.08), name


def test_recovery_survives_outliers(tmp_path: Path) -> None:
    fit = fitted(write_executed(tmp_path, DENSE, TRUTH, outliers=1, steps=(STEPS[1], *STEPS)))
    for name in ("gemm_flop", "gemm_bandwidth", "attention_bandwidth"):
        assert getattr(fit.efficiencies, name) == pytest.approx(getattr(TRUTH, name), rel=0.08), name


def test_standard_errors_grow_with_noise(tmp_path: Path) -> None:
    errors = []
    for noise in (0.02, 0.2):
        folder = tmp_path / str(noise)
        folder.mkdir()
        errors.append(fitted(write_executed(folder, DENSE, TRUTH, noise=noise)).standard_errors["gemm_flop"])
    assert errors[1] > 3 * errors[0]


def test_parameters_that_the_data_do_not_inform_keep_their_values(exact: EfficiencyFit) -> None:
    fit = exact
    for name in ("experts_flop", "experts_bandwidth", "fabric_bandwidth"):
        assert name not in fit.standard_errors
        assert getattr(fit.efficiencies, name) == getattr(BASE.efficiencies, name)


def test_a_mixture_of_experts_informs_the_efficiencies_of_experts(tmp_path: Path) -> None:
    truth = replace(TRUTH, experts_bandwidth=0.4)
    fit = fitted(write_executed(tmp_path, MIXTURE, truth))
    assert fit.efficiencies.experts_bandwidth == pytest.approx(0.4, rel=0.05)


def test_groups_left_out_are_predicted_by_the_others(tmp_path: Path) -> None:
    dense = write_executed(tmp_path, DENSE, TRUTH, name="dense")
    fit = fitted(dense, write_executed(tmp_path, MIXTURE, TRUTH, name="mixture"))
    assert len(fit.groups) == 6
    assert fit.held_out is not None
    assert fit.held_out.mean < fit.before.mean


def test_terms_of_some_steps_are_those_of_these_steps_alone(tmp_path: Path) -> None:
    steps = read_records([str(write_executed(tmp_path, DENSE, TRUTH))], BASE).steps
    kept = [place for place, step in enumerate(steps) if step.group != steps[0].group]
    assert 0 < len(kept) < len(steps)
    some = ExecutedTerms.of(steps, BASE.efficiencies).of_steps(kept)
    alone = ExecutedTerms.of([steps[place] for place in kept], BASE.efficiencies)
    assert (some.steps, some.name_T) == (alone.steps, alone.name_T)
    assert some.step_T.tolist() == alone.step_T.tolist()
    assert some.depends_PT.tolist() == alone.depends_PT.tolist()
    assert some.depends_PT.any()


def test_times_that_already_fit_move_nothing(tmp_path: Path) -> None:
    fit = fitted(write_executed(tmp_path, DENSE, BASE.efficiencies))
    for name in fit.standard_errors:
        assert getattr(fit.efficiencies, name) == pytest.approx(getattr(BASE.efficiencies, name), rel=1e-3), name


def test_too_few_steps_are_refused_by_number(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="2 executed steps to fit, at least 3") as caught:
        fitted(write_executed(tmp_path, DENSE, TRUTH, steps=STEPS[:2]))
    assert "--level execute" in caught.value.hint


def test_a_fit_is_worse_when_steps_that_it_has_not_seen_get_worse() -> None:
    good, bad = RelativeErrors(0.1, 0.1), RelativeErrors(0.2, 0.2)
    fit = EfficiencyFit(BASE.efficiencies, {}, good, good, None, 3, 0, ())
    assert not fit.worse
    assert replace(fit, after=bad).worse
    assert replace(fit, held_out=bad).worse
    assert not replace(fit, after=RelativeErrors(0.05, 0.12)).worse


def test_steps_of_which_little_was_executed_are_left_out_by_name(tmp_path: Path) -> None:
    checks = write_executed(tmp_path, DENSE, TRUTH)
    document = json.loads(checks.read_text(encoding="utf-8"))
    document["levels"]["execute"]["result"]["steps"][0]["claimed"] = False
    checks.write_text(json.dumps(document), encoding="utf-8")
    records = read_records([str(checks)], BASE)
    assert len(records.steps) == len(STEPS) - 1
    assert records.left_out == (f"{checks}: colocated prefill: too little of it was executed",)


def test_a_plan_that_changed_since_is_refused(tmp_path: Path) -> None:
    checks = write_executed(tmp_path, DENSE, TRUTH)
    plan = tmp_path / "plan.json"
    plan.write_text(plan.read_text(encoding="utf-8").replace('"seed": 0', '"seed": 1'), encoding="utf-8")
    with pytest.raises(PlannerError, match="is not beside it"):
        fitted(checks)


def test_checks_without_an_execution_are_refused(tmp_path: Path) -> None:
    checks = write_executed(tmp_path, DENSE, TRUTH)
    document = json.loads(checks.read_text(encoding="utf-8"))
    del document["levels"]["execute"]
    checks.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(PlannerError, match="holds no executed steps"):
        fitted(checks)


def test_times_of_a_cpu_never_calibrate_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="was executed on a CPU"):
        fitted(write_executed(tmp_path, DENSE, TRUTH, device={"kind": "cpu"}))


def test_the_file_is_a_calibration_that_keeps_what_it_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks, target = write_executed(tmp_path, DENSE, TRUTH), tmp_path / "calibration.yaml"
    assert main(["calibrate", str(checks), "-o", str(target)]) == 0
    told = capsys.readouterr().err
    assert "before   median" in told
    written = yaml.safe_load(target.read_text(encoding="utf-8"))
    assert written["date"] == "2026-02-03"
    assert written["previous"]["digest"] == BASE.digest
    assert written["previous"]["roofline"]["gemm_flop"] == BASE.efficiencies.gemm_flop
    assert written["step_time_error"]["after"]["mean"] < written["step_time_error"]["before"]["mean"]
    loaded = load_calibration(str(target))
    assert asdict(loaded.efficiencies) == written["roofline"]
    assert (loaded.engines, loaded.tables, loaded.spreads) == (BASE.engines, BASE.tables, BASE.spreads)
    assert loaded.digest == digest({name: written[name] for name in ("roofline", "tables", "engines", "intervals")})
    assert loaded.efficiencies.gemm_flop == pytest.approx(0.6, rel=0.02)


def test_a_calibration_can_start_from_another(tmp_path: Path) -> None:
    checks, first, second = write_executed(tmp_path, DENSE, TRUTH), tmp_path / "a.yaml", tmp_path / "b.yaml"
    assert main(["calibrate", str(checks), "-o", str(first), "--date", "2026-05-06"]) == 0
    assert yaml.safe_load(first.read_text(encoding="utf-8"))["date"] == "2026-05-06"
    worse = write_executed(tmp_path, DENSE, replace(TRUTH, gemm_flop=0.3), name="slow")
    assert main(["calibrate", str(worse), "--base", str(first), "-o", str(second)]) == 0
    written = yaml.safe_load(second.read_text(encoding="utf-8"))
    assert written["previous"]["calibration"] == "a.yaml"
    assert written["previous"]["digest"] == load_calibration(str(first)).digest
    assert written["roofline"]["gemm_flop"] == pytest.approx(0.3, rel=0.02)


def test_a_calibration_that_would_be_worse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, target = write_executed(tmp_path, DENSE, TRUTH), tmp_path / "calibration.yaml"
    monkeypatch.setattr(EfficiencyFit, "worse", property(lambda _: True))
    assert main(["calibrate", str(checks), "-o", str(target)]) == 1
    assert not target.exists()


def test_the_day_is_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "plan.checks.json", "--date", "yesterday"]) == 2
    assert "must be a day, found `yesterday`" in capsys.readouterr().err


def test_a_solve_uses_the_file_and_names_its_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks, target = write_executed(tmp_path, DENSE, TRUTH), tmp_path / "calibration.yaml"
    assert main(["calibrate", str(checks), "-o", str(target)]) == 0
    problem = {
        "kind": "serve", "models": {"m": {"name": QWEN}}, "cluster": {"pools": [{"gpu": "h200_sxm", "gpus": 2}]},
        "workloads": [{"input_tokens": 1000, "output_tokens": 100, "load": {"rate": "1/s"}}],
    }  # fmt: skip
    (tmp_path / "problem.json").write_text(json.dumps(problem), encoding="utf-8")
    plans = []
    for calibration in ("default", "calibration.yaml"):
        plan = tmp_path / f"{calibration}.plan.json"
        given = ["--set", f"costs.calibration={calibration}", "-o", str(plan)]
        assert main(["solve", str(tmp_path / "problem.json"), *given]) == 0
        plans.append(json.loads(plan.read_text(encoding="utf-8")))
    assert plans[1]["digests"]["calibration"] == load_calibration(str(target)).digest
    assert plans[0]["predictions"] != plans[1]["predictions"]


def test_efficiencies_stay_within_their_bounds(tmp_path: Path) -> None:
    fit = fitted(write_executed(tmp_path, DENSE, Efficiencies(gemm_flop=40.0, gemm_bandwidth=40.0)))
    assert fit.efficiencies.gemm_flop <= 1.5
    assert fit.efficiencies.gemm_bandwidth <= 1.5
