"""Memory for prefixes beside GPUs: what `solve` buys, beside none and all of each tier, and the trace in one pass.

`make bench-cache`, or `python benchmarks/cached_serving.py [--quick]`: the example of conversations, and without
`--quick` Mooncake's conversations of ../shared at one rate after another. The plan, and the best without memory, keep
their limits in simulation; all of one tier is priced by formulas. CPU seconds are of this process.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inputs import SHARED, shown

from planner.api import solve
from planner.documents.read import given_document, load_document
from planner.kinds.serve.cached.choices import prefix_choices_of
from planner.kinds.serve.cached.solve import WITHOUT, MemorySearch
from planner.kinds.serve.steady.search import prepare
from planner.load.problems import resolve_document
from planner.plan.schema import PrefixMemory
from planner.problem.resolve import Resolved
from planner.progress import Limits

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "serve-cache-conversations.yaml"
MOONCAKE = SHARED / "traces" / "mooncake_fast25_conversation.jsonl.gz"
RATES_PER_S = (3.4, 13.6)
LLAMA = {"name": "meta-llama/Llama-3.1-70B-Instruct", "weights": "fp8", "kv_cache": "fp8"}  # prompts fill its context


def problems(quick: bool) -> Iterator[tuple[str, Resolved]]:
    """By name."""
    data: dict[str, Any] = dict(load_document(str(EXAMPLE)).data)
    data["objective"] = {**data["objective"], "expected": False}
    yield "conversations, 16/s", resolve_document(given_document(data, "problem"), EXAMPLE.parent)
    if quick:
        return
    if not MOONCAKE.exists():
        print(f"needs {shown(MOONCAKE)}, whose prompts share prefixes: the example alone", file=sys.stderr)
        return
    for rate in RATES_PER_S:
        sides = {f"{side}_tokens": {"trace": str(MOONCAKE), "column": f"{side}_length"} for side in ("input", "output")}
        workload = {**sides, "load": {"rate": f"{rate}/s"}, "slo": {"ttft": {"p95": "5s"}, "tpot": {"mean": "40ms"}}}
        pools = [{"gpu": "h100", "nodes": 16, "price": "2USD/h"}]
        changed = {**data, "workloads": [workload], "cluster": {"pools": pools}}
        yield f"Mooncake, {rate}/s", resolve_document(given_document(changed, "problem"), ROOT)
    workload = {**workload, "load": {"rate": "3.4/s"}, "slo": {"ttft": {"p95": "10s"}, "tpot": {"mean": "60ms"}}}
    changed = {**changed, "models": {"llama": LLAMA}, "workloads": [workload]}
    yield "Llama 3.1 70B, Mooncake, 3.4/s", resolve_document(given_document(changed, "problem"), ROOT)


def row(name: str, resolved: Resolved) -> str:
    """What is bought, its cost and bound, and what trivial answers cost."""
    started_s = time.process_time()
    plan = solve(resolved)
    spent_s, memory = time.process_time() - started_s, PrefixMemory.model_validate(plan.decision["cache"])
    search = MemorySearch(prepare(resolved), prefix_choices_of(resolved), Limits())
    most = search.problem.most_K
    all_of = [tuple(most[k] if k == tier else 0 for k in range(len(most))) for tier in range(len(most))]
    trivial = [search.problem.memory(units) + search.machines.value(units) for units in [(0,) * len(most), *all_of]]
    bought = ", ".join(f"{tier.size_bytes / 1e9:g} GB {tier.name}" for tier in memory.tiers if tier.units) or "none"
    known = "simulated" if plan.certificate.estimate is None else "an estimate"
    beside = plan.certificate.next_best if isinstance(plan.certificate.next_best, list) else []
    without = next((row for row in beside if isinstance(row, dict) and row["plan"] == WITHOUT), {"objective": None})
    costs = [f"{cost:.2f}" if cost < math.inf else "none" for cost in trivial]
    return (
        f"| {name} | {bought} | {memory.hit_share:.1%} | {plan.certificate.objective.value:.2f} ({known}) | "
        f"{plan.certificate.bound:.2f} | {without['objective']} | {' / '.join(costs)} | {spent_s:.1f} |"
    )


def passed_s(resolved: Resolved) -> str:
    """CPU seconds of all that a choice needs of a trace, from its file on."""
    started_s = time.process_time()
    choices = prefix_choices_of(resolved)
    read_s = time.process_time() - started_s
    choices.of([tier.max_units for tier in choices.spec.tiers])
    chosen_s = time.process_time() - started_s - read_s
    return f"{len(choices.input_R)} requests: {read_s:.2f} CPU-s, one choice {chosen_s:.3f}"


def main() -> None:
    """A row a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print("| problem | bought | hits | USD/h | bound | no memory | formulas: none / all of a tier | CPU-s |")
    print("|---|---|---|---|---|---|---|---|")
    for name, resolved in problems(quick):
        print(row(name, resolved), flush=True)
    for name, resolved in problems(quick):
        print(f"{name}: {passed_s(resolved)}", flush=True)


if __name__ == "__main__":
    main()
