"""`planner hardware` and `planner models`: filters, every figure with its source, and entries of one's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planner.hardware.library import builtin_library

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

HARDWARE = """\
nodes:
  our_h200:
    accelerator: h200_sxm
    num_gpus: 4
    scale_up: {size: 4, bandwidth: 450GB/s, latency: 1.3us}
    fabric: roce400
    host: {link_bandwidth: 64GB/s, memory: 1TB}
    sources: {scale_up: "our lab"}
instances:
  lab.4x: {provider: lab, node: our_h200, num_gpus: 2, price: 5USD/h, region: here, date: 2026-01-02, source: "our lab"}
"""
MODELS = """\
lab/tiny:
  aliases: [tiny]
  hidden_size: 64
  vocab_size: 100
  tied_embeddings: true
  max_context_tokens: 1024
  blocks:
    full:
      mixer: {grouped_query: {num_heads: 4, num_kv_heads: 4, head_dim: 16, v_head_dim: 16}}
      ffn: {dense: {intermediate_size: 128}}
  layers: [{times: 2, of: [full]}]
lab/tiny-FP8:
  like: lab/tiny
  weights: fp8
lab/qwen:
  like: Qwen/Qwen3-0.6B
  max_context_tokens: 2048
"""
PROBLEM = """\
schema: planner.problem/1
kind: serve
models: {served: {name: tiny}}
cluster: {pools: [{gpu: lab.4x, nodes: 1}]}
workloads: [{input_tokens: 100, output_tokens: 10}]
"""


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own catalog, empty, for one test."""
    folder = tmp_path / "own"
    monkeypatch.setenv("PLANNER_CATALOG", str(folder))
    return folder


def _file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def _json(done: "Outcome") -> dict[str, Any]:
    assert done.code == 0, done
    document: dict[str, Any] = json.loads(done.out)
    return document


def test_lists_are_narrowed_by_name_vendor_and_memory(run: "Run") -> None:
    nodes = _json(run("hardware", "list", "--vendor", "AMD", "--json"))["nodes"]
    assert {node["accelerator"]["name"] for node in nodes} == {"mi300x", "mi325x", "mi355x"}
    nodes = _json(run("hardware", "list", "--memory", "200GB", "--json"))["nodes"]
    assert min(node["accelerator"]["memory_bytes"] for node in nodes) >= 200e9
    assert len(nodes) < len(builtin_library().nodes)
    shown = run("hardware", "list", "--section", "instances", "--match", "P5")
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == [
        "p5.4xlarge",
        "p5.48xlarge",
        "p5e.48xlarge",
        "p5en.48xlarge",
    ]
    fabrics = _json(run("hardware", "list", "--section", "fabrics", "--match", "efa", "--json"))["fabrics"]
    assert {fabric["bandwidth_bytes_per_s"] for fabric in fabrics} == {50e9, 100e9, 6.25e9}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--section", "instance"), "did you mean `instances`?"),
        (("--memory", "80"), "must be a size"),
        (("--vendor", "foo"), "--vendor: unknown vendor `foo`\n  hint: known are amd, nvidia"),
        (("--section", "fabrics", "--vendor", "amd"), "--vendor: fabrics have no GPUs"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(run: "Run", arguments: tuple[str, ...], what: str) -> None:
    done = run("hardware", "list", *arguments)
    assert (done.code, done.out) == (2, "")
    assert what in done.err


@pytest.mark.parametrize("name", ["h200", "mi355x", "gb200_nvl72", "p5.48xlarge", "roce400_7to1", "EFA"])
def test_show_names_the_source_of_every_figure(run: "Run", name: str) -> None:
    shown = _json(run("hardware", "show", name, "--json"))
    assert all(text for texts in shown["sources"].values() for text in texts.values())
    text = run("hardware", "show", name).out
    for part, texts in shown["sources"].items():
        for figure, source in texts.items():
            assert f"{part}.{figure} " in text
            assert source in text


def test_an_instance_is_shown_with_its_price_region_and_day(run: "Run") -> None:
    shown = _json(run("hardware", "show", "P5.48xlarge", "--json"))
    assert shown["schema"] == "planner.instance/1"
    assert (shown["usd_per_hour"], shown["usd_per_gpu_hour"]) == (55.04, 55.04 / 8)
    assert (shown["region"], shown["date"]) == ("us-east-1", "2026-07-28")
    assert shown["node"]["num_gpus"] == 8
    unpriced = _json(run("hardware", "show", "p5e.48xlarge", "--json"))
    assert unpriced["usd_per_hour"] is None


def test_models_are_narrowed_by_name_family_and_costs(run: "Run") -> None:
    rows = _json(run("models", "list", "--family", "step", "--json"))["models"]
    assert {row["family"] for row in rows} == {"step"}
    assert "stepfun-ai/step3" in {row["name"] for row in rows}
    rows = _json(run("models", "list", "--match", "deepseek", "--json"))["models"]
    priced = _json(run("models", "list", "--match", "deepseek", "--priced", "--json"))["models"]
    assert 0 < len(priced) < len(rows)
    assert not any(row["unsupported"] for row in priced)


def test_a_model_is_shown_with_its_blocks_and_networks(run: "Run") -> None:
    shown = _json(run("models", "show", "NextStep-1", "--json"))
    assert [module["kind"] for module in shown["modules"]] == ["flow_head", "autoencoder"]
    assert shown["parameters_by_part"]["modules"] == 157_228_096
    text = run("models", "show", "NextStep-1").out
    assert "beside: flow_head" in text
    assert "not published" in text
    assert "https://huggingface.co/stepfun-ai/NextStep-1-Large" in text
    diffusion = run("models", "show", "Wan2.1-T2V-14B").out
    assert "a diffusion transformer denoises whole videos" in diffusion


def test_a_diffusion_model_counts_its_modules(run: "Run") -> None:
    (row,) = _json(run("models", "list", "--match", "Wan2.1-T2V-1.3B", "--json"))["models"]
    assert row["parameters"] == 1_418_996_800 + 5_680_910_336 + 127_000_000
    assert row["layers"] == 30


def test_imported_hardware_is_found_by_every_verb(run: "Run", catalog: Path, tmp_path: Path) -> None:
    path = _file(tmp_path, "our-lab.yaml", HARDWARE)
    added = _json(run("hardware", "import", path, "--json"))
    assert added["names"] == {"nodes": ["our_h200"], "instances": ["lab.4x"]}
    assert Path(added["file"]) == catalog / "hardware" / "our-lab.yaml"
    shown = _json(run("hardware", "show", "Our-H200", "--json"))
    assert (shown["num_gpus"], shown["sources"]["node"]) == (4, {"scale_up": "our lab"})
    names = [node["name"] for node in _json(run("hardware", "list", "--json"))["nodes"]]
    assert names[0] == "our_h200"
    assert len(names) == len(builtin_library().nodes) + 1


def test_imported_models_are_found_by_every_verb(run: "Run", catalog: Path, tmp_path: Path) -> None:
    added = _json(run("models", "import", _file(tmp_path, "lab.yaml", MODELS), "--json"))
    assert added["names"] == ["lab/tiny", "lab/tiny-FP8", "lab/qwen"]
    elements = 100 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    for name, weights in (("TINY", 2 * elements), ("lab/tiny", 2 * elements)):
        shown = _json(run("models", "show", name, "--json"))
        assert (shown["parameters"], shown["weights_bytes"]) == (elements, weights)
    assert _json(run("models", "show", "tiny-fp8", "--json"))["precisions"]["ffn"] == "fp8"
    assert _json(run("models", "show", "lab/qwen", "--json"))["max_context_tokens"] == 2048
    own = [row["name"] for row in _json(run("models", "list", "--json"))["models"] if row["own"]]
    assert own == added["names"]


def test_problems_take_own_models_and_the_price_of_own_instances(run: "Run", catalog: Path, tmp_path: Path) -> None:
    from planner.load.problems import load_problem
    from planner.problem.resolve import normalised

    run("hardware", "import", _file(tmp_path, "lab.yaml", HARDWARE))
    run("models", "import", _file(tmp_path, "lab-models.yaml", MODELS))
    resolved = load_problem(_file(tmp_path, "problem.yaml", PROBLEM))
    (pool,) = resolved.pools
    assert (pool.num_gpus, pool.usd_per_gpu_hour, pool.node.scale_up_size) == (2, 2.5, 2)
    assert resolved.price_notes == (
        "the price of pool `lab.4x` is the on-demand price of lab.4x in here on 2026-01-02: 5 USD an hour for 2 GPUs",
    )
    recorded = json.dumps(normalised(resolved)) + json.dumps(resolved.digests())
    assert '"usd_per_gpu_hour": 2.5' in recorded
    assert str(tmp_path) not in recorded
    stated = load_problem(_file(tmp_path, "stated.yaml", PROBLEM.replace("nodes: 1", "nodes: 1, price: 9USD/h")))
    assert (stated.pools[0].usd_per_gpu_hour, stated.price_notes) == (9.0, ())


def test_digests_hold_the_facts_of_an_entry_and_not_its_place(
    run: "Run", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.load.problems import load_problem

    digests = []
    for place, hardware in (("one", HARDWARE), ("two", HARDWARE), ("three", HARDWARE.replace("1.3us", "1.4us"))):
        monkeypatch.setenv("PLANNER_CATALOG", str(tmp_path / place))
        run("hardware", "import", _file(tmp_path, "lab.yaml", hardware))
        run("models", "import", _file(tmp_path, "lab-models.yaml", MODELS))
        digests.append(load_problem(_file(tmp_path, "problem.yaml", PROBLEM)).digests())
    assert digests[0] == digests[1]
    assert digests[0]["models"] == digests[2]["models"]
    assert digests[0]["hardware"] != digests[2]["hardware"]


def test_a_config_becomes_an_entry_of_the_same_model(run: "Run", catalog: Path, tmp_path: Path) -> None:
    from planner.models.library import find_model, load_model

    folder = tmp_path / "lab--tiny-llama"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config |= {"num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 512, "tie_word_embeddings": False}
    _file(folder, "config.json", json.dumps(config))
    assert run("models", "import", str(folder)).out == "lab/tiny-llama\n"
    imported, entry = load_model(folder), find_model("lab/tiny-llama")
    assert (entry.layers, entry.vocab_size, entry.precisions) == (imported.layers, 100, imported.precisions)
    run("models", "import", str(folder / "config.json"), "--name", "lab/other")
    assert find_model("other").layers == imported.layers
    assert str(tmp_path) not in (catalog / "models" / "lab-other.yaml").read_text()


@pytest.mark.parametrize(
    ("noun", "text", "old", "new", "line", "what"),
    [
        ("hardware", HARDWARE, "450GB/s", "450", 5, "must be a bandwidth"),
        ("hardware", HARDWARE, "roce400", "roce401", 6, "unknown fabric `roce401`"),
        ("hardware", HARDWARE, "node: our_h200", "node: our_h201", 10, "unknown hardware `our_h201`"),
        ("hardware", HARDWARE, "2026-01-02", "January", 10, "must be a day"),
        ("hardware", HARDWARE, ", date: 2026-01-02", "", 10, "a price without its region and date"),
        ("models", MODELS, "num_kv_heads: 4", "num_kv_heads: four", 9, "must be a plain int"),
        ("models", MODELS, "hidden_size", "hiden_size", 3, "unknown field `hiden_size`"),
        ("models", MODELS, "of: [full]", "of: [fool]", 11, "unknown block `fool`"),
        ("models", MODELS, "weights: fp8", "weights: fp9", 12, "unknown weight format `fp9`"),
        ("models", MODELS, "like: lab/tiny\n", "like: lab/tinny\n", 12, "is like the unknown model `lab/tinny`"),
        ("models", MODELS, "like: lab/tiny\n", "like: lab/tiny-FP8\n", 12, "which is like itself"),
        ("models", MODELS, "[tiny]", "tiny", 2, "must be a list of names"),
        ("models", "- a\n", "- a", "- b", 1, "must map names to models"),
    ],
)
def test_a_mistake_in_an_own_file_names_its_line_and_adds_nothing(
    run: "Run", catalog: Path, tmp_path: Path, noun: str, text: str, old: str, new: str, line: int, what: str
) -> None:
    assert old in text
    path = _file(tmp_path, "bad.yaml", text.replace(old, new))
    done = run(noun, "import", path)
    assert done.code == 2
    assert done.err.startswith(f"error: {path}:{line}: ")
    assert what in done.err
    assert "hint: " in done.err
    assert not (catalog / noun).exists()


def test_a_file_that_goes_bad_later_names_itself_in_every_verb(run: "Run", catalog: Path, tmp_path: Path) -> None:
    run("models", "import", _file(tmp_path, "lab.yaml", MODELS))
    own = catalog / "models" / "lab.yaml"
    own.write_text(MODELS.replace("hidden_size: 64", "hidden_size: -64"))
    done = run("models", "show", "tiny")
    assert done.code == 2
    assert f"{own}:3: " in done.err


def test_another_file_of_the_same_name_is_replaced_only_when_asked(run: "Run", catalog: Path, tmp_path: Path) -> None:
    path = _file(tmp_path, "lab.yaml", HARDWARE)
    assert run("hardware", "import", path).code == 0
    assert run("hardware", "import", path).code == 0  # the same content again
    _file(tmp_path, "lab.yaml", HARDWARE.replace("5USD/h", "6USD/h"))
    refused = run("hardware", "import", path)
    assert refused.code == 2
    assert "give --force" in refused.err
    assert _json(run("hardware", "show", "lab.4x", "--json"))["usd_per_hour"] == 5.0
    assert run("hardware", "import", path, "--force").code == 0
    assert _json(run("hardware", "show", "lab.4x", "--json"))["usd_per_hour"] == 6.0


def test_a_catalog_that_cannot_be_written_is_one_error(
    run: "Run", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_CATALOG", _file(tmp_path, "taken", "not a folder"))
    done = run("hardware", "import", _file(tmp_path, "lab.yaml", HARDWARE))
    assert done.code == 2
    assert "cannot be used" in done.err
    assert "PLANNER_CATALOG" in done.err


def test_entries_named_by_hand_cannot_leave_the_catalog(run: "Run", catalog: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config |= {"num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 512}
    _file(folder, "config.json", json.dumps(config))
    assert run("models", "import", str(folder), "--name", "../../x$(reboot)").code == 0
    assert [path.name for path in (catalog / "models").iterdir()] == ["x--reboot.yaml"]
    assert _json(run("models", "show", "../../x$(reboot)", "--json"))["layers"] == 2
