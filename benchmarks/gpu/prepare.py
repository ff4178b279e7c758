"""Writes what `make gpu` needs on a machine without PyYAML and pydantic: shapes, plans, and catalogs as JSON.

shapes.json holds the shapes to profile and the names of accelerators; plans/ the plans whose shards are executed;
catalog.json the data of the YAML files that pricing them reads, by the SHA-256 of their text.
Run it again when a catalog or the derivation of shapes changes: `python benchmarks/gpu/prepare.py`.
"""

import hashlib
import json
import sys
from pathlib import Path

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from example_plans import example_plans, executed_roles
from families import families_to_json

from planner.cli.measured.profile import MODELS
from planner.costs.shape_list import shape_list
from planner.documents.files import write_text_atomic
from planner.documents.read import load_document
from planner.hardware.library import builtin_library
from planner.models.library import find_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHAPES, CATALOG, PLANS = "shapes.json", "catalog.json", "plans"
TP, EP = (1, 2, 4, 8), (8, 32)
CATALOGS = (
    "planner/costs/rates/calibration.yaml",
    "planner/engines/settings.yaml",
    *(f"models/catalog/{name}.yaml" for name in ("deepseek", "llama", "names", "qwen3")),
    *(f"hardware/catalog/{name}.yaml" for name in ("fabrics", "nvidia_ada", "nvidia_ampere", "nvidia_blackwell")),
    "hardware/catalog/nvidia_hopper.yaml",
)


def prepared() -> dict[str, str]:
    """The text of every file, by its path below this folder."""
    plans = {f"{PLANS}/{name}.json": text for name, text in example_plans().items()}
    return {SHAPES: _shapes(), CATALOG: _catalog(), **plans}


def _shapes() -> str:
    archs = [find_model(name) for name in MODELS.split(",")]
    library = builtin_library()
    names = {alias: name for (section, alias), name in sorted(library.aliases.items()) if section == "accelerators"}
    lines = [
        json.dumps(family, separators=(",", ":"))
        for family in families_to_json(list(shape_list(archs, tp=TP, ep=EP).families))
    ]
    head = {"schema": "planner.gpu_shapes/1", "models": MODELS, "tp": TP, "ep": EP, "accelerators": names}
    head |= {"executed": executed_roles()}
    return json.dumps(head)[:-1] + ', "families": [\n' + ",\n".join(lines) + "\n]}\n"


def _catalog() -> str:
    """Every file on one line, so that a difference shows what changed."""
    lines = []
    for name in CATALOGS:
        text = (ROOT / name).read_text(encoding="utf-8")
        data = json.dumps(load_document(ROOT / name).data, ensure_ascii=False, separators=(",", ":"))
        lines.append(f'"{hashlib.sha256(text.encode()).hexdigest()}": {data}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    (HERE / PLANS).mkdir(exist_ok=True)
    for file, content in prepared().items():
        write_text_atomic(HERE / file, content)
