"""Plans of models that came from a config.json: every verb that reads the model again is told where it lies."""

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
    """The path of a plan whose model is not where verbs look unasked."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    path = str(tmp_path / "plan.json")
    assert run("solve", str(tmp_path / "problem.yaml"), "-o", path).code == 0
    return path


def test_verbs_read_the_model_where_it_is_said_to_lie(run: "Run", plan: str) -> None:
    inputs = ("--inputs", str(Path(plan).parent / "models"))
    for verb in (("explain", plan, "--why-not", "tp=2"), ("explain", plan, "--deep"), ("faults", "effective", plan)):
        refused = run(*verb)
        assert (refused.code, "config.json of model `policy` is not at hand" in refused.err) == (2, True)
        assert run(*verb, *inputs).code == 0


def test_what_hangs_on_the_model_alone_is_judged_where_it_lies(run: "Run", plan: str) -> None:
    unlocated = run("check", plan)
    assert unlocated.code == 1
    assert "train.layers  stage_runs: not judged: neither the catalog" in unlocated.out
    located = run("check", plan, "--inputs", str(Path(plan).parent / "models"))
    assert (located.code, "train.layers" in located.out, "digest.models" in located.out) == (0, False, False)
