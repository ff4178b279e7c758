"""Chooses the measured tables for a kernel by engine, version and key, and says every compromise in words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.hardware.profiles.grid import Grid, fastest_of
from planner.hardware.profiles.store import KernelTable, ProfileStore

OURS = "planner"  # engine name of tables that this program measured itself
Key = Mapping[str, str | int]
Usable = Callable[[KernelTable, Key], bool]

_ENGINES = ("trtllm", "sglang", "vllm")
_COMPLETE = 0.9  # of the cells of the fullest version; a table with fewer is a partial one
_SHARED = ("gemm", "moe")
"""Kernels that engines take from the same libraries (cuBLAS, CUTLASS, DeepGEMM, FlashInfer's, Marlin), each the fastest
that it knows. Collectors of tables reach them by longer ways: TensorRT-LLM's of fp8 products quantises its inputs anew
(12 us at least, where SGLang's takes 4), of nvfp4 tries no tactic but the first; vLLM 0.24's of fp8 blocks times the
host, and 0.19's of int4 experts takes four times as long as the same Marlin kernels do in SGLang's."""


@dataclass(frozen=True, slots=True)
class ChosenTable:
    """The chosen grid, and the tables that it is made of."""

    tables: tuple[KernelTable, ...]
    grid: Grid

    @property
    def ours(self) -> bool:
        return self.tables[0].identity.engine == OURS


@dataclass(slots=True)
class TableChooser:
    """Chooses tables of one accelerator for one engine and version; collects what it had to compromise on."""

    store: ProfileStore
    accelerator: str
    engine: str
    version: str | None
    notes: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)

    def choose(
        self, table: str, keys: Iterable[Key], engine: str | None = None, usable: Usable | None = None
    ) -> ChosenTable | None:
        """The grid of the first key that any engine's tables hold; our own tables go before them with all keys.

        A kernel of another format differs more than one of another engine, so a key is looked up in the tables of all
        engines before the next key is: the first that has it serves, and of shared kernels the fastest of all of them
        at every shape. Among versions the nearest to the one asked for wins, unless it measured under nine tenths of
        what the fullest did. Tables of others that are not `usable` for a key count as without it.
        """
        wanted = list(keys)
        own = next((chosen for key in wanted if (chosen := self._of_engine(table, key, OURS))), None)
        if own is not None:
            return self._settled(table, own)
        engines = (engine,) if engine else tuple(dict.fromkeys((self.engine, *_ENGINES)))
        for key in wanted:
            held = [chosen for name in engines if (chosen := self._of_engine(table, key, name, usable))]
            if held:
                return self._settled(table, _fastest(held) if table in _SHARED else held[0])
        return None

    def tables(self, table: str) -> list[KernelTable]:
        """All versions of a table of all engines; ours alone where there are any."""
        own = list(self._candidates(table, OURS))
        return own or [
            each for name in dict.fromkeys((self.engine, *_ENGINES)) for each in self._candidates(table, name)
        ]

    def _candidates(self, table: str, engine: str) -> Iterable[KernelTable]:
        version = self.version if engine == self.engine else None
        return self.store.candidates(accelerator=self.accelerator, table=table, engine=engine, version=version)

    def _of_engine(self, table: str, key: Key, engine: str, usable: Usable | None = None) -> ChosenTable | None:
        held = [
            (version, grid)
            for version in self._candidates(table, engine)
            if (grid := version.grid(**key)) is not None and (usable is None or usable(version, key))
        ]
        cells = [int(np.sum(~np.isnan(grid.latency_s))) for _, grid in held]
        full = (pair for pair, size in zip(held, cells, strict=True) if size >= _COMPLETE * max(cells))
        return next((ChosenTable((version,), grid) for version, grid in full), None)

    def _settled(self, table: str, chosen: ChosenTable) -> ChosenTable:
        known = [each.identity for each in chosen.tables]
        first = known[0]
        self.digests |= {identity.digest for identity in known}
        self.notes |= self.store.left_out
        if len(known) > 1:
            names = ", ".join(f"{identity.engine} {identity.version}" for identity in known)
            self.notes.add(f"{table}: the fastest kernels of the tables of {names} are used")
        elif first.engine not in (OURS, self.engine, "nccl"):
            self.notes.add(f"{table}: {self.engine} has no such table, that of {first.engine} {first.version} is used")
        elif first.engine == self.engine and self.version not in (None, first.version):
            self.notes.add(f"{table}: {self.engine} {self.version} requested, tables of {first.version} used")
        return chosen


def _fastest(held: Sequence[ChosenTable]) -> ChosenTable:
    """One grid of several: at every shape the fastest of the kernels measured there."""
    if len(held) == 1:
        return held[0]
    return ChosenTable(tuple(chosen.tables[0] for chosen in held), fastest_of([chosen.grid for chosen in held]))
