"""Measured training runs as arrays: their steps under any rates at once, for fitting.

Kernels of layers that several runs share are priced once. Shapes: N runs, K kernels of all distinct layers, U distinct
layers and ends, G = 3 U of their passes, S kinds of pipeline ranks of all runs, E parts of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.training.config import TrainingConfig
from planner.costs.training.kernels import FORWARD, PASSES, KernelColumns, sums
from planner.costs.training.layer_costs import Part, jitter, kernel_columns, together
from planner.costs.training.parameters import rank_parameters
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import NONE, LayerShape, shape_of
from planner.costs.training.step import SCHEDULES, StepParts, rank_contents
from planner.costs.training.volumes import DataParallelVolume, data_parallel_volume, message_volume
from planner.models.architecture import Layer

_HOSTS = ("graphs", "plain", "eager", "legacy")


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """The kernels of all distinct layers and ends."""

    pairs: tuple[tuple[str, str], ...]  # distinct (kind, generation)
    pair_K: Ints
    columns_5K: Floats  # flop, move, inside, outside seconds, launches
    pass_K: Ints  # index of the pass [G]
    launches_G: Floats
    host_U: Ints
    jitter_U: Floats
    chosen_K: Ints  # kernels that some selective recomputation runs again, by their index
    choice_K: Ints  # which selection that is for
    shape_U: tuple[LayerShape | None, ...]  # of decoder layers
    table_of_choice: list[int]

    def seconds(self, rates: Rates) -> tuple[Floats, Floats]:
        """Seconds of every pass [U, 3], and of every selection."""
        rate_RP = np.concatenate([rates.of((kind,), generation) for kind, generation in self.pairs], axis=1)
        flop, move, link, fabric, start, exposed = rate_RP[:, self.pair_K]
        columns = self.columns_5K
        second_K = exposed * (
            np.maximum(columns[0] / flop, columns[1] / move)
            + columns[2] / link
            + columns[3] / fabric
            + columns[4] * start
        )
        device = sums(self.pass_K, second_K, len(self.launches_G))
        host = np.array([rates.get(f"host_launch_s.{name}") for name in _HOSTS])[np.repeat(self.host_U, PASSES)]
        host = host * (1.0 + rates.get("host_jitter") * np.repeat(self.jitter_U, PASSES))
        pass_U3 = together(device, self.launches_G * host, rates.get("host_overlap")).reshape(-1, PASSES)
        selected = sums(self.choice_K, second_K[self.chosen_K], 1)
        if rates.shapes is NONE:
            return pass_U3, selected
        factor_U = np.array([rates.shapes.factor(shape) if shape else 1.0 for shape in self.shape_U])
        return pass_U3 * factor_U[:, None], selected * factor_U[
            self.table_of_choice
        ] if self.table_of_choice else selected


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Runs and what their steps are composed of."""

    kernels: Kernels
    configs: tuple[TrainingConfig, ...]
    entry_S: Ints  # [E] kind of rank of each part
    entry_U: Ints
    count_E: Floats
    full_E: Floats  # how often computed again whole
    again_S: Ints  # parts with a selection: kind of rank,
    again_choice: Ints  # selection,
    again_count: Floats  # and how often
    place_S: Ints  # row-major place of each kind of rank in [N, kinds]
    ranks_NK: Floats
    volume_N6: Floats
    message_N2: Floats
    generations: tuple[str, ...]
    generation_N: Ints

    def step_s(self, rates: Rates) -> Floats:
        """Seconds of a step [N] of every run."""
        pass_U3, selected = self.kernels.seconds(rates)
        size = len(self.place_S)
        stage_S3 = np.stack(
            [sums(self.entry_S, self.count_E * pass_U3[self.entry_U, p], size) for p in range(PASSES)],
            axis=1,
        )
        stage_S3[:, 1] += sums(self.entry_S, self.full_E * pass_U3[self.entry_U, FORWARD], size)
        if len(self.again_S):
            stage_S3[:, 1] += sums(self.again_S, self.again_count * selected[self.again_choice], size)
        stage_NK3 = np.zeros((*self.ranks_NK.shape, PASSES))
        stage_NK3.reshape(-1, PASSES)[self.place_S] = stage_S3
        parts = self._parts(rates, stage_NK3)
        pipeline, _, shown = parts.parts(rates)
        return np.asarray(pipeline + shown + parts.optimizer_s + rates.get("step_s"))

    def _parts(self, rates: Rates, stage_NK3: Floats) -> StepParts:
        def rate(name: str) -> Floats:
            return np.array([rates.get(name, generation) for generation in self.generations])[self.generation_N]

        volume, configs = self.volume_N6.T, self.configs
        piped = np.array([c.pp > 1 for c in configs])
        message = self.message_N2[:, 0] / rate("link.p2p") + self.message_N2[:, 1] / rate("fabric.p2p")
        return StepParts(
            stage_NK3=stage_NK3,
            ranks_NK=self.ranks_NK,
            micro_batches=np.array([c.num_micro_batches for c in configs], dtype=np.float64),
            vpp=np.array([c.vpp for c in configs], dtype=np.float64),
            schedule=np.array([SCHEDULES.index(c.schedule) for c in configs]),
            message_s=np.where(piped, message + rates.get("start.p2p"), 0.0),
            p2p_overlapped=np.array(["p2p" in c.overlap and c.vpp > 1 for c in configs]),
            reduce_s=volume[0] / rate("link.dp") + volume[1] / rate("fabric.dp"),
            gather_s=volume[2] / rate("link.dp") + volume[3] / rate("fabric.dp"),
            reduce_overlapped=np.array(["grad_reduce" in c.overlap for c in configs]),
            gather_overlapped=np.array(["param_gather" in c.overlap for c in configs]),
            zero_3=np.array([c.zero_stage == 3 for c in configs]),
            optimizer_s=volume[4] / rate("move.optimizer") + volume[5],
        )


def replay(configs: Sequence[TrainingConfig]) -> Replay:
    """The arrays of these runs."""
    builder = _Builder()
    for row, config in enumerate(configs):
        builder.add(row, config)
    return builder.built(tuple(configs))


class _Builder:
    """Collects parts of runs, each distinct layer once."""

    def __init__(self) -> None:
        self.tables: dict[KernelColumns, int] = {}
        self.hosts: list[int] = []
        self.jitters: list[float] = []
        self.shapes: list[LayerShape | None] = []
        self.generation: list[str] = []
        self.choices: dict[tuple[int, tuple[str, ...]], int] = {}
        self.entries: list[tuple[int, int, float, float]] = []
        self.again: list[tuple[int, int, float]] = []
        self.places: list[tuple[int, int, float]] = []

    def add(self, row: int, config: TrainingConfig) -> None:
        """One run."""
        kinds: dict[tuple[tuple[Part, Layer | None, float, float], ...], int] = {}
        for rank in range(config.pp):
            contents = rank_contents(config, rank)
            kinds[contents] = kinds.get(contents, 0) + 1
        for kind, (contents, count) in enumerate(kinds.items()):
            stage = len(self.places)
            self.places.append((row, kind, float(count)))
            for part, layer, times, full in contents:
                self._add_part(config, stage, part, layer, times, full)

    def _add_part(
        self, config: TrainingConfig, stage: int, part: Part, layer: Layer | None, times: float, full: float
    ) -> None:
        index = self._table(config, part, layer)
        self.entries.append((stage, index, times, full))
        if config.recompute.granularity == "selective" and part == "layer":
            choice = self.choices.setdefault((index, config.recompute.modules), len(self.choices))
            self.again.append((stage, choice, times))

    def _table(self, config: TrainingConfig, part: Part, layer: Layer | None) -> int:
        machine, shard, vocab = config.machine, config.shard, config.arch.vocab_size
        table = kernel_columns(part, machine, shard, 0 if part in ("layer", "embedding") else vocab, layer)
        if table not in self.tables:
            self.tables[table] = len(self.tables)
            self.hosts.append(_HOSTS.index(shard.host))
            self.jitters.append(jitter(shard.tp))
            self.generation.append(machine.generation)
            self.shapes.append(
                shape_of(machine, layer, shard) if isinstance(layer, Layer) and part == "layer" else None
            )
        return self.tables[table]

    def _kernels(self) -> Kernels:
        pairs: dict[tuple[str, str], int] = {}
        tables = list(self.tables)
        first = np.cumsum([0, *(len(table.kinds) for table in tables)])
        pair_K = np.array(
            [
                pairs.setdefault((kind, self.generation[index]), len(pairs))
                for index, table in enumerate(tables)
                for kind in table.kinds
            ],
            dtype=np.int64,
        )
        names = ("flop_K", "move_K", "inside_K", "outside_K", "launches_K")
        columns = np.stack([np.concatenate([getattr(table, name) for table in tables]) for name in names])
        pass_K = np.concatenate([PASSES * index + table.part_K for index, table in enumerate(tables)])
        chosen = [
            (first[index] + k, choice)
            for (index, modules), choice in self.choices.items()
            for k, module in enumerate(tables[index].modules)
            if module in modules and tables[index].part_K[k] == FORWARD
        ]
        picked = np.array(chosen, dtype=np.int64).reshape(-1, 2)
        return Kernels(
            pairs=tuple(pairs),
            pair_K=pair_K,
            columns_5K=columns,
            pass_K=pass_K,
            launches_G=sums(pass_K, columns[4], PASSES * len(tables)),
            host_U=np.array(self.hosts),
            jitter_U=np.array(self.jitters),
            chosen_K=picked[:, 0],
            choice_K=picked[:, 1],
            shape_U=tuple(self.shapes),
            table_of_choice=[index for index, _ in self.choices],
        )

    def built(self, configs: tuple[TrainingConfig, ...]) -> Replay:
        """All of them."""
        width = 1 + max(kind for _, kind, _ in self.places)
        ranks = np.zeros((len(configs), width))
        for row, kind, count in self.places:
            ranks[row, kind] = count
        entries = np.array(self.entries)
        again = np.array(self.again).reshape(-1, 3)
        generations = tuple(sorted({c.machine.generation for c in configs}))
        return Replay(
            kernels=self._kernels(),
            configs=configs,
            entry_S=entries[:, 0].astype(np.int64),
            entry_U=entries[:, 1].astype(np.int64),
            count_E=entries[:, 2],
            full_E=entries[:, 3],
            again_S=again[:, 0].astype(np.int64),
            again_choice=again[:, 1].astype(np.int64),
            again_count=again[:, 2],
            place_S=np.array([row * width + kind for row, kind, _ in self.places]),
            ranks_NK=ranks,
            volume_N6=np.array([_largest_volume(c) for c in configs]),
            message_N2=np.array([message_volume(c) for c in configs]),
            generations=generations,
            generation_N=np.array([generations.index(c.machine.generation) for c in configs]),
        )


def _largest_volume(config: TrainingConfig) -> tuple[float, ...]:
    """Of the first and the last pipeline rank, the one that exchanges more."""
    columns = [_columns(data_parallel_volume(config, rank_parameters(config, rank))) for rank in (0, config.pp - 1)]
    return max(columns, key=sum)


def _columns(volume: DataParallelVolume) -> tuple[float, ...]:
    return (
        volume.reduce_inside_s,
        volume.reduce_outside_s,
        volume.gather_inside_s,
        volume.gather_outside_s,
        volume.update_s,
        volume.offload_s,
    )
