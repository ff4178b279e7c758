"""Operators of the priced steps of many deployments as flat arrays, so that a fit prices them all at once.

Suffixes: T term (an operator of one step of one deployment), D deployment, S step (see `planner.estimate.batches`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.parameters import NAMES
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Collective, Experts, Operator, demand
from planner.costs.operators.work import Shards, Work
from planner.costs.operators.working_format import as_launched
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.collectives import CollectiveRoute, route
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.evidence import Basis
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.roofline import Roofline, dequantised_steps, efficiency_names, slowdown
from planner.costs.rates.step import fullest_stage
from planner.estimate.batches import Batch, batch_of, groups_of
from planner.estimate.case import Case
from planner.estimate.frame import Added, Frame
from planner.hardware.accelerator import Accelerator
from planner.hardware.profiles.store import ProfileStore

STEPS = 4  # priced of each deployment
_NONE = len(NAMES)  # a start that costs nothing


@dataclass(frozen=True, slots=True)
class _Piece:
    """Terms of one operator of one step of the deployments of one batch."""

    place_T: Indices  # deployment x STEPS + step
    count_T: Floats  # runs, scaled to the fullest pipeline stage
    flop_s_T: Floats  # at the peak rate
    move_s_T: Floats  # at the full bandwidth
    kernels_T: Floats
    steps_T: Floats  # of tiles that dequantise one after the other
    names: tuple[int, int, int, int]  # of flop, bandwidth, start, quantising
    kind: str  # gemm, attention, experts, collective, other
    route: CollectiveRoute | None
    experts: tuple[Experts, Accelerator] | None
    table_s_T: Floats  # what a table says; nan where none does


@dataclass(frozen=True, slots=True)
class DeploymentTerms:
    """All operators of the priced steps of deployments [D], and what else decides their benchmarks."""

    engine_D: tuple[str, ...]  # sections of a calibration: an engine, or its older releases
    frame: Frame
    stages_DS: Floats  # pipeline stages of the instance that a step runs on
    sampled_DS: Floats  # sequences whose logits it computes
    prefills_DS: Floats  # 1 where it prefills
    pieces: tuple[_Piece, ...]
    experts: tuple[tuple[int, _Piece], ...]  # the pieces of experts, and where their terms begin
    collectives: Indices  # the terms of collectives
    route: CollectiveRoute  # of those
    place_T: Indices
    count_T: Floats
    flop_s_T: Floats
    move_s_T: Floats
    kernels_T: Floats
    steps_T: Floats
    names_T: Indices  # [4, T]
    overlap_D: Bools  # whether kernels start while those before them end

    @classmethod
    def of(cls, cases: Sequence[Case], store: ProfileStore | None = None) -> "DeploymentTerms":
        """The terms of all cases, which must be of models that have costs."""
        members = groups_of(cases)
        batches = [batch_of([cases[i] for i in group], store) for group in members]
        frames = [batch.frame() for batch in batches]
        steps = [batch.steps(frame) for batch, frame in zip(batches, frames, strict=True)]
        pieces = [
            piece
            for batch, group, priced in zip(batches, members, steps, strict=True)
            for step in range(STEPS)
            for piece in _pieces(batch, np.array(group), step, priced[step])
        ]

        def column(name: str) -> Any:  # noqa: ANN401 - of floats or of places
            return np.concatenate([getattr(piece, name) for piece in pieces])

        names = np.concatenate(
            [np.tile(np.array(piece.names)[:, None], len(piece.place_T)) for piece in pieces], axis=1
        )
        host = np.zeros((3, len(cases), STEPS))
        for group, priced in zip(members, steps, strict=True):
            for step, (shards, work) in enumerate(priced):
                host[:, group, step] = shards.pp, work.sampled, work.prefill_sequences > 0
        begins = np.cumsum([0, *(len(piece.place_T) for piece in pieces)])
        experts = tuple((int(b), piece) for b, piece in zip(begins, pieces, strict=False) if piece.experts is not None)
        moving = [(b, piece) for b, piece in zip(begins, pieces, strict=False) if piece.route is not None]
        collectives = np.concatenate([np.arange(b, b + len(piece.place_T)) for b, piece in moving])
        routes = [piece.route for _, piece in moving]
        joined = CollectiveRoute(
            *(np.concatenate([getattr(route, field.name) for route in routes]) for field in fields(CollectiveRoute))
        )
        return cls(
            engine_D=tuple(case.section for case in cases),
            frame=Frame.gathered(frames, members),
            stages_DS=host[0],
            sampled_DS=host[1],
            prefills_DS=host[2],
            pieces=tuple(pieces),
            experts=experts,
            collectives=collectives,
            route=joined,
            place_T=column("place_T"),
            count_T=column("count_T"),
            flop_s_T=column("flop_s_T"),
            move_s_T=column("move_s_T"),
            kernels_T=column("kernels_T"),
            steps_T=column("steps_T"),
            names_T=names,
            overlap_D=np.array([case.pool.node.accelerator.overlaps_starts for case in cases]),
        )

    def device_s(
        self, known: Efficiencies, engines: dict[str, EngineOverheads], trust: dict[str, float] | None = None
    ) -> Floats:
        """Device seconds [D, S] of every step; tables, where terms hold them, count by `trust`, else not at all."""
        values = np.array([*(getattr(known, name) for name in NAMES), 0.0])
        flop, bandwidth, start, quantising = values[self.names_T]
        sections = list(engines)
        of_D = np.array([sections.index(name) for name in self.engine_D])
        scales = np.array([[engine.start_of(name) for name in (*NAMES, "")] for engine in engines.values()])
        of_T = of_D[self.place_T // STEPS]
        earlier_T = np.where(self.overlap_D, 1.0, known.earlier_starts)[self.place_T // STEPS]
        each_T = start * scales[of_T, self.names_T[2]] + quantising * scales[of_T, self.names_T[3]]
        starts_T = earlier_T * self.kernels_T * each_T + known.dequantise_step_s * self.steps_T
        flop_s_T, move_s_T = self.flop_s_T.copy(), self.move_s_T.copy()
        for begin, piece in self.experts:
            end = begin + len(piece.place_T)
            assert piece.experts is not None
            op, accelerator = piece.experts
            flop_s_T[begin:end] *= slowdown(op, known, blackwell=accelerator.is_blackwell)
            move_s_T[begin:end] = _expert_move_s(op, accelerator, known.routing_concentration)
        seconds_T = np.maximum(flop_s_T / flop, move_s_T / bandwidth) + starts_T
        seconds_T[self.collectives] = self.route.seconds(known)
        if trust is not None:
            seconds_T = self._blended(seconds_T, trust)
        total = np.bincount(self.place_T, seconds_T * self.count_T, minlength=STEPS * len(self.engine_D))
        return np.asarray(total.reshape(-1, STEPS), dtype=np.float64)

    def host_s(self, added: Added) -> Floats:
        """Seconds [D, S] that engines add to every step (`planner.costs.rates.step.host_s`)."""
        step, sequence, prefill = added.step_s[:, None], added.sequence_s[:, None], added.prefill_s[:, None]
        return (step + sequence * self.sampled_DS + prefill * self.prefills_DS) * self.stages_DS

    def _blended(self, seconds_T: Floats, trust: dict[str, float]) -> Floats:
        table_T = np.concatenate([piece.table_s_T for piece in self.pieces])
        weight_T = np.concatenate([np.full(len(p.place_T), trust.get(p.kind, 0.0)) for p in self.pieces])
        with np.errstate(divide="ignore", invalid="ignore"):
            blended = np.exp(weight_T * np.log(table_T) + (1.0 - weight_T) * np.log(seconds_T))
        return np.where(np.isfinite(blended) & (table_T > 0), blended, seconds_T)


def _pieces(batch: Batch, members: Indices, step: int, priced: tuple[Shards, Work]) -> list[_Piece]:
    shards, work = priced
    pricer = _in_full(batch.costs.pricer)
    arch, pool = batch.costs.arch, batch.cases[0].pool
    pace = fullest_stage(arch, shards)
    first, gpu = batch.cases[0], pool.node.accelerator
    roofline = Roofline(gpu, pool.topology(), Efficiencies())
    operators = (
        as_launched(op, gpu, whole_tiles=first.whole_tiles, triton_experts=first.triton_experts)
        for op in forward(arch, shards, work)
    )
    return [_piece(op, roofline, pricer, members * STEPS + step, pace) for op in operators]


def _piece(op: Operator, ideal: Roofline, pricer: Pricer, place: Indices, pace: Floats) -> _Piece:
    table = _table_s(op, pricer)
    none = np.zeros(len(place))
    if isinstance(op, Collective):
        way = route(op, ideal.topology)
        names = (0, 0, _NONE, _NONE)
        return _Piece(place, op.count * pace, none, none, none, none, names, "collective", way, None, table)
    asked, rates = demand(op), efficiency_names(op, blackwell=ideal.accelerator.is_blackwell)
    busy = (asked.flop + asked.size_bytes > 0).astype(np.float64)
    starts = [NAMES.index(name) for name in rates.starts]
    names = (NAMES.index(rates.flop), NAMES.index(rates.bandwidth), starts[0], starts[1] if len(starts) > 1 else _NONE)
    flop_s = asked.flop / ideal.accelerator.comparable_peak(asked.precision)
    move_s = asked.size_bytes / ideal.accelerator.memory_bandwidth_bytes_per_s
    experts = (op, ideal.accelerator) if isinstance(op, Experts) else None
    kind = rates.bandwidth.removesuffix("_4bit").removesuffix("_bandwidth")
    steps = dequantised_steps(op, ideal.accelerator) * busy
    return _Piece(
        place, op.count * pace, flop_s, move_s, busy * asked.kernels, steps, names, kind, None, experts, table
    )


def _expert_move_s(op: Experts, accelerator: Accelerator, concentration: float) -> Floats:
    return demand(op, concentration).size_bytes / accelerator.memory_bandwidth_bytes_per_s


def _table_s(op: Operator, pricer: Pricer) -> Floats:
    """What tables alone say of one run; nan where the pricer has none."""
    if not isinstance(pricer, Profiled):
        size = len(op.group) if isinstance(op, Collective) else len(demand(op).flop)
        return np.full(size, np.nan)
    priced = pricer.price(op)
    return np.where(priced.basis < Basis.ANALYTICAL, priced.seconds, np.nan)


def _in_full(pricer: Pricer) -> Pricer:
    """The same source with its tables at their full weight."""
    return Profiled(pricer.roofline, pricer.chooser, skew=pricer.skew) if isinstance(pricer, Profiled) else pricer
