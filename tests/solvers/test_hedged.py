"""Changes of a layout, one at a time by what each is worth, against steps done by hand."""

import numpy as np
import pytest

from planner.solvers.layouts.respread import certain, respread
from planner.solvers.layouts.spread import SpreadProblem


def test_a_heavy_item_gets_a_second_copy_in_the_slot_of_a_light_one_where_no_swap_helps() -> None:
    problem = SpreadProblem(np.array([8.0, 1.0, 1.0]), np.array([2, 2]), np.ones(2))  # times 8.5 and 1.5, then 5 each
    result = respread(problem, np.array([0, 1, 1, 2]), 5.0, uncertainty=certain(3))
    assert result.solution is not None
    assert result.solution.item_P.tolist() == [0, 1, 0, 2]
    assert result.objective == pytest.approx(5.0)
