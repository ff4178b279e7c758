"""CPU time of what answers at once, each beside its aim: look-ups, `--help`, small mixes.

    python benchmarks/stated_times.py [--quick]

The least of some rounds, in CPU milliseconds; look-ups and `--help` in a new process each. Beside each stands the
trivial way: every file of the catalog read for one name, the libraries that verbs work with imported for `--help`, the
model of all candidates in place of those that nothing dominates. Tests hold the work that these times are spent on
(files parsed, modules imported, models solved), which is the same on every machine.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))

LOOK_UP = "import sys, time, yaml; from planner.hardware.library import builtin_library, find_node, find_fabric\n"
MODEL = "import sys, time, yaml; from planner.models.library import find_model, list_models\n"
HELP = "import time, io, contextlib; out = io.StringIO()\n"
TIMED = "start = time.process_time()\n{}\nprint(1e3 * (time.process_time() - start))"
EVERY_MODEL = "[find_model(model.name) for model in list_models()]"
HELPED = "{}\nfrom planner.cli.main import main\nwith contextlib.redirect_stdout(out):\n  main(['--help'])"
LIBRARIES = "import numpy, pydantic, yaml, rich.console"

Row = tuple[str, float, float, float]  # what, its aim, it and the trivial way in CPU ms


def in_new_processes(rounds: int) -> Iterator[Row]:
    for name in ("h200", "mi300x", "p5.48xlarge"):
        whole = spent(LOOK_UP, "builtin_library()", rounds)
        yield f"the node {name}", 20.0, spent(LOOK_UP, f"find_node({name!r})", rounds), whole
    for name in ("Qwen3-32B", "DeepSeek-V3", "opt-13b"):
        yield f"the model {name}", 20.0, spent(MODEL, f"find_model({name!r})", rounds), spent(MODEL, EVERY_MODEL, 1)
    yield "planner --help", 200.0, spent(HELP, HELPED.format(""), rounds), spent(HELP, HELPED.format(LIBRARIES), rounds)


def spent(before: str, work: str, rounds: int) -> float:
    """CPU ms of `work`, the least of some new processes, which know no catalog of the user's own."""
    program, bare = [sys.executable, "-c", before + TIMED.format(work)], os.environ | {"XDG_CONFIG_HOME": os.devnull}
    runs = [subprocess.run(program, capture_output=True, text=True, check=True, env=bare) for _ in range(rounds)]
    return min(float(run.stdout) for run in runs)


def mixes(rounds: int) -> Iterator[Row]:
    """40 candidates with what dominates left out, and the proof of the best; beside them the model of all 40."""
    from mix_problems import candidates_40

    from planner.solvers.backends.solve import solve
    from planner.solvers.mix_model import build
    from planner.solvers.mix_solve import certify, solve_mix

    problem = candidates_40()
    result = solve_mix(problem)
    everything = least(lambda: solve(build(problem)[0], backend="mathopt-gscip"), rounds)
    yield "the best mix of 40 candidates", 20.0, least(lambda: solve_mix(problem), rounds), everything
    yield "the proof of that mix", 200.0, least(lambda: certify(problem, result), rounds), everything


def least(work: Callable[[], object], rounds: int) -> float:
    """CPU ms of `work`, the least of some rounds after one that loads and compiles."""
    work()
    spent_s = []
    for _ in range(rounds):
        started_s = time.process_time()
        work()
        spent_s.append(time.process_time() - started_s)
    return 1e3 * min(spent_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two rounds in place of seven")
    rounds = 2 if parser.parse_args().quick else 7
    print(f"{'CPU ms':>8} {'aim':>6} {'trivial':>8}")
    missed = 0
    for what, aim_ms, spent_ms, trivial_ms in (*in_new_processes(rounds), *mixes(rounds)):
        missed += spent_ms > aim_ms
        print(f"{spent_ms:8.1f} {aim_ms:6.0f} {trivial_ms:8.1f}  {what}{'' if spent_ms <= aim_ms else ': MISSED'}")
    print(f"{missed} above their aims")


if __name__ == "__main__":
    main()
