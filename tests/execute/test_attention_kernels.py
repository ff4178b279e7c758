"""Attention of the executor: one new token with grouped heads, and the choice of a fused kernel on a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="shards run on PyTorch")

from planner.execute.model import kernels  # noqa: E402
from planner.hardware.profiling import attention_kernels  # noqa: E402
from planner.hardware.profiling.kernel import UnsupportedShapeError  # noqa: E402


@pytest.mark.parametrize("heads", [2, 8])
def test_one_new_token_attends_as_if_every_head_had_a_cache_of_its_own(heads: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, count, tokens, 16) for count, tokens in ((heads, 1), (2, 33), (2, 33)))
    attended = kernels.causal_attention(query, key, value, 0.25)
    repeated = [tensor.repeat_interleave(heads // 2, dim=1) for tensor in (key, value)]
    wanted = torch.softmax(query @ repeated[0].transpose(2, 3) * 0.25, dim=-1) @ repeated[1]
    torch.testing.assert_close(attended, wanted)


def sequence(length: int) -> Any:  # noqa: ANN401 - stands for a tensor
    """A tensor on a GPU, as far as the choice looks at one."""
    return SimpleNamespace(shape=(1, 2, length, 16), device=SimpleNamespace(type="cuda"), requires_grad=False)


def test_fused_kernels_are_tried_once_a_shape_and_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(kernels, "_fastest", {})

    def choose(attend: object) -> str:
        tried.append(attend)
        return "cudnn"

    monkeypatch.setattr(attention_kernels, "fastest_fused", choose)
    monkeypatch.setattr(attention_kernels, "fused", lambda _attend, name: lambda: name)
    for length in (16, 16, 32):
        assert kernels._fused(sequence(length), sequence(length), sequence(length), is_causal=True) == "cudnn"
    assert len(tried) == 2


def test_a_shape_that_no_fused_kernel_takes_goes_where_pytorch_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_attend: object) -> str:
        raise UnsupportedShapeError("no fused attention kernel takes this shape")

    monkeypatch.setattr(kernels, "_fastest", {})
    monkeypatch.setattr(attention_kernels, "fastest_fused", refuse)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *_tensors, **_options: "dispatched")
    assert kernels._fused(sequence(8), sequence(8), sequence(8)) == "dispatched"
