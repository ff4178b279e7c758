"""Measured training runs as arrays: their steps under any rates at once, for fitting.

A fit needs many thousand steps, more than pipelines can be simulated for. So they go by the closed formulas of their
schedules, times what the simulation of the run takes over its formula at rates near by: `Replay.corrected`.
Kernels of layers that several runs share are priced once. Shapes: N runs, K kernels of all distinct layers, U distinct
layers and ends, G = 3 U of their passes, S kinds of pipeline ranks of all runs, E parts of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.costs.operators.recompute import shares_again
from planner.costs.training.config import TrainingConfig, stages_of_rank
from planner.costs.training.kernels import FORWARD, PASSES, KernelColumns, sums
from planner.costs.training.layer_costs import jitter, kernel_columns, together
from planner.costs.training.parameters import rank_parameters
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import NONE, LayerShape, shape_of
from planner.costs.training.stages import Part, StagePart, stage_contents
from planner.costs.training.step import part_shard, step_time
from planner.costs.training.volumes import DataParallelVolume, data_parallel_volume, message_volume
from planner.costs.training.zero_overlap import beside, exposed_s
from planner.models.architecture import Layer

_HOSTS = ("graphs", "plain", "eager", "legacy")


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """The kernels of all distinct layers and ends."""

    pairs: tuple[tuple[str, str], ...]  # distinct (kind, generation)
    pair_K: Ints
    columns_5K: Floats  # flop, move, inside, outside seconds, launches
    pass_K: Ints  # index of the pass [G]
    launches_G: Floats  # of hosts that launch one by one
    replayed_G: Floats  # and those in graphs
    host_U: Ints
    jitter_U: Floats
    chosen_K: Ints  # kernels that some selective recomputation runs again, by their index
    choice_K: Ints  # which selection that is for
    share_K: Floats  # and how much of it
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
        replayed = self.replayed_G * rates.get("host_launch_s.graphs")
        host = np.array([rates.get(f"host_launch_s.{name}") for name in _HOSTS])[np.repeat(self.host_U, PASSES)]
        host = host * (1.0 + rates.get("host_jitter") * np.repeat(self.jitter_U, PASSES))
        pass_U3 = together(device, self.launches_G * host + replayed, rates.get("host_overlap")).reshape(-1, PASSES)
        selected = sums(self.choice_K, self.share_K * second_K[self.chosen_K], 1)
        if rates.shapes is NONE:
            return pass_U3, selected
        factor_U = np.array([rates.shapes.factor(shape) if shape else 1.0 for shape in self.shape_U])
        return pass_U3 * factor_U[:, None], selected * factor_U[
            self.table_of_choice
        ] if self.table_of_choice else selected


SCHEDULES = ("1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev")


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """Runs as columns [N] or [N, K], their steps by closed formulas of the schedules: smooth in the rates, and quick.

    The pipeline is that of its slowest rank and the sum of all ranks (arXiv:2104.04473, section 2.2; arXiv:2401.10241,
    table 2; the DualPipe README), exact where ranks are equal. K kinds of ranks, equal ones together.
    """

    stage_NK3: Floats  # forward, backward-input, backward-weight of each kind of rank
    ranks_NK: Floats  # how many ranks are of each kind; 0 pads
    micro_batches: Floats
    vpp: Floats
    schedule: Ints  # index into SCHEDULES
    message_s: Floats
    p2p_overlapped: Bools
    reduce_s: Floats
    gather_s: Floats
    reduce_overlapped: Bools
    gather_overlapped: Bools
    zero_3: Bools
    optimizer_s: Floats

    def parts(self, rates: Rates) -> tuple[Floats, Floats, Floats]:
        """Pipeline, its bubbles, and what shows of the data-parallel exchange [N]."""
        stage_NK3 = np.where(self.zero_3[:, None, None], self._gathered(rates), self.stage_NK3)
        total_NK = stage_NK3.sum(axis=2)
        slowest = total_NK.max(axis=1)
        rest = (total_NK * self.ranks_NK).sum(axis=1) - slowest
        slowest_kind = total_NK.argmax(axis=1)
        forward, backward, weight = (stage_NK3[np.arange(len(slowest_kind)), slowest_kind, p] for p in range(3))
        share = self._bubble_share(forward, backward, weight)
        hops = self.ranks_NK.sum(axis=1) - 1.0
        exposed = np.where(self.p2p_overlapped, rates.get("exposed.p2p.overlapped"), rates.get("exposed.p2p"))
        message = self.message_s * (2.0 * hops + 2.0 * exposed * self.micro_batches * self.vpp)
        bubble = rest * share
        pipeline = self.micro_batches * slowest + bubble + message
        return pipeline, bubble, self._shown(forward, backward + weight, rates)

    def _bubble_share(self, forward: Floats, backward: Floats, weight: Floats) -> Floats:
        """Bubble of the schedule over that of 1F1B, (p - 1)(F + B + W); DualPipe's is (PP/2 - 1)(F&B + B - 3W), where
        B is the whole backward pass and F&B is taken as their sum."""
        whole, ranks = forward + backward + weight, self.ranks_NK.sum(axis=1)
        chunk = np.maximum(2.0 * whole - forward - 3.0 * weight, 0.0) / whole
        shares = [
            np.ones_like(whole),
            1.0 / self.vpp,
            np.maximum(whole - 2.0 * weight, 0.0) / whole,
            np.maximum(whole - 3.0 * weight, 0.0) / whole,
            np.maximum(whole - 3.0 * weight, 0.0) / whole / 2.0,
            chunk * np.maximum(ranks / 2.0 - 1.0, 0.0) / np.maximum(ranks - 1.0, 1.0),
            chunk / 2.0,  # of 2 p stages, each half as long as what a rank holds: (p - 1) chunk / 2
        ]
        return np.choose(self.schedule, shares)

    def _gathered(self, rates: Rates) -> Floats:
        """Stages under ZeRO-3."""
        hidden = self.reduce_overlapped & self.gather_overlapped
        lost_N1 = np.where(hidden, rates.get("contention.zero3"), 1.0)[:, None]
        return beside(self.stage_NK3, self.gather_s[:, None], self.reduce_s[:, None], lost_N1)

    def _shown(self, forward: Floats, backward: Floats, rates: Rates) -> Floats:
        """What shows of reductions beside the last backward, and of gathers beside the first forward."""
        reduced = np.where(self.reduce_overlapped, exposed_s(self.reduce_s, backward, rates), self.reduce_s)
        gathered = np.where(self.gather_overlapped, exposed_s(self.gather_s, forward, rates), self.gather_s)
        return np.where(self.zero_3, 0.0, reduced + gathered)


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
    volume_N8: Floats
    message_N2: Floats
    generations: tuple[str, ...]
    generation_N: Ints
    ratio_N: Floats  # of simulated steps to those of the closed formulas

    def corrected(self, rates: Rates) -> "Replay":
        """The same runs, exact at these rates."""
        simulated_N = np.array([step_time(config, rates).step_s for config in self.configs])
        return replace(self, ratio_N=simulated_N * self.ratio_N / self.step_s(rates))

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
        return np.asarray(self.ratio_N * (pipeline + shown + parts.optimizer_s + rates.get("step_s")))

    def _parts(self, rates: Rates, stage_NK3: Floats) -> StepParts:
        def rate(name: str) -> Floats:
            return np.array([rates.get(name, generation) for generation in self.generations])[self.generation_N]

        volume, configs = self.volume_N8.T, self.configs
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
            reduce_s=volume[0] / rate("link.dp") + volume[1] / rate("fabric.dp") + volume[6] / rate("move.elementwise"),
            gather_s=volume[2] / rate("link.dp") + volume[3] / rate("fabric.dp") + volume[7] / rate("move.elementwise"),
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
        kinds: dict[tuple[StagePart, ...], int] = {}
        held = stage_contents(config)
        for stages in stages_of_rank(config):
            contents = tuple(part for stage in stages for part in held[stage])
            kinds[contents] = kinds.get(contents, 0) + 1
        for kind, (contents, count) in enumerate(kinds.items()):
            rank = len(self.places)
            self.places.append((row, kind, float(count)))
            for part in contents:
                self._add_part(config, rank, part)

    def _add_part(self, config: TrainingConfig, rank: int, part: StagePart) -> None:
        index = self._table(config, part.part, part.layer)
        self.entries.append((rank, index, float(part.count), float(part.full)))
        if config.recompute.granularity == "selective" and part.part == "layer":
            choice = self.choices.setdefault((index, config.recompute.modules), len(self.choices))
            self.again.append((rank, choice, float(part.count)))

    def _table(self, config: TrainingConfig, part: Part, layer: Layer | None) -> int:
        machine, shard, vocab = config.machine, part_shard(config, part, layer), config.arch.vocab_size
        table = kernel_columns(part, machine, shard, 0 if part in ("layer", "embedding") else vocab, layer)
        if table not in self.tables:
            self.tables[table] = len(self.tables)
            self.hosts.append(_HOSTS.index(shard.host))
            self.jitters.append(jitter(shard.tp))
            self.generation.append(machine.rated)
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
        captured_K = np.concatenate([table.captured_K for table in tables])
        pass_K = np.concatenate([PASSES * index + table.part_K for index, table in enumerate(tables)])
        chosen = [
            (first[index] + k, choice, shares[module])
            for (index, modules), choice in self.choices.items()
            for shares in (shares_again(modules),)
            for k, module in enumerate(tables[index].modules)
            if module in shares and tables[index].part_K[k] == FORWARD
        ]
        picked = np.array([row[:2] for row in chosen], dtype=np.int64).reshape(-1, 2)
        return Kernels(
            pairs=tuple(pairs),
            pair_K=pair_K,
            columns_5K=columns,
            pass_K=pass_K,
            launches_G=sums(pass_K, columns[4] * ~captured_K, PASSES * len(tables)),
            replayed_G=sums(pass_K, columns[4] * captured_K, PASSES * len(tables)),
            host_U=np.array(self.hosts),
            jitter_U=np.array(self.jitters),
            chosen_K=picked[:, 0],
            choice_K=picked[:, 1],
            share_K=np.array([row[2] for row in chosen], dtype=np.float64),
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
            volume_N8=np.array([_largest_volume(c) for c in configs]),
            message_N2=np.array([message_volume(c) for c in configs]),
            generations=generations,
            generation_N=np.array([generations.index(c.machine.generation) for c in configs]),
            ratio_N=np.ones(len(configs)),
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
        volume.reduce_copy_s,
        volume.gather_copy_s,
    )
