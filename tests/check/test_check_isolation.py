"""Checking a plan needs no solver and none of the heavy packages."""

import subprocess
import sys
from pathlib import Path

PLANS = Path(__file__).parent.parent / "plans"
CODE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ortools", "pulp", "highspy", "scipy", "networkx", "pyarrow", "pandas"}:
            raise ImportError(name + " is blocked here")
sys.meta_path.insert(0, Blocked())
from planner.check import check_plan
from planner.load.problems import load_plan
from planner.plan.findings import first_failure
for path in sys.argv[1:]:
    findings = check_plan(*load_plan(path))
    print(path.rsplit("/", 1)[1], len(findings) > 25 and first_failure(findings) is None)
"""


def test_every_plan_is_checked_where_no_solver_can_be_loaded() -> None:
    paths = [str(path) for path in sorted(PLANS.glob("*.json"))]
    done = subprocess.run([sys.executable, "-c", CODE, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        word
        for kind in ("experts", "fleet", "place", "rl", "serve", "train", "workflow")
        for word in (f"{kind}.json", "True")
    ]
