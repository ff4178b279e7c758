"""All planning cases of ../shared whose kind is solved: solved by `cases.py`, scored by their scorers.

    python benchmarks/cases_scored.py            all
    python benchmarks/cases_scored.py --quick    those that take seconds
    python benchmarks/cases_scored.py --only workflow_ stage_    those whose names begin so

A row has the objective, the proven bound, the gap, CPU seconds of solving, what the scorer beside the cases says, and
the best answer and the best trivial answer that the case's own files state.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from case_kinds import KINDS
from inputs import GENERATED, SHARED, exit_code, required

HERE = Path(__file__).parent
FOLDERS = ("placement", "cases")
SCORED_BY_SCORE = ("mm_", "lc_", "topo_")
SLOW = ("place_alpaserve_32gpu", "place_alpaserve_32gpu_slo2")
STATED: dict[str, tuple[tuple[str, ...], ...]] = {  # where a case states its best answer, and the best trivial one
    "wlbllm_16srv_128k": (("benchmark", "best_known"),),
    "bert13b_8gpu_32m": (("benchmark", "best_known"), ("benchmark", "reference", "sr-ilp")),
    "helix_llama30b_8xL4_1region": (("best_known",), ("paper_obj",)),
    "mix_pubmed_slo120_r8_sf4": (("best_known_cost",), ("single_type_fractional_packing", "A100-80GB", "cost")),
}
BEST = ("optimum_", "reached", "best_known_", "test_of_that_plan")  # how keys of the best answer begin


def cases(*, quick: bool, beginnings: tuple[str, ...]) -> list[Path]:
    """The files of cases that are solved, placement first."""
    files = [path for name in FOLDERS for path in sorted(required(SHARED / name).glob("*.json"))]
    known = [path for path in files if json.loads(path.read_text()).get("kind") in KINDS]
    return [path for path in known if path.name.startswith(beginnings) and not (quick and path.stem in SLOW)]


def scored(case: Path, answer: Path) -> str:
    """What the scorer of the cases says; empty where it does not know the kind."""
    scorer = SHARED / "cases" / ("score.py" if case.stem.startswith(SCORED_BY_SCORE) else "evaluate.py")
    ran = subprocess.run([sys.executable, scorer, case, answer], capture_output=True, text=True, check=False)
    return ran.stdout.strip() if ran.returncode == 0 else ""


def stated(case: Path) -> str:
    """Best known and best trivial answer, as the case or its reference states them."""
    document: Any = json.loads(case.read_text())
    if case.stem in STATED and not GENERATED:
        named = zip(("best known", "trivial"), STATED[case.stem], strict=False)
        return ", ".join(f"{name} {reduce(getitem, path, document):g}" for name, path in named)
    reference = case.with_suffix(".ref.json")
    if reference.exists():
        document = json.loads(reference.read_text())
        if "score" in document:
            best, bound = document["score"]["objective"], document["bound"]
            return f"best known {best:g}, bound {bound:g}; trivial {json.dumps(document['trivial'])}"
        answers = document["answers"]
        return "; ".join(f"{name} {figures['rate_rps']:g}" for name, figures in answers.items())
    if not (optima := case.parent / "optimum.json").exists():
        return ""
    optimum = json.loads(optima.read_text()).get(case.stem, {})
    best = next((f"best known {value}" for key, value in optimum.items() if key.startswith(BEST)), "")
    return f"{best}, trivial {json.dumps(optimum.get('trivial'))}" if best else ""


def _or_none(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names of cases")
    arguments = parser.parse_args()
    worst = 0
    for case in cases(quick=arguments.quick, beginnings=tuple(arguments.only)):
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            command = [sys.executable, str(HERE / "cases.py"), str(case), "--output", str(answer)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                worst = 1
                print(ran.stderr.strip())
                continue
            line = json.loads(ran.stdout)
            print(
                f"{line['case']}: objective {line['objective']:.6g}, bound {_or_none(line['bound'], '.6g')}, "
                f"gap {_or_none(line['gap'], '.2%')}, "
                f"{line['cpu_s']:.2f} CPU-s; {line['summary']}"
            )
            print(f"    {stated(case)}; scorer: {scored(case, answer) or 'none'}")
    return worst or exit_code(0)


if __name__ == "__main__":
    sys.exit(main())
