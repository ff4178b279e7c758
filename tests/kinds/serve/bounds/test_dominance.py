"""Types that a bound leaves out, against the definition of dominance."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.kinds.serve.bounds.dominance import _kept

COSTS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=8)
)


@given(COSTS)
def test_rows_left_out_have_another_that_is_as_good_in_all_and_kept(costs: list[list[int]]) -> None:
    kept = _kept(np.array(costs, dtype=np.float64))

    def beats(other: int, row: int) -> bool:
        as_good = all(a <= b for a, b in zip(costs[other], costs[row], strict=True))
        return as_good and (costs[other] != costs[row] or other < row)

    expected = [row for row in range(len(costs)) if not any(beats(other, row) for other in range(len(costs)))]
    assert sorted(kept) == expected
