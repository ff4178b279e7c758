"""Names of instance types read back as what they were written from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan.instance_types import read_type, shape_text, type_degrees, type_name, unit_name, unlimited_name
from planner.plan.records import BY_NUMBER

SIZES = st.integers(1, 64)


FURTHER = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(BY_NUMBER, 64))
"""Micro-batches, pieces and redundant experts."""


@given(st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES), FURTHER, SIZES, st.integers(0, 8), st.booleans())
def test_a_name_says_what_it_was_written_from(
    shape: tuple[int, ...], further: tuple[int, ...], batch: int, drafts: int, apart: bool
) -> None:
    degrees = type_degrees((*shape, *further))
    name = type_name("decode", "Qwen/Qwen3-32B", degrees, batch, 0, drafts)
    type_ = read_type(f"{unit_name(name, shape, 2, 'h20') if apart else name}#1*2")
    assert type_ is not None
    assert (type_.function, type_.model, type_.degrees) == ("decode", "Qwen/Qwen3-32B", degrees)
    assert (type_.max_batch, type_.chunk_tokens, type_.draft_tokens) == (batch, 0, drafts)
    assert type_.ffn_degrees == (shape if apart else ())


@pytest.mark.parametrize(
    "name", ["frontier", "chat on h200", "a/b/c/d/e", "decode/m/2x1/104/0", "decode/m/2x1x1x1x1/all/0"]
)
def test_what_is_no_name_of_a_type_is_none(name: str) -> None:
    assert read_type(name) is None


def test_pieces_and_batches_in_turn_are_part_of_a_name_where_there_are_several() -> None:
    assert type_degrees((2, 1, 1, 1, 1)) == (2, 1, 1, 1, 1)
    assert type_degrees((2, 1, 1, 1, 1, 2, 1, BY_NUMBER)) == (2, 1, 1, 1, 1, 2)
    assert type_degrees((2, 4, 1, 1, 1, 1, 2, BY_NUMBER)) == (2, 4, 1, 1, 1, 1, 2)
    assert type_degrees((1, 1, 8, 1, 8, 1, 1, 0)) == (1, 1, 8, 1, 8, 1, 1, 0)
    shapes = [shape_text(type_degrees((2, 4, 1, 1, 1, *several))) for several in ((), (2,), (1, 2), (2, 2))]
    assert shapes == [f"tp2 pp4{cut}" for cut in ("", " in two batches", " in 2 pieces", " in 2 pieces in two batches")]


def test_a_type_whatever_its_limits_names_the_degrees_above_one() -> None:
    assert unlimited_name("decode", "m", (2, 1, 8, 1, 16), "h200") == "decode/m/tp2dp8ep16/h200"
    assert unlimited_name("prefill", "m", (1, 1, 1, 1, 1), "h200") == "prefill/m/tp1/h200"
