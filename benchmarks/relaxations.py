"""Metamorphic: a problem with one limit loosened must not have a worse answer, whatever its kind.

    python benchmarks/relaxations.py                 every example, some 15 minutes
    python benchmarks/relaxations.py --quick         a few of every kind, some 60 s
    python benchmarks/relaxations.py --only place-   examples whose names start so
    python benchmarks/relaxations.py --level static  plans judged by formulas, where the kind has levels
    python benchmarks/relaxations.py --steps 3       each limit loosened so often, one step after the other

Every plan of a problem is one of the loosened problem, so of the two answers

    lost    the loosened problem has none
    bound   its bound says that the plan of the original cannot be
    worse   its objective is worse by more than its own gap explains
    gap     its objective is worse, within its gap
    ok      its objective is as good or better

The first three are faults, and end in exit code 1. What the kind of a problem does not read is not loosened. Figures a
GPU of serving and of placements, which count all GPUs at hand, stand for their sums.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.api import solve
from planner.documents.read import given_document, load_document
from planner.documents.units import PER_S, TIME_S, parse_quantity
from planner.errors import Infeasible, PlannerError, Stopped
from planner.load.problems import resolve_document
from planner.problem.slo import SloSpec

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
QUICK = (
    "fleet-beside-production", "place-four-models", "place-gpu-mix", "place-lora", "rl-grpo-7b",
    "serve-cost-one-pool", "serve-qwen3-32b-h200", "train-qwen3-vl-8b", "workflow-functions",
)  # fmt: skip
LOOSER, LESS = 1.2, 0.8
UTILISATION, MORE_UTILISATION = 0.9, 0.03
SAME = 1e-6  # relative
DEGREES = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "whole_nodes")
FAULTS = ("lost", "bound", "worse")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a problem is answered with: the sense, value and bound of its objective, or in words why there is none."""

    minimised: bool = True
    value: float | None = None
    bound: float | None = None
    optimal: bool = False
    gap: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The value, or why there is none."""
        return self.why if self.value is None else f"{self.value:.6g}"


def main() -> int:
    """Print a line for every example and loosened limit; 1 where one is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--level")
    parser.add_argument("--steps", type=int, default=1)
    asked = parser.parse_args()
    counts = dict.fromkeys((*FAULTS, "gap", "ok"), 0)
    for path in sorted(EXAMPLES.glob("*.yaml")):
        document = load_document(path).data
        chosen = path.stem in QUICK if asked.quick else path.stem.startswith(asked.only)
        if chosen and document.get("schema") == "planner.problem/1":
            for verdict in _verdicts(path.stem, document, asked.level, asked.steps):
                counts[verdict] += 1
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if any(counts[verdict] for verdict in FAULTS) else 0


def _verdicts(name: str, document: Document, level: str | None, steps: int) -> Iterator[str]:
    """The verdict of every limit of a problem that can be loosened, and of every step, printed."""
    base = _answer(document, level)
    if base is None or base.value is None:
        print(f"{name:28} no plan: {base.why if base else 'not valid'}", flush=True)
        return
    for loosened, loosen in RELAXATIONS.items():
        looser, best = copy.deepcopy(document), base
        for _ in range(steps):
            answer = _answer(looser, level) if loosen(looser) else None
            if answer is None:
                break
            verdict = judged(best, answer)
            gap = "" if answer.gap is None else f"gap {answer.gap:.2%}"
            print(f"{name:28} {loosened:7} {best.text:>10} -> {answer.text:10} {gap:12} {verdict}", flush=True)
            yield verdict
            best = answer if verdict == "ok" else best


def judged(before: Answer, after: Answer) -> str:
    """What the answer of a loosened problem is, beside that of the original."""
    if after.value is None:
        return "lost"
    assert before.value is not None
    sign = 1.0 if before.minimised else -1.0
    tolerance = SAME * max(abs(before.value), abs(after.value))
    if after.bound is not None and sign * (after.bound - before.value) > tolerance:
        return "bound"
    if sign * (after.value - before.value) <= tolerance:
        return "ok"
    return "worse" if after.bound is None or after.optimal else "gap"


def _answer(document: Document, level: str | None) -> Answer | None:
    """None for what is no valid problem."""
    try:
        resolved = resolve_document(given_document(document, "problem"), EXAMPLES)
        certificate = solve(resolved, level=level).certificate
    except Infeasible as none:
        return Answer(why=f"infeasible{'' if none.proved else ', not proved'}")
    except Stopped as stopped:
        return Answer(why=stopped.reason)
    except PlannerError:
        return None
    objective, bound = certificate.objective, certificate.bound
    at_hand = objective.metric.endswith("_per_gpu") and resolved.problem.kind in ("serve", "place")
    scale = float(sum(len(pool.job_devices) for pool in resolved.pools)) if at_hand else 1.0
    assert objective.value is not None
    return Answer(
        objective.sense == "minimize",
        objective.value * scale,
        None if bound is None else bound * scale,
        certificate.status == "optimal",
        certificate.gap,
    )


def _limits_looser(document: Document) -> bool:
    """Every limit on times 1.2 times as long."""
    changed = False
    for owner in _mappings(document):
        slo = owner.get("slo")
        if not isinstance(slo, dict):
            slo = {}
        for time_name, limit in list(slo.items()):
            if time_name in SloSpec.quantities:
                continue
            slo[time_name] = (
                {statistic: _times(value, TIME_S, LOOSER) for statistic, value in limit.items()}
                if isinstance(limit, dict)
                else _times(limit, TIME_S, LOOSER)
            )
            changed = True
        if "max_iteration" in owner:
            owner["max_iteration"], changed = _times(owner["max_iteration"], TIME_S, LOOSER), True
    return changed


def _one_more_node(document: Document) -> bool:
    """In every pool."""
    pools = document.get("cluster", {}).get("pools", [])
    for pool in pools:
        if "topology" in pool or "node_names" in pool:
            return False
        if "nodes" in pool:
            pool["nodes"] += 1
        else:
            pool["gpus"] += pool.get("gpus_per_node", min(8, pool["gpus"]))
    if "gpus" in document.get("limits", {}):
        document["limits"]["gpus"] += 8
    return bool(pools)


def _larger_batches(document: Document) -> bool:
    """Twice as large ones allowed."""
    changed = False
    for owner in _mappings(document):
        most = owner.get("max_batch")
        if isinstance(most, int):
            owner["max_batch"], changed = 2 * most, True
        elif isinstance(most, list):
            owner["max_batch"], changed = [*most, 2 * max(most)], True
    return changed


def _more_slots(document: Document) -> bool:
    """For adapters of an engine, or experts of a rank."""
    changed = False
    for owner in _mappings(document.get("options", {})):
        for name in ("slots_per_rank", "slots", "max_stages", "max_staleness"):
            if isinstance(owner.get(name), int):
                owner[name], changed = owner[name] + 1, True
    return changed and document["kind"] != "workflow"


def _more_memory(document: Document) -> bool:
    """That engines may use."""
    engine = document.setdefault("engine", {})
    engine["memory_utilisation"] = engine.get("memory_utilisation", UTILISATION) + MORE_UTILISATION
    return True


def _less_load(document: Document) -> bool:
    """A fifth fewer requests."""
    changed = False
    for owner in _mappings(document):
        if "rate" in owner:
            owner["rate"], changed = _times(owner["rate"], PER_S, LESS), True
    return changed


def _freer(document: Document) -> bool:
    """Degrees that the problem fixes left to the search."""
    options = document.get("options", {})
    owners = [options, options.get("search", {})]
    fixed = [(owner, name) for owner in owners for name in DEGREES if name in owner]
    for owner, name in fixed:
        del owner[name]
    return bool(fixed)


RELAXATIONS: dict[str, Callable[[Document], bool]] = {
    "times": _limits_looser,
    "node": _one_more_node,
    "batch": _larger_batches,
    "slots": _more_slots,
    "memory": _more_memory,
    "load": _less_load,
    "freer": _freer,
}


def _times(quantity: object, units: dict[str, float], factor: float) -> str:
    """A quantity in one of the units, so many times as large, in that of SI."""
    unit = next(unit for unit, scale in units.items() if scale == 1.0)
    return f"{parse_quantity(quantity, units) * factor:.9g}{unit}"


def _mappings(part: object) -> Iterator[dict[str, Any]]:
    """All mappings below."""
    if isinstance(part, dict):
        yield part
    for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _mappings(below)


if __name__ == "__main__":
    sys.exit(main())
