"""What the hardware catalog holds: published figures, instances with dated prices, pods of fabrics, quick look-ups."""

from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Collective
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.collectives import collective_s
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import price_operators
from planner.documents.read import Document, load_document, parse_document
from planner.errors import PlannerError
from planner.hardware import library
from planner.hardware.cluster import Pool
from planner.hardware.entries import SECTIONS, read_entries
from planner.hardware.index import CATALOG, catalog_index, fold
from planner.hardware.library import (
    builtin_library,
    find_accelerator,
    find_fabric,
    find_instance,
    find_node,
    known_library,
    load_user_hardware,
    price_per_gpu_hour,
    sources_of,
)
from planner.hardware.topology import Topology
from planner.models.library import find_model
from planner.models.precision import with_precision

TERA, GIGA = 1e12, 1e9

# name: (memory GB as sold, memory GB/s, dense bf16 TFLOP/s, dense fp8 TFLOP/s or none, W) as data sheets print them
DATA_SHEETS = {
    "v100_sxm_16gb": (16, 900, 125, None, 300),
    "a30": (24, 933, 165, None, 165),
    "a40": (48, 696, 149.7, None, 300),
    "a10g": (24, 600, 70, None, 300),
    "a100_pcie_40gb": (40, 1555, 312, None, 250),
    "a100_pcie": (80, 1935, 312, None, 300),
    "a100_sxm_40gb": (40, 1555, 312, None, 400),
    "a100_sxm": (80, 2039, 312, None, 400),
    "a800_sxm": (80, 2039, 312, None, 400),
    "l4": (24, 300, 242 / 2, 485 / 2, 72),
    "l40": (48, 864, 362.1 / 2, 724 / 2, 300),
    "l40s": (48, 864, 362.05, 733, 350),
    "h100_pcie": (80, 2000, 1513 / 2, 3026 / 2, 350),
    "h100_nvl": (94, 3900, 1671 / 2, 3341 / 2, 400),
    "h100_sxm": (80, 3350, 1979 / 2, 3958 / 2, 700),
    "h200_nvl": (141, 4800, 1671 / 2, 3341 / 2, 600),
    "h200_sxm": (141, 4800, 1979 / 2, 3958 / 2, 700),
    "gh200": (96, 4000, 1979 / 2, 3958 / 2, 900),
    "rtx_pro_6000": (96, 1597, 500, 1000, 600),
    "mi300x": (192, 5300, 1307.4, 2614.9, 750),
    "mi325x": (256, 6000, 1307.4, 2614.9, 1000),
    "mi355x": (288, 8000, 2516.6, 5033.2, 1400),
}


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_figures_are_those_of_the_data_sheets(name: str) -> None:
    memory, bandwidth, bf16, fp8, power = DATA_SHEETS[name]
    gpu = find_accelerator(name)
    # Drivers report less than is sold (ECC, firmware), and sellers mean GB or GiB.
    assert 0.93 * memory * 1e9 < gpu.memory_bytes <= memory * 2**30
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth * GIGA, rel=1e-9)
    assert gpu.peak("bf16") == pytest.approx(bf16 * TERA, rel=0.001)
    assert gpu.supports("fp8") == (fp8 is not None)
    assert gpu.peak("fp8") == pytest.approx((fp8 or bf16) * TERA, rel=0.001)
    assert gpu.power_w == power


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100-96GB-HBM2e-500W", "h100_hbm2e"),
        ("MI325X-256GB", "mi325x"),
        ("A100-80GB", "a100_sxm"),
        ("V100-16GB", "v100_sxm_16gb"),
        ("A800", "a800_sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("RTX PRO 6000", "rtx_pro_6000"),
        ("H100-PCIe", "h100_pcie"),
        ("GH200 480GB", "gh200"),
        ("L4", "l4"),
    ],
)
def test_names_that_training_and_placement_data_use_are_known(spelling: str, name: str) -> None:
    assert find_accelerator(spelling).name == name
    assert find_node(spelling).accelerator.name == name


def test_the_scan_of_the_text_finds_what_reading_the_files_finds() -> None:
    read = {
        (section, fold(spelling)): (path.stem, name)
        for path in CATALOG.glob("*.yaml")
        for section, entries in read_entries(load_document(path)).items()
        for name, entry in entries.items()
        for spelling in (name, *entry.get("aliases", ()))
    }
    assert {key: (place.file, place.name) for key, place in catalog_index().items()} == read
    assert {section for section, _ in read} == set(SECTIONS)


def test_a_part_of_the_catalog_says_what_the_whole_says() -> None:
    whole = builtin_library()
    for node in whole.nodes.values():
        assert find_node(node.name) == node
        assert sources_of("nodes", node.name) == whole.sources["nodes", node.name]
    for accelerator in whole.accelerators.values():
        assert find_node(accelerator.name) == find_node(accelerator.name, whole)
    for instance in whole.instances.values():
        assert find_instance(instance.name) == instance
        assert find_node(instance.name) == instance.node


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("h200", ["fabrics", "nvidia_hopper"]),
        ("mi300x", ["amd", "fabrics"]),
        ("p5.48xlarge", ["fabrics", "instances_aws", "nvidia_hopper"]),
    ],
)
def test_one_lookup_parses_the_files_that_it_needs_each_once(
    name: str, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes in a new process is held to its aim by benchmarks/stated_times.py."""
    parsed = parsed_files(monkeypatch)
    expected = find_node(name)
    assert sorted(parsed) == files
    assert find_node(name) == expected
    assert sorted(parsed) == files


def test_the_whole_catalog_parses_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parsed_files(monkeypatch)
    assert library.builtin_library() is library.builtin_library()
    assert sorted(parsed) == sorted(path.stem for path in CATALOG.glob("*.yaml"))


def parsed_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that look-ups parse from here on, as in a new process."""
    parsed: list[str] = []

    def load(path: Path) -> Document:
        parsed.append(path.stem)
        return load_document(path)

    monkeypatch.setattr(library, "load_document", load)
    for kept in ("_document", "_catalog", "_one_instance", "builtin_library"):
        monkeypatch.setattr(library, kept, cache(getattr(library, kept).__wrapped__))
    return parsed


def test_instances_have_the_gpus_links_and_network_of_their_pages() -> None:
    # AWS: 3200 Gb/s for eight H100; Azure: 400 Gb/s a GPU; Google: eight H200 at 400 Gb/s; one GPU has no link.
    for name, gpu, gpus, scale_up, gigabits in [
        ("p4d.24xlarge", "a100_sxm_40gb", 8, 8, 400),
        ("p5.48xlarge", "h100_sxm", 8, 8, 3200),
        ("p5en.48xlarge", "h200_sxm", 8, 8, 3200),
        ("p6-b200.48xlarge", "b200_sxm", 8, 8, 3200),
        ("p6-b300.48xlarge", "b300_sxm", 8, 8, 6400),
        ("p6e-gb200.36xlarge", "gb200", 4, 72, 1600),
        ("g6e.12xlarge", "l40s", 4, 4, 100),
        ("g6.xlarge", "l4", 1, 1, 10),
        ("a3-ultragpu-8g", "h200_sxm", 8, 8, 3200),
        ("a3-megagpu-8g", "h100_sxm", 8, 8, 1600),
        ("Standard_ND96isr_MI300X_v5", "mi300x", 8, 8, 3200),
        ("standard-nc80adis-h100-v5", "h100_nvl", 2, 2, 80),
    ]:
        node = find_node(name)
        assert (node.accelerator.name, node.num_gpus, node.scale_up_size) == (gpu, gpus, scale_up)
        assert node.nic_bandwidth_bytes_per_s * gpus * 8 == pytest.approx(gigabits * GIGA)


def test_prices_are_dated_placed_and_shared_out_evenly() -> None:
    priced = [instance for instance in known_library().instances.values() if instance.usd_per_hour is not None]
    assert len(priced) > 50
    for instance in priced:
        assert instance.region
        assert date.fromisoformat(instance.date) < date(2027, 1, 1)
        assert instance.source
        assert 0.3 < (instance.usd_per_gpu_hour or 0) < 25
    assert price_per_gpu_hour("p5.48xlarge") == 55.04 / 8
    assert price_per_gpu_hour("p5e.48xlarge") is None
    assert price_per_gpu_hour("h100") is None
    assert find_instance("h100") is None
    assert find_instance("nonsense") is None


def test_prices_a_gpu_of_one_family_are_of_one_order() -> None:
    def of(prefix: str) -> list[float]:
        return [
            i.usd_per_gpu_hour or 0
            for i in known_library().instances.values()
            if i.name.startswith(prefix) and i.usd_per_hour
        ]

    for prefix in ("g5.", "g6.", "g6e.", "g7e.", "a2-ultragpu", "a3-highgpu"):
        assert max(of(prefix)) < 5 * min(of(prefix))
    assert len({round(price, 4) for price in of("a2-ultragpu")}) == 1


@pytest.mark.parametrize("name", ["mi300x", "mi325x", "mi355x", "rtx_pro_6000", "l4", "v100_sxm_16gb", "gh200"])
def test_parts_without_kernel_tables_are_priced_from_their_figures(name: str) -> None:
    node = find_node(name)
    arch = with_precision(find_model("Llama-3.1-8B"), "fp8" if node.accelerator.supports("fp8") else "bf16")
    pricer = Roofline(node.accelerator, Pool("p", node, 2).topology(), load_calibration("none").efficiencies)
    seconds = price_operators(forward(arch, Shards.of(1), Work.decode([1.0], 1000)), pricer, 1).seconds
    weights = 8.03e9 * (1 if node.accelerator.supports("fp8") else 2)
    least = weights / node.accelerator.memory_bandwidth_bytes_per_s
    assert least * 0.9 < seconds[0] < least * 2.5


def test_products_stay_as_far_below_their_peak_as_is_known_of_a_part() -> None:
    h100, mi300x = find_accelerator("h100"), find_accelerator("mi300x")
    assert h100.comparable_peak("fp8_block") == h100.peak("fp8")
    assert mi300x.comparable_peak("fp8") / h100.comparable_peak("fp8") == pytest.approx(990 / 1280)
    assert mi300x.comparable_peak("nvfp4") == mi300x.comparable_peak("bf16") == pytest.approx(620e12 / 720 * 989.5)


def test_mxfp4_runs_at_its_own_rate_on_cdna_4_alone() -> None:
    assert find_accelerator("mi355x").supports("mxfp4")
    assert not find_accelerator("mi355x").supports("nvfp4")
    assert not find_accelerator("mi300x").supports("mxfp4")
    assert find_accelerator("mi355x").peak("mxfp4") == pytest.approx(
        4 * find_accelerator("mi355x").peak("bf16"), rel=1e-4
    )


def test_pods_of_an_oversubscribed_fabric_are_a_level_of_the_topology() -> None:
    node = find_node("H100-96GB-HBM2e-500W")
    assert (node.pod_gpus, node.pod_oversubscription) == (3072, 7.0)
    small, large = Pool("s", node, 100).topology(), Pool("l", node, 1000).topology()
    assert [(level.name, level.size) for level in small.levels] == [("nvlink", 8), ("fabric", 800)]
    assert [(level.name, level.size) for level in large.levels] == [("nvlink", 8), ("pod", 3072), ("fabric", 9216)]
    assert [level.bandwidth_bytes_per_s for level in large.levels] == [450e9, 50e9, 50e9 / 7]
    (inner, pod, outer) = large.members_per_domain(np.array([6144]), np.array([1]))
    assert (inner[0], pod[0], outer[0]) == (8, 3072, 6144)
    halved = Pool("o", node, 1000, oversubscription=2.0).topology()
    assert [level.bandwidth_bytes_per_s for level in halved.levels[1:]] == [25e9, 25e9 / 7]


def test_two_gpus_of_a_mesh_share_one_link_and_all_of_them_all_links() -> None:
    # MI300X: seven Infinity Fabric links of 64 GB/s and direction.
    (mesh,) = Pool("m", find_node("mi300x"), 1).topology().levels
    np.testing.assert_allclose(mesh.rate_bytes_per_s([1, 2, 4, 8]), [64e9, 64e9, 192e9, 448e9])
    (switch,) = Pool("s", find_node("h100"), 1).topology().levels
    np.testing.assert_array_equal(switch.rate_bytes_per_s([1, 2, 8]), [450e9] * 3)
    ideal = load_calibration("none").efficiencies
    pair = Collective("c", 1.0, "all_reduce", np.array([64e9]), np.array([2.0]), np.array([1.0]))
    bare = Topology((replace(mesh, latency_s=0.0),))
    assert collective_s(pair, bare, ideal)[0] == pytest.approx(1.0)  # half the buffer twice over one link


def test_a_node_on_another_fabric_takes_its_pods_along() -> None:
    node = find_node("h100").on(find_fabric("ndr400_2to1"))
    assert (node.pod_gpus, node.pod_oversubscription, node.nic_latency_s) == (256, 2.0, 5e-6)
    back = node.on(find_fabric("ndr400"))
    assert back == find_node("h100")


def test_half_an_oversubscription_is_refused() -> None:
    text = "fabrics:\n  odd: {bandwidth: 100Gb/s, latency: 5us, pod_gpus: 64}\n"
    with pytest.raises(PlannerError, match="only one of pod_gpus and oversubscription") as caught:
        load_user_hardware(parse_document(text, "my.yaml"))
    assert caught.value.where == "my.yaml:2"


def test_users_files_need_no_part_of_the_package_and_win_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_CATALOG", str(tmp_path))
    (tmp_path / "hardware").mkdir()
    own = tmp_path / "hardware" / "own.yaml"
    own.write_text("fabrics:\n  ndr400: {bandwidth: 300Gb/s, latency: 9us}\n")
    assert find_fabric("ndr400").latency_s == 9e-6
    own.write_text("fabrics:\n  ndr400: {bandwidth: 300Gb/s, latency: 11us}\n")
    assert find_fabric("ndr400").latency_s == 11e-6
    own.unlink()
    assert find_fabric("ndr400").latency_s == 5e-6
