"""`planner experts` from files to files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

SHARED = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "experts"


def _loads(folder: Path, windows: int = 1) -> str:
    rng = np.random.default_rng(0)
    load = rng.permuted(np.tile(1e4 / np.arange(1, 33) ** 0.7, (windows, 2, 1)), axis=2)
    path = folder / "recorded.npz"
    np.savez(path, load=load if windows > 1 else load[0])
    return str(path)


def test_recorded_loads_become_a_placement(run: "Run", tmp_path: Path) -> None:
    output = tmp_path / "placement.npz"
    asked = ("--ranks", "8", "--slots-per-rank", "6", "--json", "-o", str(output))
    done = run("experts", "solve", _loads(tmp_path), *asked)
    assert done.code == 0, done
    document = json.loads(done.out)
    assert document["schema"] == "planner.experts/1"
    assert document["bound"]["mean"] <= document["objective"]["mean"]
    assert document["status"] in ("feasible", "optimal")
    with np.load(output) as written:
        assert written["phy2log"].shape == (2, 48)


def test_a_placement_is_the_resident_layout_of_the_next_solve(run: "Run", tmp_path: Path) -> None:
    output = str(tmp_path / "placement.npz")
    asked = ("--ranks", "8", "--slots-per-rank", "6", "-o", output)
    assert run("experts", "solve", _loads(tmp_path), *asked).code == 0
    done = run("experts", "solve", _loads(tmp_path), *asked, "--resident", output, "--json")
    assert done.code == 0, done
    assert json.loads(done.out)["moved_bytes"] == 0


def test_tradeoffs_run_from_staying_to_balance(run: "Run", tmp_path: Path) -> None:
    done = run("experts", "tradeoff", _loads(tmp_path), "--ranks", "8", "--slots-per-rank", "6", "--json")
    assert done.code == 0, done
    choices = json.loads(done.out)["choices"]
    moved = [choice["moved_experts"] for choice in choices]
    balance = [choice["imbalance_mean"] for choice in choices]
    assert moved[0] == 0
    assert moved == sorted(moved)
    assert balance == sorted(balance, reverse=True)
    assert len(choices) > 2


def test_more_tokens_than_a_rank_has_room_for_are_infeasible(run: "Run", tmp_path: Path) -> None:
    on = ("--ranks", "8", "--slots-per-rank", "6")
    few = run("experts", "solve", _loads(tmp_path), *on, "--peak-tokens", "10")
    assert few.code == 1
    assert "no layout is below" in few.out
    assert run("experts", "solve", _loads(tmp_path), *on, "--peak-tokens", "1000000").code == 0


def test_groups_are_confined_to_nodes(run: "Run", tmp_path: Path) -> None:
    on = ("--ranks", "8", "--slots-per-rank", "6", "--ranks-per-node", "4", "--groups", "4")
    bounds = []
    for nodes in ("1", "2"):
        done = run("experts", "solve", _loads(tmp_path), *on, "--nodes-per-group", nodes, "--json")
        assert done.code == 0, done
        bounds.append(json.loads(done.out)["bound"]["mean"])
    assert bounds[0] > bounds[1]


def _model(folder: Path, layers: int = 2, dense: tuple[int, ...] = ()) -> str:
    """A mixture of 32 experts as a config.json, of which some layers are dense."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "vocab_size": 128,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts": 32, "num_experts_per_tok": 4,
        "decoder_sparse_step": 1, "mlp_only_layers": list(dense), "hidden_act": "silu", "torch_dtype": "bfloat16",
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    }  # fmt: skip
    path = folder / "model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


ON = ("--ranks", "8", "--slots-per-rank", "6")


@pytest.mark.parametrize("form", ["sglang", "vllm", "vllm-ascend", "tensorrt-llm"])
def test_a_layer_of_experts_without_load_is_refused(run: "Run", tmp_path: Path, form: str) -> None:
    """Forms that count layers would give every later layer the layout of the one before it."""
    load = np.load(_loads(tmp_path))["load"]
    path = tmp_path / "gap.npz"
    np.savez(path, load=np.stack([load[0], np.zeros_like(load[0]), load[1]]))
    done = run("experts", "solve", str(path), *ON, "--model", _model(tmp_path, 3), "--form", form)
    assert done.code == 2
    assert "layer 1 of `model` has experts and no load" in done.err
    unknown = run("experts", "solve", str(path), *ON)
    assert unknown.code == 2
    assert "layer 1 has no load, and a layer before it has" in unknown.err


def test_layers_that_the_model_makes_dense_are_left_out_wherever_they_stand(run: "Run", tmp_path: Path) -> None:
    load = np.load(_loads(tmp_path))["load"]
    path = tmp_path / "gap.npz"
    np.savez(path, load=np.stack([load[0], np.zeros_like(load[0]), load[1], np.zeros_like(load[0])]))
    done = run("experts", "solve", str(path), *ON, "--model", _model(tmp_path, 4, (1, 3)), "--form", "sglang")
    assert done.code == 0, done
    rows = json.loads(done.out)["physical_to_logical_map"]
    assert len(rows) == 4
    assert rows[1] == rows[3] == [slot % 32 for slot in range(48)]
    assert rows[0] != rows[2]


@pytest.mark.parametrize("form", ["sglang", "vllm", "vllm-ascend", "tensorrt-llm"])
def test_layouts_leave_in_the_forms_of_engines(run: "Run", tmp_path: Path, form: str) -> None:
    asked = ("experts", "solve", _loads(tmp_path), *ON, "--model", _model(tmp_path), "--form", form)
    done = run(*asked)
    assert done.code == 0, done
    assert "0" in done.out
    folder = tmp_path / "launch"
    written = run(*asked, "-o", str(folder))
    assert written.code == 0, written
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(files) >= 2
    assert done.out in files.values()
    alone = tmp_path / "layout.json"
    assert run(*asked, "-o", str(alone)).code == 0
    assert alone.read_text() == done.out


def test_forms_of_engines_need_the_model(run: "Run", tmp_path: Path) -> None:
    done = run("experts", "solve", _loads(tmp_path), *ON, "--form", "vllm")
    assert done.code == 2
    assert "--model: is needed for --form vllm" in done.err


def test_sizes_and_replays_are_printed(run: "Run", tmp_path: Path) -> None:
    path = _loads(tmp_path, windows=3)
    sized = run("experts", "size", path, "--ranks", "8", "--most-extra", "1", "--json")
    assert sized.code == 0, sized
    assert len(json.loads(sized.out)["sizes"]) == 2
    on = ("--ranks", "8", "--slots-per-rank", "5")
    drawing = tmp_path / "imbalance.svg"
    replayed = run("experts", "replay", path, *on, "--plot", str(drawing), "--policy", "static", "--policy", "oracle")
    assert replayed.code == 0, replayed
    assert "oracle" in replayed.out
    assert drawing.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--slots-per-rank", "6"), "--ranks"),
        (("--ranks", "8", "--slots-per-rank", "3"), "24 slots cannot hold 32 experts"),
        (("--ranks", "8", "--slots-per-rank", "6", "--form", "sglan"), "did you mean `sglang`"),
        (("--ranks", "8", "--slots-per-rank", "6", "--shares", "some"), "must be `equal` or `free`"),
        ((*ON, "--form", "vllm", "--model", "deepseek-v3"), "holds 2 layers of 32 experts"),
        (("--ranks", "8", "--slots-per-rank", "6", "--resident", "nowhere.npz"), "file not found"),
    ],
)
def test_what_cannot_be_done_is_refused(run: "Run", tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = run("experts", "solve", _loads(tmp_path), *flags)
    assert done.code == 2
    assert said in done.err


@pytest.mark.skipif(not SHARED.exists(), reason="the shared instances are not here")
def test_flags_that_contradict_an_instance_are_refused(run: "Run") -> None:
    done = run("experts", "solve", str(SHARED / "shared_3_qwen235_ep16.npz"), "--ranks", "8")
    assert done.code == 2
    assert "an instance says so itself" in done.err


def _problem(folder: Path, **options: object) -> str:
    """A problem of kind `experts` on the loads of `_loads`: 8 ranks of 6 slots."""
    stated = {"ep": 8, "slots_per_rank": 6, "policy": "static", "loads": Path(_loads(folder, 2)).name, **options}
    pools = [{"gpu": "unspecified", "nodes": 2, "gpus_per_node": 4}]
    problem = {
        "kind": "experts",
        "cluster": {"pools": pools},
        "objective": {"minimize": "imbalance"},
        "options": stated,
    }
    path = folder / "problem.json"
    path.write_text(json.dumps(problem), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("verb", ["size", "replay", "tradeoff"])
def test_a_problem_says_what_loads_and_flags_do(run: "Run", tmp_path: Path, verb: str) -> None:
    flags = ["--ranks", "8", "--ranks-per-node", "4", *(["--slots-per-rank", "6"] if verb != "size" else [])]
    policies = ["--policy", "static", "--policy", "ahead"] if verb == "replay" else []
    of_problem = run("experts", verb, _problem(tmp_path), *policies, "--json")
    of_loads = run("experts", verb, str(tmp_path / "recorded.npz"), *flags, *policies, "--json")
    assert of_problem.code == of_loads.code == 0, of_problem
    assert json.loads(of_problem.out) == json.loads(of_loads.out)


def test_what_a_problem_states_is_no_flag_and_other_kinds_are_refused(run: "Run", tmp_path: Path) -> None:
    refused = run("experts", "size", _problem(tmp_path), "--ranks-per-node", "4")
    assert (refused.code, "--ranks-per-node: a problem says so itself" in refused.err) == (2, True)
    other = run("experts", "replay", str(Path(__file__).parents[2] / "examples" / "serve-qwen3-32b-h200.yaml"))
    assert (other.code, "is a problem of kind `serve`" in other.err) == (2, True)
    solved = run("experts", "solve", _problem(tmp_path))
    assert (solved.code, "planner solve PROBLEM" in solved.err) == (2, True)
