"""Layouts in a training loop: no files, no heavy packages, no state between calls, random numbers left alone."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from expert_loads import zipf_loads

import planner

RANKS = planner.make_ranks(8, 9, ranks_per_node=4)
LOADS = zipf_loads(2, 64)


def test_planning_imports_no_schema_no_solver_package_and_no_command_line() -> None:
    script = (
        "import sys, numpy as np, planner;"
        "planner.plan_layout(np.ones((1, 8)), planner.make_ranks(2, 5));"
        "planner.StepPlanner(planner.make_ranks(2, 5), 8);"
        "print(sorted({'pydantic', 'ortools', 'pulp', 'typer', 'rich', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_inputs_and_random_numbers_of_the_caller_stay_as_they_are() -> None:
    load, resident = LOADS.copy(), planner.plan_layout(LOADS, RANKS).expert_LP
    before = resident.copy()
    np.random.seed(7)
    state = np.random.get_state()[1].copy()  # type: ignore[index]
    planner.plan_layout(load * 1.1, RANKS, resident_LP=resident)
    planner.plan_ahead(load[None], RANKS, resident_LP=resident)
    planner.StepPlanner(RANKS, 64).plan_rows(load)
    assert (load == LOADS).all()
    assert (resident == before).all()
    assert (np.random.get_state()[1] == state).all()  # type: ignore[index]


def test_threads_get_what_one_caller_gets() -> None:
    alone = planner.plan_layout(LOADS, RANKS).expert_LP
    with ThreadPoolExecutor(4) as pool:
        layouts = list(pool.map(lambda _: planner.plan_layout(LOADS, RANKS).expert_LP, range(8)))
    assert all((layout == alone).all() for layout in layouts)
