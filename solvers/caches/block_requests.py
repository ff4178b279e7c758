"""Requests as the blocks of their prompts, each named by all of it up to its end. R request, A access, B block."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError

WHERE = "blocks"


@dataclass(frozen=True, slots=True, eq=False)
class BlockRequests:
    """Requests in order of time; the blocks of request r are `block_A[first_R[r]:first_R[r + 1]]`, first to last.

    Blocks are numbered in the order in which they come; `names` are what the trace calls them.
    """

    time_s_R: Floats
    first_R: Ints  # one entry more than requests
    block_A: Ints
    names: tuple[Hashable, ...]  # of blocks

    @classmethod
    def of(cls, time_s: Sequence[float] | Floats, blocks: Sequence[Sequence[Hashable]]) -> "BlockRequests":
        """Of the blocks of each prompt; raises PlannerError where there are none, or time goes back."""
        time_s_R = np.asarray(time_s, dtype=np.float64)
        if len(time_s_R) != len(blocks):
            raise PlannerError(f"{len(time_s_R)} times of {len(blocks)} requests", where=WHERE, hint="give one each")
        if not any(len(names) for names in blocks):
            raise PlannerError("no request has a block", where=WHERE, hint="give a trace with `hash_ids`")
        back = np.flatnonzero(np.diff(time_s_R) < 0.0)
        if len(back):
            r = int(back[0])
            raise PlannerError(
                f"request {r + 2} comes at {time_s_R[r + 1]:g} s, after one at {time_s_R[r]:g} s",
                where=WHERE,
                hint="sort the requests by time",
            )
        number: dict[Hashable, int] = {}
        block_A = [number.setdefault(name, len(number)) for names in blocks for name in names]
        first_R = np.concatenate([[0], np.cumsum([len(names) for names in blocks])])
        return cls(time_s_R, first_R.astype(np.int64), np.array(block_A, dtype=np.int64), tuple(number))

    def __len__(self) -> int:
        return len(self.time_s_R)

    @property
    def num_blocks(self) -> int:
        return len(self.names)

    @property
    def request_A(self) -> Ints:
        """The request of each access."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_R))

    @property
    def position_A(self) -> Ints:
        """How many blocks of the prompt come before each."""
        return np.arange(len(self.block_A)) - self.first_R[self.request_A]

    def between(self, start_s: float, end_s: float) -> "BlockRequests":
        """Requests from `start_s` to before `end_s`, counted from the first; blocks keep their numbers."""
        first, last = np.searchsorted(self.time_s_R - self.time_s_R[0], [start_s, end_s])
        accesses = slice(int(self.first_R[first]), int(self.first_R[last]))
        return replace(
            self,
            time_s_R=self.time_s_R[first:last],
            first_R=self.first_R[first : last + 1] - self.first_R[first],
            block_A=self.block_A[accesses],
        )

    def accesses_B(self) -> Ints:
        """How often each block is asked for."""
        return np.bincount(self.block_A, minlength=self.num_blocks)

    def leading_A(self, kept_A: Bools) -> Bools:
        """Whether an access and all before it in its prompt are kept: a cache serves prefixes alone."""
        missed = np.concatenate([[0], np.cumsum(~kept_A)])
        return np.asarray(missed[1:] == missed[self.first_R[self.request_A]])
