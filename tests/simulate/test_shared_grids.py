"""Step times that fleets share reach every request asked for, are exact for equal lengths, and are made once."""

from hypothesis import given
from hypothesis import strategies as st

from planner.simulate.fleet.shared_grids import MOST_LONGER, SharedGrids
from planner.simulate.fleet.step_grid import StepGrid


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=30))
def test_tables_reach_requests_and_not_far_beyond_and_are_made_only_where_none_does(lengths: list[int]) -> None:
    made: list[int] = []
    grids = SharedGrids()

    def make(reach: int) -> StepGrid:
        made.append(reach)
        return StepGrid.affine(float(reach))

    for longest in lengths:
        count = len(made)
        reach = grids.grid("m", "key", longest, 6_000, make).prefill_s(0.0, 0.0)
        assert longest <= reach <= min(MOST_LONGER * longest, 6_000)
        if any(longest <= each <= MOST_LONGER * longest for each in made[:count]):
            assert len(made) == count
    if len(set(lengths)) == 1:
        assert made == [lengths[0]]


def test_tables_of_other_keys_and_models_are_others() -> None:
    grids = SharedGrids()
    tables = [
        grids.grid(model, key, 100, 100, lambda _: StepGrid.affine(1.0))
        for model, key in (("a", 1), ("a", 2), ("b", 1), ("a", 1))
    ]
    assert tables[0] is tables[3]
    assert len({id(table) for table in tables}) == 3
