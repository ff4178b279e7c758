"""`planner profile`, `planner profiles compare` and `planner profiles adopt` as commands."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import compute, parquet

from planner.cli.main import main
from planner.costs.compare import compare
from planner.costs.shape_list import powers, shape_list
from planner.hardware.library import find_accelerator
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.profiling.loads import expert_loads
from planner.hardware.profiling.measure import measure
from planner.hardware.profiling.shapes import ExpertsShape, Family
from planner.models.library import find_model

pytest.importorskip("torch", reason="profiling needs PyTorch")

ROOT = Path(__file__).parent.parent.parent
FAMILIES = [
    Family("gemm", (("n", 96), ("k", 64)), (("m", (1, 4, 16)),)),
    Family("memory_pass", (("pass_kind", "norm"), ("width", 64)), (("moved_bytes", (4096, 65536)),)),
]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    measure(FAMILIES, folder, accelerator="h200_sxm", device="cpu", budget_s=20, version="2026.1.1")
    return folder


def slower(folder: Path, original: Path, factor: float) -> Path:
    """The same profile with every point `factor` slower."""
    folder.mkdir()
    lines = []
    for line in (original / "journal.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name in ("median_s", "p10_s", "p90_s"):
            if name in entry:
                entry[name] *= factor
        lines.append(json.dumps(entry) + "\n")
    (folder / "journal.jsonl").write_text("".join(lines))
    measure(FAMILIES, folder, accelerator="h200_sxm", device="cpu", budget_s=20, version="2026.1.1", resume=True)
    return folder


def test_a_small_profile_from_the_command_is_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine"
    flags = ["--device", "cpu", "--models", "llama-3.2-1b", "--tp", "8", "--ep", "1", "--budget", "4s", "--json"]
    assert main(["profile", *flags, "--accelerator", "mine", "-o", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "planner.profiled/1"
    assert document["points"] > 0
    assert ProfileStore.open([out]).accelerators() == ["mine"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tp", "two"], "positive whole numbers"),
        (["--budget", "fast"], "--budget"),
        (["--models", "llama-99"], "llama-99"),
        (["--device", "tpu"], "cuda or cpu"),
    ],
)
def test_bad_flags_are_named(flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--device", "cpu", *flags, "-o", str(tmp_path / "mine")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert not (tmp_path / "mine").exists()


def test_a_profile_compared_with_itself_agrees_everywhere(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "compare", str(profile), str(profile), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {line["table"] for line in document["lines"]} == {"gemm", "memory_pass"}
    for line in document["lines"]:
        assert line["ratio"] == pytest.approx(1.0)
        assert line["within"] == 1.0
        assert 0 < line["utilisation"][0] < 1


def test_a_profile_that_is_slower_shows_by_how_much(profile: Path, tmp_path: Path) -> None:
    other = slower(tmp_path / "slow", profile, 1.3)
    stores = [ProfileStore.open([folder]) for folder in (profile, other)]
    comparison = compare("h200_sxm", find_accelerator("h200_sxm"), stores[0], stores[1], ("fast", "slow"))
    for line in comparison.lines:
        assert line.ratio == pytest.approx(1.3, rel=0.02)
        assert line.within == 0.0


def scaled_tables(folder: Path, original: Path, factor: float) -> Path:
    """The dense products and attention of one engine as tables of ours, every latency times `factor`."""
    for table, family in (("gemm", "gemm"), ("context_attention", "attention"), ("generation_attention", "attention")):
        (file,) = sorted((original / family / "vllm").glob(f"*/{table}_perf.parquet"))[-1:]
        rows = parquet.read_table(file)
        latency = compute.multiply(rows["latency"], factor)
        rows = rows.set_column(rows.schema.get_field_index("latency"), "latency", latency)
        place = folder / "h200_sxm" / family / "planner" / "2026.1.1"
        place.mkdir(parents=True, exist_ok=True)
        parquet.write_table(rows, place / f"{table}_perf.parquet")
    return folder


def test_tables_a_tenth_slower_than_the_vendors_are_found_ten_per_cent_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vendor = ROOT.parent / "shared" / "data" / "kernel-profiles" / "h200_sxm"
    if not vendor.is_dir():
        pytest.skip("the vendor's tables are not beside the checkout")
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    ours = scaled_tables(tmp_path / "ours", vendor, 1.1)
    flags = ["--engine", "vllm", "--json"]
    assert main(["profiles", "compare", str(ours), str(vendor), *flags]) == 0
    lines = {line["table"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert set(lines) == {"gemm", "context_attention", "generation_attention"}
    for line in lines.values():
        assert line["shared"] > 0.9 * line["cells"]
        assert line["difference"] == pytest.approx(0.10, abs=1e-6)
        assert line["ratio"] == pytest.approx(1 / 1.1, rel=1e-6)
        assert line["within"] == 1.0


def test_shapes_that_the_other_profile_lacks_are_not_compared(profile: Path, tmp_path: Path) -> None:
    other = [replace(FAMILIES[0], sweep=(("m", (2, 5, 16)),))]
    measure(other, tmp_path, accelerator="h200_sxm", device="cpu", budget_s=20, version="2026.1.1")
    stores = [ProfileStore.open([folder]) for folder in (profile, tmp_path)]
    comparison = compare("h200_sxm", None, stores[0], stores[1], ("first", "second"))
    lines = {line.table: line for line in comparison.lines}
    assert lines["gemm"].shared == 1  # m = 16
    assert lines["memory_pass"].shared == 0
    assert lines["memory_pass"].difference is None


def test_comparing_prints_a_table_that_names_units(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "compare", str(profile), str(profile)]) == 0
    printed = capsys.readouterr().out
    assert "utilisation" in printed
    assert "100 %" in printed


def test_adopting_outside_of_a_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "adopt", str(tmp_path), "--root", str(tmp_path)]) == 2
    assert "no checkout" in capsys.readouterr().err


def test_shapes_of_a_dense_model_are_its_products_under_each_degree() -> None:
    listed = shape_list([find_model("llama-3.1-8b")], tp=(1, 8), training=False)
    gemms = {(dict(family.fixed)["n"], dict(family.fixed)["k"]) for family in listed.families if family.kind == "gemm"}
    hidden, inter, heads, kv_heads, head = 4096, 14336, 32, 8, 128
    for tp in (1, 8):
        qkv = (heads + 2 * kv_heads) * head // tp
        assert {(qkv, hidden), (hidden, heads * head // tp), (2 * inter // tp, hidden), (hidden, inter // tp)} <= gemms
    attention = [dict(family.fixed) for family in listed.families if family.kind == "decode_attention"]
    assert {(shape["heads"], shape["kv_heads"]) for shape in attention} == {(32, 8), (4, 1)}


def test_training_adds_the_products_over_tokens_and_the_gradient_of_attention() -> None:
    inference, training = (shape_list([find_model("llama-3.1-8b")], tp=(1,), training=flag) for flag in (False, True))
    added = set(training.families) - set(inference.families)
    assert any(family.kind == "gemm" and family.sweep[0][0] == "k" for family in added)
    assert any(family.kind == "prefill_attention" and dict(family.fixed)["backward"] for family in added)


def test_a_model_in_four_bits_is_named_among_the_skipped() -> None:
    listed = shape_list([find_model("gpt-oss-20b")], tp=(1,), training=False)
    assert any("no kernel in PyTorch" in reason for reason in listed.skipped)


def test_sweeps_go_from_end_to_end() -> None:
    assert powers(1, 48) == (1, 2, 4, 8, 16, 24, 32, 48)


@pytest.mark.parametrize("distribution", ["balanced", "power_law_1.01", "power_law_1.2"])
@pytest.mark.parametrize("tokens", [1, 7, 512])
def test_experts_get_every_choice_of_every_token_once(distribution: str, tokens: int) -> None:
    shape = ExpertsShape(tokens, 1, 1, 64, 32, 4, 16, distribution=distribution)
    loads = expert_loads(shape)
    assert sum(loads) == tokens * shape.top_k
    assert max(loads) <= tokens


def test_a_power_law_loads_the_busiest_rank_more_than_an_even_spread() -> None:
    even, skewed = (ExpertsShape(512, 1, 4, 64, 32, 2, 16, distribution=name) for name in ("balanced", "power_law_1.2"))
    assert sum(expert_loads(skewed)) > 1.2 * sum(expert_loads(even))
