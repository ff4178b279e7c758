"""The hardware catalog: names, figures, sources, and files of users."""

import json
import pickle
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.files import canonical_json, digest
from planner.documents.read import parse_document
from planner.errors import PlannerError
from planner.hardware.library import (
    Library,
    builtin_library,
    find_accelerator,
    find_fabric,
    find_node,
    hardware_facts,
    known_library,
    load_user_hardware,
    price_per_gpu_hour,
    sources_of,
)

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT.parent / "shared" / "data" / "kernel-profiles"

FIGURES = {
    "accelerators": {"memory", "memory_bandwidth", "peak", "launch_latency", "power", "compute_capability"}
    | {"multiprocessors"},
    "nodes": {"scale_up", "fabric", "host"},
    "fabrics": {"bandwidth", "latency"},
}

USER_FILE = """\
accelerators:
  x1:
    memory: 100GB
    memory_bandwidth: 2TB/s
    peak: {bf16: 500TFLOPS}
    launch_latency: 3us
    power: 500W
    compute_capability: "9.0"
fabrics:
  slow: {bandwidth: 10Gb/s, latency: 50us}
nodes:
  x1_server:
    accelerator: x1
    num_gpus: 4
    scale_up: {size: 4, bandwidth: 100GB/s, latency: 2us}
    fabric: slow
    host: {link_bandwidth: 32GB/s, memory: 512GB}
clusters:
  lab:
    pools:
      - {name: a, node: x1, num_nodes: 3, fabric: ndr400, price: 1.5USD/h, oversubscription: 2}
"""


def user_library(text: str = USER_FILE) -> Library:
    return load_user_hardware(parse_document(text, "my.yaml"))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100", "h100_sxm"),
        ("h100-sxm", "h100_sxm"),
        ("H100-SXM5-80GB", "h100_sxm"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H200", "h200_sxm"),
        ("A100-SXM4-40GB", "a100_sxm_40gb"),
        ("A100-SXM4-80GB", "a100_sxm"),
        ("A100", "a100_sxm"),
        ("H800-SXM-80GB", "h800_sxm"),
        ("H20", "h20_sxm"),
        ("B200-SXM-180GB", "b200_sxm"),
        ("B300-SXM-288GB", "b300_sxm"),
        ("GB200-NVL72-186GB", "gb200"),
        ("GB300-NVL72-288GB", "gb300"),
        ("L40S", "l40s"),
    ],
)
def test_spellings_that_data_use_find_their_accelerator(spelling: str, name: str) -> None:
    assert find_accelerator(spelling).name == name
    assert find_node(spelling).accelerator.name == name


@given(
    st.sampled_from([(a.name, s) for a in known_library().accelerators.values() for s in (a.name, *a.aliases)]),
    st.data(),
)
def test_case_and_separators_never_matter(named: tuple[str, str], data: st.DataObject) -> None:
    name, spelling = named
    letters = [data.draw(st.sampled_from([c.lower(), c.upper()])) for c in spelling if c not in "-_ "]
    mixed = "".join(c + data.draw(st.sampled_from(["", "-", "_", " "])) for c in letters)
    assert find_accelerator(mixed).name == name


def test_every_accelerator_has_a_default_node_and_every_node_is_found_by_name() -> None:
    library = known_library()
    accelerators = set(library.accelerators.values())
    assert {find_node(accelerator.name).accelerator for accelerator in accelerators} == accelerators
    assert all(find_node(node.name) == node for node in library.nodes.values())
    assert all(find_fabric(fabric.name) == fabric for fabric in library.fabrics.values())


def test_every_figure_of_the_catalog_names_its_source() -> None:
    library = builtin_library()
    for section, figures in FIGURES.items():
        for name in getattr(library, section):
            more = set()
            if section == "fabrics" and library.fabrics[name].pod_gpus:
                more = {"pod_gpus", "oversubscription"}
            if section == "accelerators" and library.accelerators[name].reached_flop_per_s:
                more = {"reached"}
            assert set(sources_of(section, name)) == figures | more, f"{section}.{name}"


def test_an_unknown_name_is_an_error_that_offers_near_ones() -> None:
    with pytest.raises(PlannerError) as caught:
        find_node("h9999", where="job.yaml:3")
    assert str(caught.value).startswith("job.yaml:3: unknown hardware `h9999`\n  hint: did you mean `h100_sxm`")
    assert caught.value.hint.endswith("list them with `planner hardware list`")
    for find in (find_accelerator, find_fabric):
        with pytest.raises(PlannerError, match="unknown"):
            find("zzzz")


def test_nodes_can_be_keys_and_travel_to_other_processes() -> None:
    for node in known_library().nodes.values():
        copy = pickle.loads(pickle.dumps(node))
        assert {node: 1}[copy] == 1


def test_racks_have_nodes_of_four_gpus_in_one_domain_of_72() -> None:
    for name in ("gb200", "gb300"):
        node = find_node(name)
        assert (node.num_gpus, node.scale_up_size) == (4, 72)


def test_catalog_figures_agree_with_the_system_files_of_the_kernel_profiles() -> None:
    if not PROFILES.is_dir():
        pytest.skip("no kernel profiles beside the repository")
    # The system files round: memory to whole GiB, rates to whole TFLOPS. Known differences, with the reason:
    different = {
        ("b200_sxm", "pcie_bw"),  # says PCIe 6.0; the data sheet has PCIe 5.0, 128 GB/s both ways
        ("gb200", "pcie_bw"),  # says PCIe 5.0; GB200 hosts are reached over NVLink-C2C
    }
    checked = 0
    for path in sorted(PROFILES.glob("*/system.yaml")):
        system, node = yaml.safe_load(path.read_text()), find_node(path.parent.name)
        gpu, accelerator = system["gpu"], node.accelerator
        between = system["node"].get("inter_rack_bw", system["node"]["inter_node_bw"])
        pairs = {
            "mem_bw": (accelerator.memory_bandwidth_bytes_per_s, gpu["mem_bw"], 0.001),
            "mem_capacity": (accelerator.memory_bytes, gpu["mem_capacity"], 0.006),
            "bfloat16_tc_flops": (accelerator.peak("bf16"), gpu["bfloat16_tc_flops"], 0.001),
            "int8_tc_flops": (accelerator.peak("int8"), gpu["int8_tc_flops"], 0.001),
            "power": (accelerator.power_w, gpu["power"], 0),
            "intra_node_bw": (node.scale_up_bandwidth_bytes_per_s, system["node"]["intra_node_bw"], 0),
            "inter_node_bw": (node.nic_bandwidth_bytes_per_s, between, 0),
            "pcie_bw": (node.pcie_bandwidth_bytes_per_s, system["node"]["pcie_bw"], 0),
            "num_gpus_per_node": (node.num_gpus, system["node"]["num_gpus_per_node"], 0),
        }
        for key, precision in (("fp8_tc_flops", "fp8"), ("fp4_tc_flops", "nvfp4")):
            assert accelerator.supports(precision) == (key in gpu)
            if key in gpu:
                pairs[key] = (accelerator.peak(precision), gpu[key], 0.001)
        for key, (ours, theirs, tolerance) in pairs.items():
            assert (abs(ours - theirs) <= tolerance * theirs) != ((path.parent.name, key) in different), (path, key)
        assert int(accelerator.compute_capability.replace(".", "")) == gpu["sm_version"]
        checked += 1
    assert checked >= 5


def test_hop_latencies_are_half_the_smallest_measured_all_reduce() -> None:
    tables = {
        "a100_sxm": "1.0.0",
        "h100_sxm": "1.3.0rc20",
        "h200_sxm": "1.3.0rc20",
        "b200_sxm": "1.3.0rc20",
        "gb200": "1.3.0rc20",
    }
    for name, version in tables.items():
        path = PROFILES / name / "comm" / "trtllm" / version / "custom_allreduce_perf.parquet"
        if not path.is_file():
            pytest.skip("no kernel profiles beside the repository")
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path).to_pydict()
        pairs = zip(table["num_gpus"], table["message_size"], table["latency"], strict=True)
        smallest_s = min(ms for gpus, size, ms in pairs if gpus == 2 and size == 128) / 1e3
        assert find_node(name).scale_up_latency_s == pytest.approx(smallest_s / 2, rel=0.05)


def test_facts_are_plain_json_and_change_with_any_figure_but_not_with_spelling() -> None:
    facts = hardware_facts(find_node("h200"))
    assert json.loads(canonical_json(facts)) == facts
    assert facts["accelerator"]["peak_flop_per_s"]["bf16"] == 989.5e12
    base = digest(hardware_facts(user_library().nodes["x1_server"]))
    for old, new in (("100GB/s", "101GB/s"), ("500TFLOPS", "501TFLOPS"), ("512GB", "513GB"), ("10Gb/s", "11Gb/s")):
        assert digest(hardware_facts(user_library(USER_FILE.replace(old, new)).nodes["x1_server"])) != base
    renamed = USER_FILE.replace(
        "    memory: 100GB\n", "    memory: 100GB\n    aliases: [other]\n    display_name: Other\n"
    )
    assert digest(hardware_facts(user_library(renamed).nodes["x1_server"])) == base


def test_a_users_file_adds_hardware_without_touching_the_catalog() -> None:
    library = user_library()
    node = find_node("X1", library)
    assert (node.name, node.nic_bandwidth_bytes_per_s, node.scale_up_kind) == ("x1_server", 1.25e9, "nvlink")
    (pool,) = library.clusters["lab"]
    assert (pool.num_gpus, pool.node.nic_bandwidth_bytes_per_s) == (12, 50e9)
    assert (pool.usd_per_gpu_hour, pool.oversubscription) == (1.5, 2.0)
    assert find_node("h100", library).name == "hgx_h100"
    with pytest.raises(PlannerError, match="unknown hardware"):
        find_node("x1")


def test_a_users_entry_replaces_the_one_of_the_same_name() -> None:
    entry = USER_FILE.split("fabrics:")[0].replace("  x1:", "  h100_sxm:")
    library = user_library(entry)
    assert find_node("H100", library).accelerator.memory_bytes == 100e9
    node = "nodes:\n  ours:\n" + USER_FILE.split("  x1_server:\n")[1].split("clusters:")[0]
    library = user_library(node.replace("x1", "h200_sxm").replace("slow", "ndr400"))
    assert find_node("h200", library).name == "ours"
    assert find_node("hgx_h200", library).name == "hgx_h200"


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("memory: 100GB", "memory: 100", 3, "`accelerators.x1.memory` must be a size"),
        ("memory: 100GB", "memory: 100GB/s", 3, "`accelerators.x1.memory` must be a size"),
        ("2TB/s", "-2TB/s", 4, "must be above zero and finite"),
        ("2TB/s", "0TB/s", 4, "must be above zero and finite"),
        ("2TB/s", "1e999TB/s", 4, "must be above zero and finite"),
        ("2TB/s", "[2TB/s]", 4, "must be a bandwidth"),
        ("{bf16: 500TFLOPS}", "{fp8: 500TFLOPS}", 5, "lacks the key `bf16`"),
        ("{bf16: 500TFLOPS}", "{bf16: 500TFLOPS, fp9: 1TFLOPS}", 5, "`accelerators.x1.peak.fp9` is not a known key"),
        ("{bf16: 500TFLOPS}", "500TFLOPS", 5, "must be a mapping"),
        ("power: 500W", "power: 500TFLOPS", 7, "must be a power"),
        ('"9.0"', "9.0", 8, "must be text of one line"),
        ("power: 500W", "powr: 500W", 7, "`accelerators.x1.powr` is not a known key"),
        ("    power: 500W\n", "", 2, "lacks the key `power`"),
        ("accelerator: x1", "accelerator: x9", 13, "unknown hardware `x9`"),
        ("fabric: slow", "fabric: fast", 16, "unknown fabric `fast`"),
        ("num_gpus: 4", "num_gpus: 0", 14, "must be a whole number above zero"),
        ("num_gpus: 4", "num_gpus: true", 14, "must be a whole number above zero"),
        ("size: 4", "size: 6", 15, "neither a multiple nor a divisor"),
        ("{size: 4", "{kind: rope, size: 4", 15, "must be `nvlink` or `xgmi` or `pcie`"),
        ("node: x1,", "node: x9,", 21, "unknown hardware `x9`"),
        ("oversubscription: 2", "oversubscription: 0.5", 21, "must be a number of at least 1"),
        ("    pools:\n", "    pools: []\n  other:\n    pools:\n", 20, "is empty"),
        ("  x1:\n", "  x1:\n    aliases: [H100]\n", 2, "which already means `h100_sxm`"),
        ("  x1:\n", "  x1:\n    aliases: H100\n", 3, "must be a list"),
        ("  x1:", '  "x1; $(rm)":', 2, "is no name"),
        ("accelerators:", "accelerator:", 1, "`accelerator` is not a known key"),
    ],
)
def test_a_mistake_in_a_users_file_is_one_error_with_its_line(old: str, new: str, line: int, what: str) -> None:
    assert old in USER_FILE
    with pytest.raises(PlannerError, match=re.escape(what)) as caught:
        user_library(USER_FILE.replace(old, new, 1))
    assert caught.value.where == f"my.yaml:{line}"
    assert caught.value.hint


def test_an_accelerator_without_a_node_cannot_stand_for_one() -> None:
    library = user_library(USER_FILE.split("fabrics:")[0])
    assert find_accelerator("x1", library).peak("fp8") == 500e12
    with pytest.raises(PlannerError, match="stands in no node type"):
        find_node("x1", library)


def test_the_page_on_adding_hardware_works_as_written() -> None:
    page = (ROOT / "docs" / "adding-hardware.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    library = load_user_hardware(parse_document(block, "docs"))
    node = find_node("x100", library)
    assert (node.name, node.accelerator.name, node.num_gpus) == ("x100_server", "x100_sxm", 8)
    assert (node.pod_gpus, node.pod_oversubscription) == (512, 4.0)
    assert find_node("x1.24xlarge", library).nic_bandwidth_bytes_per_s == 25e9
    assert price_per_gpu_hour("x1.24xlarge", library) == 4.8
    assert node.accelerator.supports("fp8")
    assert not node.accelerator.supports("nvfp4")
    assert sources_of("accelerators", "x100_sxm", library)["peak"].startswith("X100 data sheet")
    for precision in ("fp32", "tf32", "bf16", "fp8", "nvfp4", "mxfp4", "int8"):
        assert precision in page
