"""Time of one step from its operators: the sum of kernel times and overheads, with the evidence of each part."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats
from planner.costs.operators.forward import EXCHANGED, JOINT_OPERATORS, exchange_copies, forward
from planner.costs.operators.kernels import (
    PROMPTS,
    Collective,
    DecodeAttention,
    Operator,
    PrefillAttention,
    demand,
)
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.evidence import Basis, KernelTime
from planner.costs.rates.overlap import cycle_s, halved, slowed_by_exchange
from planner.costs.rates.pricer import Pricer
from planner.models.architecture import Architecture

OUTSIDE_GRAPHS = 0.25  # of the kernels of a step in piecewise graphs: attention, its cache and what feeds them


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds [N] of one step on the device and on the host, device seconds by operator and by basis [4, N]."""

    device_s: Floats
    host_s: Floats
    by_operator: dict[str, Floats]
    by_basis: Floats

    @property
    def seconds(self) -> Floats:
        return self.device_s + self.host_s

    def slower(self, factor: Floats | float) -> "StepTime":
        """The same steps [N], all parts of them as much longer."""
        if isinstance(factor, float) and factor == 1.0:
            return self
        by_operator = {name: factor * seconds for name, seconds in self.by_operator.items()}
        return StepTime(factor * self.device_s, factor * self.host_s, by_operator, factor * self.by_basis)

    def beside(self, more: "StepTime") -> "StepTime":
        """The same steps with what else is computed in them, under names of its own."""
        return StepTime(
            self.device_s + more.device_s,
            self.host_s,
            self.by_operator | more.by_operator,
            self.by_basis + more.by_basis,
        )

    def shares(self, point: int) -> dict[str, float]:
        """Share of device time by basis at one point, host time counted as analytical."""
        seconds = self.by_basis[:, point].copy()
        seconds[Basis.ANALYTICAL] += self.host_s[point]
        total = float(seconds.sum()) or 1.0
        return {basis.name.lower(): float(seconds[basis] / total) for basis in Basis if seconds[basis] > 0}


def price_operators(operators: list[Operator], pricer: Pricer, points: int | tuple[int, ...]) -> StepTime:
    """Sum the operators' times over so many points, or points of that shape; the host part is zero."""
    device = np.zeros(points)
    by_basis = np.zeros((len(Basis), *device.shape))
    by_operator: dict[str, Floats] = {}
    for op in operators:
        priced = _priced(op, pricer)
        seconds = priced.seconds * op.count
        device += seconds
        first = priced.basis.flat[0] if priced.basis.size else Basis.ANALYTICAL
        if (priced.basis == first).all():
            by_basis[first] += seconds
        else:
            for basis in np.unique(priced.basis):
                by_basis[basis] += np.where(priced.basis == basis, seconds, 0.0)
        by_operator[op.name] = by_operator.get(op.name, 0.0) + seconds
    return StepTime(device, np.zeros(points), by_operator, by_basis)


def _priced(op: Operator, pricer: Pricer) -> KernelTime:
    """An operator's time on the axes that its own sizes have, each of which pricers see once, one after the other."""
    sizes = {each.name: size for each in fields(op) if isinstance(size := getattr(op, each.name), np.ndarray)}
    shape = np.broadcast_shapes(*(size.shape for size in sizes.values()))
    if len(shape) <= 1:
        return pricer.price(op)
    flat: dict[str, Any] = {name: np.broadcast_to(size, shape).ravel() for name, size in sizes.items()}
    time = pricer.price(replace(op, **flat))
    return KernelTime(time.seconds.reshape(shape), time.basis.reshape(shape))


def step_time(arch: Architecture, pricer: Pricer, shards: Shards, work: Work, engine: EngineOverheads) -> StepTime:
    """The time of one forward step [N], one micro-batch through all pipeline stages.

    Shards and work are arrays of equal length, or those of one instance beside work on several axes, where an operator
    is priced on those that it depends on; an idle point (no tokens) costs nothing. Stages run at the pace of the
    fullest one, ceil(layers / pp) layers, and each launches its part of the step from its own host.
    """
    operators = list(forward(arch, shards, work))
    triton_layers = pricer.triton_layers(arch) if engine.triton_launch_s else 0.0
    priced = price_operators(operators, pricer, np.broadcast_shapes(work.shape, shards.tp.shape))
    whole = _step(arch, shards, work, engine, operators, priced, triton_layers)
    if not np.any(shards.micro_batches > 1.0):
        return whole.slower(pricer.slowdown_of(shards))
    half = halved(work)
    decoded = half.tokens * (work.prefill_sequences == 0)
    halves = [*forward(arch, shards, half), *exchange_copies(arch, shards, decoded)]
    halved_s = _two_batches(halves, pricer, work)
    launched = replace(engine, captured_tokens=0.0)  # engines capture no graphs of prompts in two batches
    cut = _step(arch, shards, work, launched, [*halves, *halves], halved_s, 2.0 * triton_layers)
    return _chosen((shards.micro_batches > 1.0) & (work.tokens >= 2.0), cut, whole).slower(pricer.slowdown_of(shards))


def _step(
    arch: Architecture,
    shards: Shards,
    work: Work,
    engine: EngineOverheads,
    operators: list[Operator],
    priced: StepTime,
    triton_layers: float,
) -> StepTime:
    """The step of these operators [N]: stages at one pace, launched by hosts."""
    busy = work.tokens > 0
    pace = fullest_stage(arch, shards)
    device_s = priced.device_s * pace
    share = launched_share(work.tokens, engine.captured_tokens) * (work.prefill_sequences > 0)
    hurried = engine.launch_s > 0.0 or engine.latent_launch_s > 0.0 or engine.triton_launch_s > 0.0
    launching_s = engine.launching_s(*launches(operators), triton_layers) * share if hurried else 0.0
    behind_s = np.maximum(launching_s - device_s, 0.0)
    return StepTime(
        np.where(busy, device_s, 0.0),
        np.where(busy, host_s(shards, work, engine) + behind_s, 0.0),
        {name: seconds * pace for name, seconds in priced.by_operator.items()},
        priced.by_basis * pace,
    )


def _two_batches(halves: list[Operator], pricer: Pricer, work: Work) -> StepTime:
    """Both halves of a step [N], one computing while tokens of the other are exchanged; what shows of the exchange.

    A bulk exchange, that of steps with prompts, takes multiprocessors from the half that computes; that of decoding
    leaves the network to move tokens by itself, between copies before and behind (DeepEP's normal and low-latency
    kernels).
    """
    moved = price_operators([op for op in halves if op.name in EXCHANGED], pricer, work.shape)
    computed = price_operators([op for op in halves if op.name not in EXCHANGED], pricer, work.shape)
    slowed = np.where(work.prefill_sequences > 0, slowed_by_exchange(pricer.multiprocessors), 1.0)
    work_s = computed.device_s * slowed
    device_s = cycle_s((work_s, moved.device_s), 2.0)
    shown = (device_s - 2.0 * work_s) / np.where(moved.device_s > 0.0, moved.device_s, 1.0)
    by_operator = {name: 2.0 * slowed * seconds for name, seconds in computed.by_operator.items()}
    by_operator |= {name: shown * seconds for name, seconds in moved.by_operator.items()}
    by_basis = 2.0 * slowed * computed.by_basis + shown * moved.by_basis
    return StepTime(device_s, np.zeros_like(device_s), by_operator, by_basis)


def _chosen(first: Bools, chosen: StepTime, other: StepTime) -> StepTime:
    """The one or the other step at each point."""
    none = np.zeros(first.shape)
    names = dict.fromkeys((*other.by_operator, *chosen.by_operator))
    return StepTime(
        np.where(first, chosen.device_s, other.device_s),
        np.where(first, chosen.host_s, other.host_s),
        {
            name: np.where(first, chosen.by_operator.get(name, none), other.by_operator.get(name, none))
            for name in names
        },
        np.where(first, chosen.by_basis, other.by_basis),
    )


def joint_of(times: StepTime) -> Floats:
    """Seconds [N] of a step in which ranks that share experts work for all of them together."""
    joint = (seconds for name, seconds in times.by_operator.items() if name in JOINT_OPERATORS)
    return sum(joint, np.zeros_like(times.device_s))


def joint_step(
    arch: Architecture, pricer: Pricer, shards: Shards, engine: EngineOverheads, rank_tokens: Floats
) -> tuple[Floats, Floats]:
    """Joint seconds [S, J] of instances [S] by the new tokens [J] of the mean rank; the least of a step with prompts by
    those of a rank."""
    rank_shards = shards.take(np.repeat(np.arange(len(shards)), len(rank_tokens)))
    tokens = np.tile(np.maximum(rank_tokens, 1.0), len(shards))
    times = step_time(arch, pricer, rank_shards, Work.prefill(tokens), engine.unhurried())
    operators = list(forward(arch, rank_shards, Work.of(tokens, 1.0, 0.0, 1.0, 1.0)))
    triton_layers = pricer.triton_layers(arch) if engine.triton_launch_s else 0.0
    share = launched_share(tokens, engine.captured_tokens)
    launching_s = engine.launching_s(*launches(operators), triton_layers) * share
    least_s = np.where(launching_s > 0.0, times.host_s + launching_s, 0.0)
    shape = len(shards), len(rank_tokens)
    return np.where(rank_tokens > 0, joint_of(times).reshape(shape), 0.0), least_s.reshape(shape)


def host_s(shards: Shards, work: Work, engine: EngineOverheads) -> Floats:
    """Seconds [N] that the engine adds to a step; every pipeline stage launches its part."""
    each = engine.step_s + engine.sequence_s * work.sequences + engine.prefill_s * (work.prefill_sequences > 0)
    return each * shards.pp


def launches(operators: list[Operator]) -> tuple[Floats | float, Floats | float]:
    """Kernels of a step [N], and layers in it that prefill latent attention, expanded or sparse."""
    kernels = sum(op.count * _started(op) for op in operators)
    return kernels, sum(op.count * _started(op) for op in operators if _prefills_latent(op))


def _prefills_latent(op: Operator) -> bool:
    if isinstance(op, DecodeAttention):
        return op.sparse == PROMPTS
    return isinstance(op, PrefillAttention) and op.latent


def _started(op: Operator) -> Floats:
    """Kernels that one run of an operator starts [N]; none where it has nothing to do."""
    if isinstance(op, Collective):
        return ((op.size_bytes > 0) & (op.group > 1)).astype(np.float64)
    asked = demand(op)
    return np.asarray(asked.kernels * (asked.flop + asked.size_bytes > 0), dtype=np.float64)


def launched_share(tokens: Floats, captured_tokens: Floats | float) -> Floats:
    """Share of a prefilling step's kernels [N] that the host launches one by one: graphs hold all but attention.

    It grows to all of them over the half above the largest graph, so that tables of steps can follow it.
    """
    beyond = 2.0 * (tokens - captured_tokens) / np.maximum(captured_tokens, 1.0)
    return OUTSIDE_GRAPHS + (1.0 - OUTSIDE_GRAPHS) * np.clip(beyond, 0.0, 1.0)


def fullest_stage(arch: Architecture, shards: Shards) -> Floats:
    """Layers of the fullest pipeline stage over the mean [N]: all stages run at its pace."""
    return np.ceil(arch.num_layers / shards.pp) * shards.pp / arch.num_layers
