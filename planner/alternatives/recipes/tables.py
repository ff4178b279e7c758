"""Tables of public recipes, how a model or a GPU of one is told to be that of a plan, and what a recipe is."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from planner.models.architecture import Architecture
from planner.models.parameters import parameter_counts

Row = Mapping[str, str]
_CHIPS = ("gb200", "gb300", "b200", "b300", "h100", "h200", "h800", "a100", "l40s", "mi300x", "rtx_pro_6000")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe in words, with its source, and its decisions as `--why-not` takes them; empty where none is an axis."""

    what: str
    axes: str
    figures: Mapping[str, float] = field(default_factory=dict)


@cache
def table(name: str) -> tuple[Row, ...]:
    """All rows of a file of this folder, by its columns."""
    text = resources.files("planner.alternatives.recipes").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def chip(gpu: str) -> str:
    """`h100` of `hgx_h100`, `h100_sxm` and `grand_teton_h100`."""
    return next((name for name in _CHIPS if name in gpu.split("_") or gpu.startswith(name)), gpu)


def sizes(arch: Architecture) -> tuple[str, str]:
    """Layers and parameters of a model, as rows state them: the same for every format of its weights."""
    return str(len(arch.layers)), str(parameter_counts(arch).total)


def origin(source: str) -> str:
    """The repository and commit of a source with the end of its path: what finds it, in few characters."""
    repository, _, path = source.partition(":")
    return f"{repository} {'/'.join(path.split('/')[-2:])}".strip()


def degrees(axes: Mapping[str, str]) -> str:
    """`tp2 ep4`, or that there is no degree beyond one."""
    return " ".join(f"{axis}{size}" for axis, size in axes.items() if size not in ("", "1")) or "tp1"
