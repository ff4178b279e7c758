"""The page that lists the catalogs is what the catalogs hold; `pytest --update-golden` writes it anew."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from planner.documents.units import format_si, significant
from planner.hardware.cluster import CloudInstance, NodeType
from planner.hardware.library import builtin_library
from planner.models.architecture import Architecture
from planner.models.library import find_model, list_models
from planner.models.parameters import parameter_counts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "catalog.md"

INTRODUCTION = """\
# The catalogs

What is known by name. `planner hardware show NAME` and `planner models show NAME` print every figure with its source. A
name is found in any case and by its aliases. How to give others: [hardware](adding-hardware.md),
[models](adding-a-model.md). This page is written by the tests that hold it to the catalogs.
"""


def _table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _nodes(nodes: Iterator[NodeType]) -> Iterator[Sequence[str]]:
    for node in nodes:
        gpu = node.accelerator
        yield (
            f"`{node.name}`",
            f"`{gpu.name}`",
            gpu.display_name,
            str(node.num_gpus),
            format_si(gpu.memory_bytes, "B"),
            format_si(gpu.memory_bandwidth_bytes_per_s, "B/s"),
            format_si(gpu.peak("bf16"), "FLOP/s"),
            ", ".join(precision for precision in ("fp8", "nvfp4", "mxfp4") if gpu.supports(precision)) or "-",
            f"{format_si(node.scale_up_bandwidth_bytes_per_s, 'B/s')} {node.scale_up_kind} x {node.scale_up_size}",
        )


def _instances(instances: Iterator[CloudInstance]) -> Iterator[Sequence[str]]:
    for instance in instances:
        priced = instance.usd_per_hour is not None
        yield (
            f"`{instance.name}`",
            f"{instance.node.num_gpus} `{instance.node.accelerator.name}`",
            format_si(instance.node.nic_bandwidth_bytes_per_s, "B/s"),
            f"{instance.usd_per_hour:.2f}" if priced else "-",
            f"{instance.region}, {instance.date}" if priced else "-",
        )


def _fabrics() -> Iterator[Sequence[str]]:
    for fabric in builtin_library().fabrics.values():
        pods = f"{significant(fabric.oversubscription)} to 1 beyond {fabric.pod_gpus} GPUs" if fabric.pod_gpus else "-"
        yield (
            f"`{fabric.name}`",
            format_si(fabric.bandwidth_bytes_per_s, "B/s"),
            format_si(fabric.latency_s, "s"),
            pods,
        )


def _models() -> Iterator[Sequence[str]]:
    for model in list_models():
        arch = find_model(model.name)
        yield (
            f"`{model.name}`",
            ", ".join(f"`{alias}`" for alias in model.aliases) or "-",
            _billions(arch),
            "yes" if not arch.unsupported_parts() else "no: " + "; ".join(arch.unsupported_parts()),
        )


def _billions(arch: Architecture) -> str:
    counts = parameter_counts(arch)
    hollow = arch.layers and any("encoder" not in part for part in counts.unknown) and not arch.modules
    return "-" if hollow else f"{significant((counts.total or counts.modules) / 1e9)}B"


def _page() -> str:
    library = builtin_library()
    parts = [
        INTRODUCTION,
        "## Nodes and their accelerators\n",
        _table(
            ("node", "accelerator", "", "GPUs", "memory", "bandwidth", "bf16 dense", "8 and 4 bits", "links"),
            _nodes(iter(library.nodes.values())),
        ),
        "## Fabrics\n\nPer GPU and direction.\n",
        _table(("fabric", "bandwidth", "latency", "oversubscription"), _fabrics()),
        "## Cloud instances\n\nPrices are of the whole instance and hour, on demand, in USD, there and on that day.\n",
    ]
    for provider in dict.fromkeys(instance.provider for instance in library.instances.values()):
        own = (instance for instance in library.instances.values() if instance.provider == provider)
        parts += [
            f"### {provider}\n",
            _table(("instance", "GPUs", "network a GPU", "price", "region and day"), _instances(own)),
        ]
    parts += ["## Models\n", _table(("model", "other names", "parameters", "costs"), _models())]
    return "\n".join(parts)


def test_the_page_lists_what_the_catalogs_hold(request: pytest.FixtureRequest) -> None:
    page = _page()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page
