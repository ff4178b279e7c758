"""Writes benchmarks/gpu/shapes.json: the shapes to profile and the names of accelerators, for machines without PyYAML.

Run it again when a model, an accelerator or the derivation of shapes changes: `python benchmarks/gpu/prepare.py`.
"""

import json
from pathlib import Path

from planner.cli.profile import MODELS
from planner.costs.shape_list import shape_list
from planner.files import write_text_atomic
from planner.hardware.library import builtin_library
from planner.hardware.profiling.shapes import families_to_json
from planner.models.library import find_model

FILE = Path(__file__).parent / "shapes.json"
TP, EP = (1, 2, 4, 8), (8, 32)


def prepared() -> str:
    """The text of the file."""
    archs = [find_model(name) for name in MODELS.split(",")]
    library = builtin_library()
    names = {alias: name for (section, alias), name in sorted(library.aliases.items()) if section == "accelerators"}
    lines = [
        json.dumps(family, separators=(",", ":"))
        for family in families_to_json(list(shape_list(archs, tp=TP, ep=EP).families))
    ]
    head = json.dumps({"schema": "planner.gpu-shapes/1", "models": MODELS, "tp": TP, "ep": EP, "accelerators": names})
    return head[:-1] + ', "families": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    write_text_atomic(FILE, prepared())
