"""Times of operators inside a step, by a clock that ticks once a moment."""

import pytest

torch = pytest.importorskip("torch", reason="shards run on PyTorch")

from planner.execute.ranks.recorder import Moments, OperatorTimer  # noqa: E402


class Ticks(Moments):
    """A second passes between any two moments."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def now(self) -> None:
        self.count += 1

    def between_s(self) -> list[float]:
        return [1.0] * (self.count - 1)


def test_time_belongs_to_the_innermost_operator() -> None:
    timer = OperatorTimer(Ticks())
    with timer("outer"), timer("inner"):
        pass
    with timer("outer"):
        pass
    assert timer.collect() == {"outer": 3.0, "inner": 1.0}


def test_gradients_belong_to_the_operator_of_their_forward_pass() -> None:
    timer = OperatorTimer(Ticks())
    leaf = torch.ones(3, requires_grad=True)
    with timer("twice"):
        product = leaf * 2.0 * 3.0
    with timer("exponential"):
        out = product.exp()
    loss = out.sum()  # of no operator
    timer.watch(loss)
    loss.backward()
    wanted = {"twice": 1.0, "exponential": 1.0, "exponential_backward": 1.0, "twice_backward": 2.0}
    assert timer.collect() == wanted
