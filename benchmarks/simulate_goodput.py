"""What simulation finds of plans that steady state prefers: claims, goodputs, how often they lose, and bounds.

A serving example that leaves the rate open, and variations of a small problem. CPU seconds of one core.
"""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.api import solve
from planner.documents.read import given_document, load_document
from planner.load.problems import resolve_document

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("serve-qwen3-32b-h200",)
SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "serve",
    "models": {"llama": {"name": "meta-llama/Llama-3.1-8B-Instruct"}},
    "cluster": {"pools": [{"gpu": "h100", "gpus": 4}]},
    "workloads": [
        {"name": "chat", "input_tokens": {"mean": 1155, "cv": 0.96}, "output_tokens": {"mean": 211, "cv": 0.77}}
    ],
    "objective": {"maximize": "goodput_per_gpu", "expected": False},
}
LENGTHS = ((1155, 0.96, 211, 0.77), (4000, 0.0, 1000, 0.0), (300, 0.5, 600, 0.5), (8000, 0.5, 100, 0.5))
LIMITS = (
    {"ttft": {"p95": "1s"}, "tpot": {"p95": "30ms"}},
    {"ttft": {"p90": "300ms"}, "tpot": {"p90": "15ms"}, "attainment": "90%"},
)
CODE = {
    "name": "code",
    "input_tokens": 4000,
    "output_tokens": 100,
    "slo": {"ttft": {"p95": "1s"}, "tpot": {"p95": "30ms"}},
}
LARGE = {"name": "Qwen/Qwen3-32B"}
REPORTS = {"name": "reports", "input_tokens": 2000, "output_tokens": 400, "slo": {"latency": {"p90": "60s"}}}


def mixed() -> Iterator[tuple[str, dict[str, Any]]]:
    """Problems of several workloads, and of several models."""
    data = copy.deepcopy(SMALL)
    data["workloads"] = [{**SMALL["workloads"][0], "slo": LIMITS[0], "share": 3.0}, CODE]
    yield "4 x h100, chat 3 and code 1 on 8B", data
    data = copy.deepcopy(SMALL)
    data["models"]["large"] = LARGE
    data["cluster"]["pools"][0]["gpus"] = 8
    chat = {**SMALL["workloads"][0], "slo": LIMITS[0], "share": 8.0, "model": "llama"}
    data["workloads"] = [chat, {**CODE, "model": "large"}, {**REPORTS, "model": "large", "share": 0.2}]
    yield "8 x h100, chat 8 on 8B, code 1 and reports 0.2 on 32B", data


def problems() -> Iterator[tuple[str, dict[str, Any]]]:
    """Problems by name."""
    for name in NAMES:
        data = load_document(str(EXAMPLES / f"{name}.yaml")).data
        yield name, data
    for isl, isl_cv, osl, osl_cv in LENGTHS:
        for index, slo in enumerate(LIMITS):
            data = copy.deepcopy(SMALL)
            data["workloads"][0] |= {"input_tokens": {"mean": isl, "cv": isl_cv}, "slo": slo}
            data["workloads"][0]["output_tokens"] = {"mean": osl, "cv": osl_cv}
            yield f"4 x h100, {isl} in, {osl} out, limits {index + 1}", data
    yield from mixed()


def main() -> None:
    """Prints all figures."""
    loses = shortfall = count = 0
    for name, data in problems():
        begin = time.process_time()
        given = given_document({**data, "options": {**data.get("options", {}), "judged_by": "simulation"}}, name)
        certificate = solve(resolve_document(given, EXAMPLES)).certificate
        proof, value = certificate.proof, certificate.objective.value or 0.0
        incumbent = proof["steady_state"]
        assert isinstance(incumbent, dict)
        claimed, simulated = float(incumbent["claims"] or 0.0), float(incumbent["simulated"] or 0.0)  # type: ignore[arg-type]
        loses, count, shortfall = loses + bool(incumbent["loses"]), count + 1, shortfall + (simulated < 0.98 * claimed)
        bound = "none" if certificate.bound is None else f"{certificate.bound:.3g} (gap {certificate.gap or 0.0:.0%})"
        lost = ", loses" if incumbent["loses"] else ""
        print(f"{name:56} found {value:6.3g}  bound {bound:16}", end="  ")
        print(f"steady state claims {claimed:6.3g}, simulated {simulated:6.3g}{lost}", end="   ")
        space = f"{proof['cells']} cells" if "cells" in proof else f"{proof['placements']} placements"
        print(f"{space}, {proof['runs']} runs, {time.process_time() - begin:.1f} CPU-s")
    print(
        f"requests/s/GPU; the steady-state incumbent loses {loses} of {count} times, and falls short of its claim",
        end="",
    )
    print(f" by more than 2 % {shortfall} times (the trivial answer is to believe it)")


if __name__ == "__main__":
    main()
