"""How the loop is compiled: the state that all parts share, a decorator, and a cache that sees edits in every file.

numba's own cache looks at one file; the folder used here is named by the sources of all modules of the loop.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.experimental import structref

from planner.arrays import Floats, Ints
from planner.hardware.profiles.cache import default_cache_dir
from planner.simulate.loop.arrays import Arrays
from planner.simulate.loop.parts import part_options

_numba: Any = numba  # options of the jit and of its configuration that its stubs leave out
_structref: Any = structref
F = TypeVar("F", bound=Callable[..., object])


@_structref.register
class _StateType(types.StructRef):
    """The type of a state in compiled code."""


class State:
    """A run under way: what `Arrays` holds, passed by one pointer, since numba copies a tuple at every call."""

    def __init__(self, *arrays: Ints | Floats) -> None:
        raise TypeError("made by compiled code alone")

    run: Ints
    run_s: Floats
    request: Ints  # [R, REQUEST_FIELDS]
    request_s: Floats  # [R, REQUEST_SECONDS]
    instance: Ints  # [I, INSTANCE_FIELDS]
    instance_s: Floats  # [I, SECONDS_FIELDS]
    batch: Ints  # [I, S] decoding requests, a heap by the iteration that finishes them
    listed: Ints  # [I, S] requests that the running step prefills
    residue: Ints  # [I, B] decoding sequences by the iteration, modulo B, at which they take a block
    events: Ints  # [I] a heap of instances by the end of their stretch
    dirty: Ints  # [I]
    prefix_of: Ints  # [R + 1] where the prefix blocks of each request begin
    prefix: Ints  # [H] blocks, prompt by prompt
    prefix_size: Ints  # [U, 2] tokens and KV blocks of each
    cached: Ints  # [I, U, 3]
    decode_s: Floats  # [K, N, C] seconds of a decode step, batches padded
    mixed_s: Floats  # [K, N', C, T, M] seconds of a step that prefills
    joint_s: Floats  # [K, J] seconds of what instances do together in a step, by the new tokens of the mean one
    least_s: Floats  # [K, J] of a step with prompts, by the new tokens of an instance
    axes: Floats  # [K, 5, longest] decode batch, decode context, prefill tokens, mean attended tokens, tokens of J
    lengths: Ints  # [K, 5] of the axes
    adapters: Ints  # [I, A, 2]
    links: Floats  # [P, P, 3] between pools
    skew: Floats  # [W] by which the steps of a group are longer than those of its slowest member, one after another
    change_s: Floats  # [E] when instances change
    change: Ints  # [E, 2] which, and how


_structref.define_constructor(State, _StateType, Arrays._fields)


def compiled(function: F) -> F:
    """A part of the program; the loop that calls it is compiled with it.

    numba compiles a function once more for every literal that it is called with: hand over variables.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **part_options()}
    return cast(F, _numba.njit(error_model="numpy", **options)(function))


@compiled
def state_of(a: Arrays) -> State:
    """The state that compiled code passes on."""
    return State(
        a.run,
        a.run_s,
        a.request,
        a.request_s,
        a.instance,
        a.instance_s,
        a.batch,
        a.listed,
        a.residue,
        a.events,
        a.dirty,
        a.prefix_of,
        a.prefix,
        a.prefix_size,
        a.cached,
        a.decode_s,
        a.mixed_s,
        a.joint_s,
        a.least_s,
        a.axes,
        a.lengths,
        a.adapters,
        a.links,
        a.skew,
        a.change_s,
        a.change,
    )


def entry(*more: Path) -> Callable[[F], F]:
    """A program of these sources and `more`, kept on disk once compiled."""

    def kept(function: F) -> F:
        given = _numba.config.CACHE_DIR
        _numba.config.CACHE_DIR = str(cache_folder(*more))
        try:
            return cast(F, _numba.njit(error_model="numpy", cache=True)(function))
        finally:
            _numba.config.CACHE_DIR = given

    return kept


def cache_folder(*more: Path) -> Path:
    """The folder of compiled programs of exactly these sources and `more`."""
    sources = b"".join(path.read_bytes() for path in (*sorted(Path(__file__).parent.glob("*.py")), *more))
    return default_cache_dir() / f"simulate-{hashlib.sha256(sources).hexdigest()[:16]}"
