"""Plans of models that came from a config.json carry what it says: verbs that read the model again need no file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
PROBLEM = """
schema: planner.problem/1
kind: train
models: {policy: {config: models/tiny}}
cluster: {pools: [{gpu: h100_sxm, gpus: 2}]}
objective: {minimize: step_time}
options: {global_batch: 4, sequence_tokens: 1024, reliability: {remote_write: 1GB/s}}
"""


@pytest.fixture
def plan(run: "Run", tmp_path: Path) -> str:
    """The path of a plan whose config.json is gone."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    path = str(tmp_path / "plan.json")
    assert run("solve", str(tmp_path / "problem.yaml"), "-o", path).code == 0
    (tmp_path / "models" / "tiny" / "config.json").unlink()
    return path


def test_verbs_read_the_model_from_the_plan(run: "Run", plan: str) -> None:
    for verb in (("explain", plan, "--why-not", "tp=2"), ("explain", plan, "--deep"), ("faults", "effective", plan)):
        assert run(*verb).code == 0
    checked = run("check", plan)
    assert (checked.code, "train.layers" in checked.out, "digest.models" in checked.out) == (0, False, False)


def test_what_a_plan_carries_of_a_model_is_what_it_was_made_from(run: "Run", plan: str) -> None:
    document = json.loads(Path(plan).read_text())
    assert document["inputs"]["models"]["policy"] == {"config": "tiny", "contents": CONFIG}
    document["inputs"]["models"]["policy"]["contents"]["num_hidden_layers"] = 8
    Path(plan).write_text(json.dumps(document))
    checked = run("check", plan)
    assert checked.code == 1
    assert "the config.json in the plan says of `tiny` something else" in " ".join(checked.out.split())


def test_contents_are_of_a_config(run: "Run", tmp_path: Path) -> None:
    (tmp_path / "problem.yaml").write_text(PROBLEM.replace("config: models/tiny", "name: qwen3-8b, contents: {}"))
    refused = run("solve", str(tmp_path / "problem.yaml"))
    assert (refused.code, "`contents` are of a `config.json`" in refused.err) == (2, True)


SERVED = """
schema: planner.problem/1
kind: workflow
models: {writer: {config: models/tiny}}
cluster: {pools: [{gpu: h100_sxm, gpus: 2, price: 2USD/h}]}
workloads: [{input_tokens: 512, output_tokens: 16, load: {rate: 4/s}, slo: {latency: {p90: 2s}}}]
objective: {minimize: cost}
options:
  simulated_requests: 200
  stages: [{name: answer, serve: {limits_s: [2], options: {modes: [colocated], tp: [1], pp: [1]}}}]
"""


def test_workflows_serve_models_of_a_config_and_are_checked_without_it(run: "Run", tmp_path: Path) -> None:
    config = tmp_path / "models" / "tiny" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CONFIG))
    (tmp_path / "problem.yaml").write_text(SERVED)
    path = tmp_path / "plan.json"
    assert run("solve", str(tmp_path / "problem.yaml"), "-o", str(path)).code == 0
    config.unlink()
    assert run("check", str(path), "--level", "proof").code == 0
    carried = {"writer": {"config": "tiny", "contents": CONFIG}}
    document = json.loads(path.read_text())
    assert document["inputs"]["models"] == carried
    assert document["decision"]["stages"][0]["plan"]["inputs"]["models"] == carried
