"""What costs rest on, by kind, GPU, engine and model: the table of docs/trust.md.

    python benchmarks/trust.py

Measured: groups of serving runs that the shipped calibration was fitted to, layouts of training runs behind the rates,
public RL runs that are held against predictions. All else is worked out from data sheets with efficiencies that other
groups gave; kernel tables that a user installs are named last.
"""

import csv
import glob
import re
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from planner.cli.render.columns import table
from planner.costs.rates.calibration import load_calibration
from planner.documents.read import load_document
from planner.hardware.library import builtin_library
from planner.models.library import find_model, list_models

EXAMPLES = Path(__file__).parent.parent / "examples" / "rl-runs"
HEADER = ("kind", "GPU", "engine or code", "model", "rests on")


def main() -> None:
    rows = [*serving(), *training(), *post_training()]
    print(table(HEADER, [*rows, *others(rows)]))


def serving() -> Iterator[tuple[str, ...]]:
    """Groups that the shipped calibration knows, each with how its steps lie to the shared costs."""
    names = _names_of_sizes()
    for group, bias in sorted(load_calibration("default").runs.items()):
        sizes, formats, gpu, engine = group.split()
        model = f"{names.get(sizes, sizes)} {formats}"
        yield "serve", gpu, engine, model, f"{bias.runs} measured runs, steps {100 * bias.mean:+.0f} % of the costs"


def _names_of_sizes() -> dict[str, str]:
    """The first model of the catalog of each size that reads text alone, as measured serving runs do."""
    names: dict[str, str] = {}
    for entry in list_models():
        arch = find_model(entry.name)
        if arch.modules:
            continue
        names.setdefault(f"{arch.num_layers}x{arch.hidden_size}x{arch.vocab_size}", entry.name.partition("/")[2])
    return names


def training() -> Iterator[tuple[str, ...]]:
    """Distinct layouts of measured runs, by the generation of their GPU, the code, and what model it was."""
    text = resources.files("planner.costs.training").joinpath("measured_layouts.csv").read_text(encoding="utf-8")
    counts = Counter((row["generation"], row["code"], row["kind"]) for row in csv.DictReader(text.splitlines()))
    for (generation, code, kind), layouts in sorted(counts.items()):
        yield "train", generation, code, kind, f"{layouts} measured layouts"


def post_training() -> Iterator[tuple[str, ...]]:
    """Public runs that predictions are held against."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for path in sorted(glob.glob(str(EXAMPLES / "*.yaml"))):
        document: Any = load_document(path).data
        said = re.match(r"# (\S+) ", Path(path).read_text(encoding="utf-8"))
        model = document["models"]["policy"]["name"].partition("/")[2]
        counts[document["cluster"]["pools"][0]["gpu"], said[1] if said else "", model] += 1
    for (gpu, framework, model), runs in sorted(counts.items()):
        yield "rl", gpu, framework, model, f"{runs} public steps to compare with"


def others(rows: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """What is left: GPUs without a run, and kinds that rest on the costs of others."""
    measured = {gpu for kind, gpu, *_ in rows if kind == "serve"}
    unseen = [name for name in builtin_library().accelerators if name not in measured]
    yield "serve", f"{len(unseen)} others of the catalog", "any", "any", "data sheet, efficiencies of other GPUs"
    yield "serve", "those above", "any", "any other", "efficiencies of that GPU and engine, interval wider"
    yield "train", "any other", "any other", "any other", "data sheet, rates of other runs; the plan says so"
    yield "experts, place", "any", "any", "any", "recorded loads or stated rates, step times as in serving"
    yield "any", "any", "any", "any", "kernel tables where installed: `planner profiles list`"


if __name__ == "__main__":
    main()
