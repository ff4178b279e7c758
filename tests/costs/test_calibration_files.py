"""Calibration files: what is read, what is refused, and how they are told apart."""

from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibrate.history import text_of, training_of
from planner.costs.rates.calibration import Efficiencies, load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads, neighbour_of, section_of
from planner.costs.training.rates import load_rates
from planner.costs.training.shapes import NONE
from planner.errors import PlannerError

HEAD = "schema: planner.calibration/1\n"


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    return str(path)


def test_the_ideal_machine_has_no_losses() -> None:
    ideal = load_calibration("none")
    assert ideal.efficiencies == Efficiencies()
    assert ideal.engine("vllm") == EngineOverheads()


def test_the_shipped_calibration_gains_nowhere_on_the_data_sheet() -> None:
    shipped = load_calibration()
    shares = [name for name in Efficiencies.__dataclass_fields__ if name.endswith(("_flop", "_bandwidth"))]
    assert all(0 < getattr(shipped.efficiencies, name) <= 1 for name in shares)
    assert {"vllm", "sglang", "trtllm"} <= set(shipped.engines)


def test_an_engine_without_a_section_takes_the_default_one(tmp_path: Path) -> None:
    path = _file(tmp_path, HEAD + "engines:\n  default: {step_s: 0.5}\n  vllm: {step_s: 0.25}\n")
    read = load_calibration(path)
    assert (read.engine("vllm").step_s, read.engine("other").step_s) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("version", "section"),
    [("0.12.0", "old"), ("0.13.0rc1", "old"), ("0.14", "new"), ("1.0", "new"), ("nightly", "new"), (None, "new")],
)
def test_older_releases_have_a_section_of_their_own(tmp_path: Path, version: str | None, section: str) -> None:
    path = _file(tmp_path, HEAD + "engines:\n  vllm: {step_s: 0.25}\n  vllm<0.14: {step_s: 0.5}\n")
    assert load_calibration(path).engine("vllm", version).step_s == {"old": 0.5, "new": 0.25}[section]


def test_engines_of_which_no_setting_tells_releases_apart_have_one_section() -> None:
    assert [section_of("trtllm", version) for version in ("1.0.0rc3", "1.2.0rc6", None)] == ["trtllm"] * 3
    assert [neighbour_of(section) for section in ("vllm", "vllm<0.14", "trtllm")] == ["vllm<0.14", "vllm", "trtllm"]


@pytest.mark.parametrize(
    ("engine", "model", "captured"),
    [
        ("vllm", "openai/gpt-oss-120b", 1024.0),
        ("vllm", "meta-llama/Llama-3.1-8B", 512.0),
        ("vllm", "", 512.0),
        ("sglang", "openai/gpt-oss-120b", 0.0),
    ],
)
def test_vllm_captures_larger_steps_of_a_model_that_it_knows_by_name(engine: str, model: str, captured: float) -> None:
    assert load_calibration("default").engine(engine, None, model).captured_tokens == captured
    assert load_calibration("none").engine(engine, None, model).captured_tokens == 0.0


def test_an_engine_lengthens_starts_by_the_kind_of_kernel() -> None:
    known = Efficiencies(gemm_start_s=1.0, experts_start_s=1.0, latent_start_s=1.0, quantise_fp8_s=1.0)
    engine = EngineOverheads(kernel_start=2.0, experts_start=3.0, latent_start=5.0, quantise_start=7.0)
    started = known.with_starts(engine)
    assert (started.gemm_start_s, started.experts_start_s, started.latent_start_s) == (2.0, 6.0, 10.0)
    assert started.quantise_fp8_s == 14.0


def test_without_a_section_older_releases_take_that_of_the_newest(tmp_path: Path) -> None:
    path = _file(tmp_path, HEAD + "engines:\n  default: {step_s: 0.5}\n  vllm: {step_s: 0.25}\n")
    assert load_calibration(path).engine("vllm", "0.9").step_s == 0.25


def test_what_a_file_leaves_out_is_ideal(tmp_path: Path) -> None:
    read = load_calibration(_file(tmp_path, HEAD + "roofline: {gemm_flop: 0.5}\n"))
    assert read.efficiencies == Efficiencies(gemm_flop=0.5)


def test_digests_tell_parameters_apart_and_not_sources(tmp_path: Path) -> None:
    texts = ("roofline: {gemm_flop: 0.5}\n", "source: x\nroofline: {gemm_flop: 0.5}\n", "roofline: {gemm_flop: 0.6}\n")
    digests = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(HEAD + text)
        digests.append(load_calibration(str(path)).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roofline: {gemm_flop: 0.5}\n", "is no calibration file"),
        ("- 1\n- 2\n", "is no calibration file"),
        ("schema: planner.problem/1\n", "is no calibration file"),
        (HEAD + "roofline: {gemm_flops: 0.5}\n", "unknown parameter `gemm_flops`\n.*did you mean `gemm_flop`"),
        (HEAD + "engines:\n  vllm: {gemm_flop: 0.5}\n", "unknown parameter `gemm_flop`"),
        (HEAD + "roofline: {gemm_flop: -0.5}\n", "`gemm_flop` must be a number above 0, found -0.5"),
        (HEAD + "roofline: {gemm_flop: 0}\n", "`gemm_flop` must be a number above 0, found 0"),
        (HEAD + "roofline: {gemm_flop: fast}\n", "`gemm_flop` must be a number above 0, found 'fast'"),
        (HEAD + "roofline: {gemm_flop: true}\n", "`gemm_flop` must be a number above 0, found True"),
        (HEAD + "roofline: {gemm_start_s: -1.0e-6}\n", "must be a number of at least 0"),
        (HEAD + "roofline: 3\n", "`roofline` must be a mapping, found 3"),
        (HEAD + "engines: [vllm]\n", "`engines` must be a mapping"),
        (HEAD + "engines: {vllm: 3}\n", "`vllm` must be a mapping, found 3"),
    ],
)
def test_a_bad_file_is_refused_at_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PlannerError, match=r"calibration\.yaml(:\d+)?: ") as error:
        load_calibration(_file(tmp_path, text))
    assert error.match("(?s)" + message)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match=r"nowhere\.yaml"):
        load_calibration(str(tmp_path / "nowhere.yaml"))


def test_rates_of_training_stand_in_a_section_of_their_own(tmp_path: Path) -> None:
    shipped = load_rates()
    half = load_rates(_file(tmp_path, HEAD + "training:\n  rates: {flop.gemm.hopper: 0.25, flop.scan.hopper: 0.1}\n"))
    assert half.get("flop.gemm", "hopper") == 0.25
    assert half.get("flop.scan", "hopper") == 0.1
    assert half.get("flop.gemm", "ampere") == shipped.get("flop.gemm", "ampere")
    assert len({half.digest, shipped.digest, replace(shipped, shapes=NONE, _found={}).digest}) == 3
    assert (half.shapes.measured, len(shipped.shapes.measured) > 100) == ((), True)


def test_the_ideal_machine_trains_at_the_rates_of_the_data_sheet() -> None:
    ideal, shipped = load_rates("none"), load_rates()
    assert (ideal.get("flop.gemm", "hopper"), ideal.get("step_s"), ideal.get("start.p2p")) == (1.0, 0.0, 0.0)
    assert ideal.get("memory.context_bytes") == shipped.get("memory.context_bytes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roofline: {}", r"calibration.yaml: has no section `training`"),
        ("training: {rates: {flop.gem: 0.5}}", r"unknown rate `flop.gem` of training"),
        ("training: {rates: {flop.gemm: 0}}", r"must be a number above 0, found 0"),
        ("training: {rates: {step_s: fast}}", r"must be a number of at least 0, found 'fast'"),
        ("training: {shapes: mine.csv}", r"no table of shapes `mine.csv`"),
        ("training: 3", r"`training` must be a mapping"),
    ],
)
def test_a_section_of_training_that_cannot_be_is_refused_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(PlannerError, match=message):
        load_rates(_file(tmp_path, HEAD + text + "\n"))


def test_a_fit_to_serving_keeps_the_rates_of_training(tmp_path: Path) -> None:
    text = text_of({"schema": "planner.calibration/1", **training_of(load_calibration())})
    assert load_rates(_file(tmp_path, text)).values == load_rates().values
