"""Orders of pipeline passes, and how long they take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.execute.shards.schedule import Pass, forward_passes, makespan_s, passes_of

SIZES = {"pp": st.integers(1, 5), "vpp": st.integers(1, 3), "rounds": st.integers(1, 4)}


def seconds(forward_s: float, backward_s: float = 0.0):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a closure
    return lambda step: backward_s if step.backward else forward_s


@given(**SIZES)
def test_every_micro_batch_passes_every_stage_once_each_way(pp: int, vpp: int, rounds: int) -> None:
    batches = rounds * pp
    for rank, order in enumerate(passes_of(pp, vpp, batches)):
        stages = range(rank, pp * vpp, pp)
        wanted = {Pass(stage, batch, back) for stage in stages for batch in range(batches) for back in (False, True)}
        assert set(order) == wanted
        assert len(order) == len(wanted)
        places = {step: place for place, step in enumerate(order)}
        assert all(places[Pass(step.stage, step.micro_batch)] < places[step] for step in order if step.backward)


@given(forward_s=st.floats(0.1, 9.0), backward_s=st.floats(0.1, 9.0), **SIZES)
def test_equal_stages_take_the_time_of_the_literature(
    pp: int, vpp: int, rounds: int, forward_s: float, backward_s: float
) -> None:
    """(m + (pp - 1) / vpp) (f + b) for chunks that take f / vpp and b / vpp: arXiv:2104.04473, section 2.2."""
    batches = rounds * pp
    end_s = makespan_s(passes_of(pp, vpp, batches), seconds(forward_s / vpp, backward_s / vpp), 0.0)
    assert end_s == pytest.approx((batches + (pp - 1) / vpp) * (forward_s + backward_s))


@given(pp=st.integers(2, 6), batches=st.integers(1, 5))
def test_fewer_micro_batches_than_ranks_go_forwards_first(pp: int, batches: int) -> None:
    batches = min(batches, pp - 1)
    order = passes_of(pp, 1, batches)[0]
    assert [step.backward for step in order] == [False] * batches + [True] * batches
    assert makespan_s(passes_of(pp, 1, batches), seconds(1.0, 2.0), 0.0) == pytest.approx((batches + pp - 1) * 3.0)


@given(handover_s=st.floats(0.0, 5.0), **SIZES)
def test_slower_links_never_shorten_a_step(pp: int, vpp: int, rounds: int, handover_s: float) -> None:
    passes = passes_of(pp, vpp, rounds * pp)
    fast, slow = (makespan_s(passes, seconds(1.0, 2.0), each) for each in (0.0, handover_s))
    assert slow >= fast
    if pp > 1:
        assert slow >= fast - 1e-9 + min(handover_s, 1.0) / 2


def test_one_micro_batch_pays_every_hand_over_between_ranks() -> None:
    assert makespan_s(forward_passes([(0,), (1,), (2,)]), seconds(1.0), 0.5) == pytest.approx(4.0)
    there_and_back = forward_passes([(0, 3), (1, 2)])  # the turn at the far end stays on its rank
    assert makespan_s(there_and_back, seconds(1.0), 0.5) == pytest.approx(5.0)


def test_orders_in_which_ranks_wait_for_each_other_are_refused() -> None:
    crossed = [[Pass(0, 0, True), Pass(0, 0)], [Pass(1, 0), Pass(1, 0, True)]]
    with pytest.raises(ValueError, match="wait for each other"):
        makespan_s(crossed, seconds(1.0, 1.0), 0.0)
