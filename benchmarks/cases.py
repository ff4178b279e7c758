"""Planning cases with known answers, solved by the product's own solvers: an answer file and one JSON line.

    python benchmarks/cases.py CASE.json --output ANSWER.json

The line has `objective`, `bound`, `gap` (|objective - bound| / |objective|), `cpu_s` and `wall_s` of solving, and
`import_s`, the CPU seconds that loading the solvers, and on a new machine compiling them, takes before.
Scores come from the scorers beside the cases, which read the case alone.
"""

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from case_kinds import small_case, solve_case

from planner.documents.files import write_text_atomic
from planner.errors import PlannerError
from planner.solvers.result import relative_gap


def _imported() -> float:
    """Loads what solvers load when they are first called; CPU seconds."""
    started_s = time.process_time()
    for name in ("numba", "ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model"):
        import_module(name)
    return time.process_time() - started_s


def _compiled(case: dict[str, Any], directory: Path) -> float:
    """Solves the small case of the kind, where it has one, so that loops are compiled; CPU seconds."""
    started_s = time.process_time()
    if (small := small_case(case.get("kind"))) is not None:
        solve_case(small, directory)
    return time.process_time() - started_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        case: dict[str, Any] = json.loads(arguments.case.read_text())
        import_s = _imported() + _compiled(case, arguments.case.parent)
        start_cpu, start_wall = time.process_time(), time.perf_counter()
        answer = solve_case(case, arguments.case.parent)
        cpu_s, wall_s = time.process_time() - start_cpu, time.perf_counter() - start_wall
    except KeyError as error:
        print(f"{arguments.case}: has no {error}, which cases of its kind have", file=sys.stderr)
        return 2
    except (OSError, ValueError, PlannerError) as error:
        print(f"{arguments.case}: {error}", file=sys.stderr)
        return 2
    write_text_atomic(arguments.output, json.dumps(answer.answer) + "\n")
    line = {
        "case": case.get("case", arguments.case.stem),
        "objective": answer.objective,
        "bound": answer.bound,
        "gap": relative_gap(answer.objective, answer.bound),
        "cpu_s": round(cpu_s, 3),
        "wall_s": round(wall_s, 3),
        "import_s": round(import_s, 3),
        "summary": answer.summary,
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
