"""`make gpu` on a processor with a few small shapes: what it leaves, what it needs, and what is adopted of it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from families import families_from_json, families_to_json

from planner.check import check_plan
from planner.costs.operators.kernels import Gemm
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.evidence import Basis
from planner.costs.rates.pricer import make_pricer, open_store, profile_paths
from planner.costs.rates.profiled import Profiled
from planner.errors import PlannerError
from planner.execute.judge.pricing import plan_pricer
from planner.execute.shards.cases import role_steps
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles import embedded
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.profiling.bundle import MOST_FILES, SUMMARY, TABLES, adopt
from planner.hardware.profiling.shapes import BALANCED, Family
from planner.hardware.profiling.writer import CARD
from planner.load.problems import load_plan
from planner.models.library import find_model
from planner.plan.findings import FAILED
from planner.plan.reader import read_plan

pytest.importorskip("torch", reason="profiling needs PyTorch")

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"
PREPARED = ROOT / "benchmarks" / "gpu"
ABSENT = ("pydantic", "ortools", "pulp", "yaml", "networkx")
HEADS = (("heads", 2), ("kv_heads", 2), ("head_dim", 16))
SMALL = [
    Family("gemm", (("n", 96), ("k", 64)), (("m", (1, 4, 16)),)),
    Family("prefill_attention", HEADS, (("batch", (1,)), ("length", (16, 32)))),
    Family("decode_attention", HEADS, (("batch", (1,)), ("context", (16, 32)))),
]
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16,
    "max_position_embeddings": 16384, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
EXECUTED = {"llama-3.1-8b-tp1": ["chat", "prefill"], "llama-3.1-8b-train": ["job"]}


def prepare_inputs(folder: Path, names: dict[str, str]) -> Path:
    """A folder as prepare.py writes it, with few shapes and the prepared plans for a very small model."""
    (folder / "plans").mkdir(parents=True)
    shapes = {"families": families_to_json(SMALL), "accelerators": names, "executed": EXECUTED}
    (folder / "shapes.json").write_text(json.dumps(shapes))
    (folder / "plans" / "config.json").write_text(json.dumps(MODEL))
    for name in EXECUTED:
        plan = json.loads((PREPARED / "plans" / f"{name}.json").read_text())
        plan["inputs"]["models"]["model"] = {"config": "config.json"}
        for run in plan["decision"].get("stage_runs", ()):
            run["num_layers"] = 1
        (folder / "plans" / f"{name}.json").write_text(json.dumps(plan))
    shutil.copyfile(PREPARED / "catalog.json", folder / "catalog.json")
    return folder


def run_script(out: Path, inputs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script where the packages that the GPU machine lacks cannot be imported, and planner is not installed."""
    blocked = out.parent / "blocked"
    for name in ABSENT:
        (blocked / name).mkdir(parents=True, exist_ok=True)
        (blocked / name / "__init__.py").write_text(f"raise ImportError('{name} is not on this machine')\n")
    environment = {**os.environ, "PYTHONPATH": str(blocked)}
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--device", "cpu", "--inputs", str(inputs), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=out.parent, check=False)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    inputs = prepare_inputs(folder / "inputs", {})
    flags = ("--budget", "8", "--execute", "120", "--cut", "tokens=64,context=64,batch=4")
    done = run_script(folder / "out", inputs, *flags, "--accelerator", "h200_sxm")
    assert done.returncode == 0, done.stderr
    set_card(folder / "out", "sentinel_drift", 0.0)  # a shared processor drifts as it likes
    return folder / "out"


@pytest.fixture
def copied(result: Path, tmp_path: Path) -> Path:
    shutil.copytree(result, tmp_path / "copied")
    return tmp_path / "copied"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "checkout" / "hardware" / "profiles").mkdir(parents=True)
    return tmp_path / "checkout"


def everything(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def set_card(folder: Path, field: str, value: object) -> None:
    """Changes the card, and its digest in the summary."""
    card = json.loads((folder / CARD).read_text()) | {field: value}
    (folder / CARD).write_text(json.dumps(card))
    summary = json.loads((folder / SUMMARY).read_text())
    summary["files"][CARD] = hashlib.sha256((folder / CARD).read_bytes()).hexdigest()
    (folder / SUMMARY).write_text(json.dumps(summary))


def test_the_run_needs_nothing_that_the_machine_lacks_and_leaves_few_flat_files(result: Path) -> None:
    names = {path.name for path in result.iterdir()}
    assert names >= {TABLES, CARD, SUMMARY, "journal.jsonl", "verified.json", "executed.json"}
    assert len(names) <= MOST_FILES
    assert all(path.is_file() for path in result.iterdir())
    assert json.loads((result / SUMMARY).read_text())["finished"] is True


def test_the_profile_is_compared_with_points_it_did_not_choose(result: Path) -> None:
    verified = json.loads((result / "verified.json").read_text())
    assert set(verified["kinds"]) <= {"gemm", "prefill_attention", "decode_attention"}
    assert verified["points"]
    assert all(point["profile_s"] > 0 and point["measured_s"] > 0 for point in verified["points"])


def test_the_plans_are_executed_and_compared_with_the_fresh_profile(result: Path) -> None:
    executed = json.loads((result / "executed.json").read_text())
    runs = {(run["plan"], run["role"]): run for run in executed["runs"]}
    assert set(runs) == {(plan, role) for plan, roles in EXECUTED.items() for role in roles}
    assert not executed["unexecuted"]
    assert not any(run["faults"] for run in runs.values())
    assert {step["step"] for step in runs["llama-3.1-8b-tp1", "chat"]["steps"]} == {"prefill", "decode", "mixed"}
    assert {"train", "optimizer"} <= {step["step"] for step in runs["llama-3.1-8b-train", "job"]["steps"]}
    assert all("kernel tables of h200_sxm" in run["pricer"] for run in runs.values())
    errors = [abs(step["error"]) for run in runs.values() for step in run["steps"] if step["error"] is not None]
    told = executed["summary"]
    assert told["claimed"] == len(errors) >= 4
    assert told["worst_error"] == max(errors)
    assert min(errors) <= told["median_error"] <= max(errors)
    assert json.loads((result / SUMMARY).read_text())["executed"] == told


def test_the_prepared_files_are_those_that_the_catalogs_give_today() -> None:
    script = "import json, prepare; print(json.dumps(prepare.prepared()))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PREPARED, capture_output=True, text=True, check=True
    )  # fmt: skip
    today = json.loads(done.stdout)
    committed = {name: (PREPARED / name).read_text(encoding="utf-8") for name in today}
    stale = [name for name in today if today[name] != committed[name]]
    assert not stale, "run `python benchmarks/gpu/prepare.py`"
    assert {f"plans/{path.name}" for path in (PREPARED / "plans").iterdir()} <= set(today)


@pytest.mark.parametrize("path", sorted((PREPARED / "plans").glob("*.json")), ids=lambda path: str(path.stem))
def test_the_prepared_plans_fail_no_rule(path: Path) -> None:
    envelope, decision = load_plan(path)
    findings = check_plan(envelope, decision)
    assert [finding for finding in findings if finding.verdict == FAILED] == []


def test_the_executed_sizes_lie_between_those_that_the_profiler_may_measure() -> None:
    shapes = json.loads((PREPARED / "shapes.json").read_text())
    sizes: dict[str, set[int]] = {}
    for family in families_from_json(shapes["families"]):
        for name, values in family.sweep:
            sizes.setdefault(name, set()).update(values)
    for name, roles in shapes["executed"].items():
        plan = read_plan(PREPARED / "plans" / f"{name}.json")
        for step in (step for role in roles for step in role_steps(plan, plan.role(role))):
            assert step.prefill_tokens not in sizes["m"] | sizes["length"] - {0}
            assert step.decode_context not in sizes["context"]
            assert step.decode_sequences not in sizes["batch"] - {1}


def test_the_prepared_shapes_hold_every_kind_of_kernel() -> None:
    families = families_from_json(json.loads((PREPARED / "shapes.json").read_text())["families"])
    assert {family.kind for family in families} >= {
        *("gemm", "batched_gemm", "prefill_attention", "decode_attention", "latent_prefill", "latent_decode"),
        *("experts", "memory_pass", "copy", "launch"),
    }
    assert len({family.name for family in families}) == len(families)


def test_an_unknown_device_is_named(tmp_path: Path) -> None:
    done = run_script(tmp_path / "out", prepare_inputs(tmp_path / "inputs", {}), "--budget", "5")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no accelerator is known as")
    assert "--accelerator" in done.stderr


def test_an_adopted_profile_is_a_store_with_its_card_and_evidence(result: Path, checkout: Path) -> None:
    done = adopt(result, checkout)
    assert done.accelerator == "h200_sxm"
    assert ProfileStore.open([checkout / "hardware" / "profiles" / "h200_sxm"]).accelerators() == ["h200_sxm"]
    assert (done.profile / CARD).is_file()
    assert {path.name for path in done.evidence.iterdir()} == {path.name for path in result.iterdir()} - {TABLES}


def test_a_profile_is_adopted_again_in_place_of_the_older_one(result: Path, checkout: Path) -> None:
    adopt(result, checkout)
    before = everything(checkout)
    adopt(result, checkout)
    assert everything(checkout) == before


def _unfinished(folder: Path) -> None:
    summary = json.loads((folder / SUMMARY).read_text()) | {"finished": False}
    (folder / SUMMARY).write_text(json.dumps(summary))


def _half_tables(folder: Path) -> None:
    with zipfile.ZipFile(folder / TABLES) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if "/gemm/" not in name}
    index = json.loads(kept["index.json"])
    index["tables"] = {place: entry for place, entry in index["tables"].items() if entry["table"] != "gemm"}
    kept["index.json"] = json.dumps(index).encode()
    with zipfile.ZipFile(folder / TABLES, "w") as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    summary = json.loads((folder / SUMMARY).read_text())
    summary["files"][TABLES] = hashlib.sha256((folder / TABLES).read_bytes()).hexdigest()
    (folder / SUMMARY).write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / SUMMARY).unlink(), "the result is not whole"),
        (lambda folder: (folder / "journal.jsonl").unlink(), "the result is not whole"),
        (lambda folder: (folder / CARD).write_text("{}"), "was changed after the run"),
        (lambda folder: set_card(folder, "sentinel_drift", 0.2), "drifted by 0.2"),
        (lambda folder: set_card(folder, "accelerator", "../../etc"), "no name of an accelerator"),
        (lambda folder: set_card(folder, "accelerator", "h100_sxm"), "the card speaks of `h100_sxm`"),
        (_unfinished, "did not finish"),
        (_half_tables, "has no table gemm"),
    ],
)
def test_half_a_result_is_refused_and_nothing_is_filed(
    copied: Path, checkout: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(copied)
    with pytest.raises(PlannerError, match=said):
        adopt(copied, checkout)
    assert everything(checkout) == []


def test_a_folder_that_is_no_checkout_is_refused(result: Path, tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="no checkout"):
        adopt(result, tmp_path / "nowhere")


def test_experts_of_executed_plans_are_priced_under_the_even_load_that_they_get(result: Path, checkout: Path) -> None:
    plan = read_plan(PREPARED / "plans" / "qwen3-30b-a3b-ep8.json")
    profile = str(adopt(result, checkout).profile)
    pricer = plan_pricer(plan, plan.role("chat"), find_model("qwen3-30b-a3b"), profiles=(profile,))
    assert isinstance(pricer, Profiled)
    assert pricer.skew == BALANCED


def test_an_adopted_profile_prices_when_no_tables_are_given_and_says_so(
    result: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt(result, checkout)
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)
    monkeypatch.setattr(embedded, "FOLDER", checkout / "hardware" / "profiles")
    node = find_node("h200_sxm")
    store = open_store(profile_paths([]))
    pricer = make_pricer(
        Pool("here", node, 1), find_model("llama-3.1-8b"),
        engine="vllm", version=None, calibration=load_calibration(), store=store,
    )  # fmt: skip
    op = Gemm("qkv", 1.0, np.array([16.0]), np.array([96.0]), np.array([64.0]), "bf16")
    assert pricer.price(op).basis[0] == Basis.MEASURED
    assert any("come with planner" in note for note in getattr(pricer, "notes", ()))
    assert profile_paths(["mine"]) == ("mine",)
