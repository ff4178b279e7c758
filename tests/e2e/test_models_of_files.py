"""Problems whose model is a config.json: solved, and simulated and emitted without the file."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner import solve

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "head_dim": 128,
    "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 4096, "max_position_embeddings": 8192, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "attention_bias": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "acme--tiny"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    return made


def test_a_served_model(folder: Path) -> None:
    plan = solve(
        {
            "schema": "planner.problem/1",
            "kind": "serve",
            "models": {"chat": {"config": str(folder)}},
            "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 1}]},
            "engine": {"name": "vllm"},
            "workloads": [
                {
                    "load": {"rate": "1/s"},
                    "input_tokens": 200,
                    "output_tokens": 20,
                    "slo": {"ttft": "2s", "tpot": "50ms"},
                }
            ],
            "objective": {"minimize": "gpus"},
        }
    )
    (folder / "config.json").unlink()
    assert plan.simulate(first=10).result.complete.all()
    (script,) = plan.emit("vllm").values()
    assert "vllm serve acme/tiny" in script
    assert str(folder) not in script


def test_a_trained_model(folder: Path) -> None:
    plan = solve(
        {
            "schema": "planner.problem/1",
            "kind": "train",
            "models": {"policy": {"config": str(folder)}},
            "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 1}]},
            "engine": {"name": "megatron-lm"},
            "objective": {"minimize": "step_time"},
            "options": {
                "global_batch": 8,
                "sequence_tokens": 4096,
                "search": {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1},
            },
        }
    )
    (folder / "config.json").unlink()
    text = plan.emit("megatron-lm")["launch.sh"]
    assert "--num-layers 4" in text
    assert str(folder) not in text
