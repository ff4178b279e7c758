"""Estimates cases: groups those that share a cost model, prices steps as arrays, then simulates or solves the mean.

Four steps are priced for every case: decoding at its full batch and at half of it, one prompt, and a step full of
prompts. Decoding is linear in the batch between the first two, prefill in tokens through the others. Every loop is
settled in the mean (`mean_field.settle`); the times of a closed one, with its opening burst and its queues, are those
of the benchmark simulated request by request (`estimate.closed_loop`), and its rate follows from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import forward
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.spread import features_of
from planner.costs.rates.step import launches
from planner.costs.serving.graphs import pad_graph_batch
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.engines.load import release_of
from planner.estimate.case import Case, Part, Refused
from planner.estimate.closed_loop import simulate_loops
from planner.estimate.frame import Added, Frame, Pace, half_of, idle_ttft_s, loop_of, pace_of, settled, taken
from planner.estimate.mean_field import Settled
from planner.hardware.profiles.store import ProfileStore
from planner.kinds.serve.steady.demand import link_bytes_per_s
from planner.kinds.serve.steady.formulas import Costs
from planner.kinds.serve.steady.shapes import InstanceShape, halving_rule
from planner.models.kv import kv_bytes, state_bytes_per_sequence

PRICED_TOKENS = 8192.0  # of the step from which the time of a prompt token is taken
Interval = tuple[float, float]
DEFAULT_MAX_BATCH = 1024  # vLLM's default on these accelerators; SGLang and TensorRT-LLM admit more


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one case is predicted to do; times of a mean request."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s_per_gpu: float
    memory_bytes: float
    ttft_s_interval: Interval | None = None  # 80 %; None where the calibration holds no spread
    tpot_s_interval: Interval | None = None


def evaluate(cases: Sequence[Case], store: ProfileStore | None) -> list[Estimate | Refused]:
    """An estimate, or the reason why there is none, for every case, in order."""
    results: dict[int, Estimate | Refused] = {}
    for members in groups_of(cases):
        for index, result in zip(members, _group([cases[i] for i in members], store), strict=True):
            results[index] = result
    return [results[index] for index in range(len(cases))]


def groups_of(cases: Sequence[Case]) -> list[list[int]]:
    """Indices of cases that share model, pool, engine, mode and drafter."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        key = (id(case.arch), id(case.pool.node), case.pool.num_nodes, case.engine, case.version, case.calibration)
        groups.setdefault((*key, case.prefill is None, id(case.drafter)), []).append(index)
    return list(groups.values())


def _group(cases: list[Case], store: ProfileStore | None) -> list[Estimate | Refused]:
    arch = cases[0].arch
    reasons = arch.unsupported_parts() + [f"{part} of unknown size" for part in arch.parts_beside(sized=False)]
    if reasons:
        return [Refused(case.id, f"{case.arch.name}: unsupported {'; '.join(reasons)}") for case in cases]
    return batch_of(cases, store).estimates()


def batch_of(cases: list[Case], store: ProfileStore | None) -> "Batch":
    """Cases that share model, pool, engine, mode and drafter, with what prices them."""
    first = cases[0]
    calibration = load_calibration(first.calibration)
    pricer = make_pricer(
        first.pool,
        first.arch,
        engine=first.engine,
        version=first.version,
        calibration=calibration,
        store=store,
    )
    return Batch(cases, Costs(first.arch, pricer, calibration.engine(first.engine, first.version), first.drafter))


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases that share model, pool and engine; arrays [N] over cases."""

    cases: list[Case]
    costs: Costs

    def estimates(self) -> list[Estimate | Refused]:
        """An estimate or a refusal for every case."""
        frame = self.frame()
        costs = replace(self.costs, engine=self.costs.engine.unhurried())  # the loop adds the launches of each step
        seconds = [costs.step(shards, work).seconds for shards, work in self.steps(frame)]
        added = Added.of([self.costs.engine] * len(self.cases))
        pace = pace_of(frame, seconds, added)
        settled = run(frame, pace, added)
        intervals = self._intervals(settled, idle_ttft_s(frame, pace, added))
        fixed, per_sequence = self._fixed_bytes(), self._sequence_bytes()
        room = self._room_bytes()
        memory = fixed + np.minimum(settled.decoding, np.maximum(self._admitted(), 1.0)) * per_sequence
        return [
            self._refused(i, case, settled, room)
            or Estimate(
                float(settled.ttft_s[i]),
                float(settled.tpot_s[i]),
                float(settled.rate_per_s[i] * case.osl / case.gpus),
                float(memory[i]),
                *(values[i] for values in intervals),
            )
            for i, case in enumerate(self.cases)
        ]

    def _intervals(self, settled: Settled, idle_s: Floats) -> tuple[list[Interval | None], list[Interval | None]]:
        """80 % intervals of both times of each case; None where the calibration holds no spread."""
        spreads, features = load_calibration(self.cases[0].calibration).spreads, features_of(settled.ttft_s, idle_s)

        def ends(name: str, values: Floats) -> list[Interval | None]:
            if name not in spreads:
                return [None] * len(values)
            return [
                (float(low), float(high)) for low, high in zip(*spreads[name].bounds(values, features), strict=True)
            ]

        return ends("ttft", settled.ttft_s), ends("tpot", settled.tpot_s)

    def frame(self) -> Frame:
        """The deployments without their step times."""
        clients, isl = self._numbers("clients"), self._numbers("isl")
        ranks, most = self._numbers_of_parts(False, "ranks"), np.clip(self._admitted(), 1.0, self._most_batch())
        each = np.minimum(np.where(clients > 0, clients / ranks, most), most)
        kernels, latent_layers = self._launches()
        return Frame(
            clients=clients,
            rate_per_s=self._numbers("rate_per_s"),
            requests_per_client=self._numbers("requests_per_client"),
            isl=isl,
            osl=self._numbers("osl"),
            isl_cv=self._numbers("isl_cv"),
            disaggregated=np.array([case.prefill is not None for case in self.cases], dtype=np.float64),
            decode_instances=self._numbers_of_parts(False, "replicas"),
            decode_ranks=ranks,
            prefill_ranks=self._numbers_of_parts(True, "ranks"),
            prefill_stages=self._shards(True).pp,
            most_decoding=most,
            full_batch=np.maximum(each, 1.0),
            chunks=np.ceil(isl / PRICED_TOKENS),
            prompts=np.maximum(np.floor(PRICED_TOKENS / isl), 1.0),
            moved_s=self._moved_s(),
            chunk_tokens=self._numbers_of_parts(True, "chunk_tokens"),
            poll_steps=self._numbers("poll_steps"),
            hold_steps=self._numbers("hold_steps"),
            staggered=self._numbers("staggered"),
            launches=kernels,
            latent_layers=latent_layers,
            prefix_hits=self._numbers("prefix_hits"),
            captured_tokens=self._captured_tokens(),
            yielded=self.costs.tokens_per_step(self._numbers("draft_tokens")),
        )

    def steps(self, frame: Frame) -> list[tuple[Shards, Work]]:
        """What is priced: a full batch and half of it, one prompt (with the batch where both share steps), and many."""
        decode, prefill = self._shards(False), self._shards(True)
        context, tokens = frame.isl + frame.osl / 2.0, frame.isl / frame.chunks
        before = (frame.isl - tokens) / 2.0
        beside = frame.full_batch / decode.pp * (1.0 - frame.disaggregated)
        priced = [
            *(
                (decode, Work.decode(pad_graph_batch(batch) / decode.pp, context))
                for batch in (frame.full_batch, half_of(frame.full_batch))
            ),
            (prefill, Work.of(tokens, 1.0, before, beside, context)),
            (prefill, Work.of(frame.prompts * tokens, frame.prompts, before, 0.0, 0.0)),
        ]
        if self.costs.drafter is None:
            return priced
        return [(shards, work.with_drafts(self._numbers("draft_tokens"))) for shards, work in priced]

    def _launches(self) -> tuple[Floats, Floats]:
        """Kernels of a step with prompts, and its layers of latent attention."""
        ones = np.ones(len(self.cases))
        counts = launches(list(forward(self.costs.arch, self._shards(True), Work.prefill(1024.0 * ones))))
        halves = self._shards(True).micro_batches
        return counts[0] * halves, counts[1] * halves

    def _captured_tokens(self) -> Floats:
        """Of the largest step that graphs hold; none of steps with prompts in two batches."""
        default = self.costs.engine.captured_tokens
        stated = self._numbers("captured_tokens")  # NaN where a case says nothing
        captured = np.where(np.isnan(stated), default, stated)
        return np.where(self._shards(True).micro_batches > 1.0, 0.0, captured)

    def _sequence_bytes(self) -> Floats:
        """Cache of a sequence half-way through its output: engines take pages as sequences grow."""
        shards, drafter, tokens = (
            self._shards(False),
            self.costs.drafter,
            self._numbers("isl") + self._numbers("osl") / 2.0,
        )
        own = kv_cache_bytes(self.costs.arch, shards, tokens)
        return own if drafter is None else own + drafter.kv_bytes(shards, tokens, self._numbers("draft_tokens"))

    def _admitted(self) -> Floats:
        """Sequences of a decoding rank that its cache holds."""
        room = np.maximum(self._room_bytes(), 0.0)
        return np.asarray(np.floor(room / self._sequence_bytes()), dtype=np.float64)

    def _refused(self, i: int, case: Case, settled: Settled, room: Floats) -> Refused | None:
        """Why there is no estimate of a case; None where there is one."""
        reason = _uncut(case)
        if reason is None and room[i] < 0:
            reason = f"out of memory: weights and workspace exceed a device by {-room[i] / 1e9:.2f} GB"
        if reason is None and not np.isfinite(settled.ttft_s[i]):
            reason = f"saturated: at most {settled.rate_per_s[i]:.3g} requests/s can be served"
        return None if reason is None else Refused(case.id, reason)

    def _numbers(self, name: str) -> Floats:
        return np.array([getattr(case, name) for case in self.cases], dtype=np.float64)

    def _numbers_of_parts(self, prefill: bool, name: str) -> Floats:
        return np.array([getattr(part, name) for part in self._parts(prefill)], dtype=np.float64)

    def _parts(self, prefill: bool) -> list[Part]:
        return [case.prefill if prefill and case.prefill is not None else case.decode for case in self.cases]

    def _shards(self, prefill: bool) -> Shards:
        names = ("tp", "pp", "dp", "moe_tp", "ep", "micro_batches")
        return Shards.of(*(self._numbers_of_parts(prefill, name) for name in names))

    def _most_batch(self) -> Floats:
        given = self._numbers_of_parts(False, "max_batch")
        return np.where(given > 0, given, float(DEFAULT_MAX_BATCH))

    def _room_bytes(self) -> Floats:
        """What weights and workspace leave to the cache on a decoding device; below 0 where they do not fit."""
        memory, fixed = self.cases[0].pool.node.accelerator.memory_bytes, self._fixed_bytes()
        room = memory * self._numbers("memory_utilisation") - fixed
        room = np.where(room < 0, np.maximum(room, memory * self._numbers("most_memory_utilisation") - fixed), room)
        return np.where(room > 0, room * self._numbers("free_memory_share"), room)

    def _fixed_bytes(self) -> Floats:
        """Weights, those of a drafter too, workspace and the activations of a small step on a decoding device.

        What an engine takes for larger steps shrinks the cache, and with it the sequences admitted, but never keeps
        a deployment from starting.
        """
        shards, drafter = self._shards(False), self.costs.drafter
        activations = activation_bytes(self.costs.arch, shards, 512.0, 64.0)
        own = weight_bytes(self.costs.arch, shards) + activations + self.costs.engine.workspace_bytes
        return own if drafter is None else own + drafter.weight_bytes(shards, self._numbers("draft_tokens"))

    def _moved_s(self) -> Floats:
        """Moving a request's cache from one pool to the other; 0 where one pool does both."""
        isl, shards, pool = self._numbers("isl"), self._shards(True), self.cases[0].pool
        if self.cases[0].prefill is None:
            return np.zeros_like(isl)
        moved = kv_bytes(self.costs.arch, isl) + state_bytes_per_sequence(self.costs.arch, np.ones(len(isl)))
        if self.costs.drafter is not None:
            moved = moved + self.costs.drafter.kv_bytes(
                Shards.of(np.ones(len(isl))), isl, self._numbers("draft_tokens")
            )
        return np.asarray(moved / (shards.tp * link_bytes_per_s(pool)) + pool.node.nic_latency_s)


def _uncut(case: Case) -> str | None:
    """Why steps cannot be cut in two batches as a case says, None where they can or need not be."""
    for part in (case.prefill, case.decode):
        if part is not None and part.micro_batches > 1:
            shape = InstanceShape(part.tp, part.pp, part.dp, part.moe_tp, part.ep, part.micro_batches)
            rule = halving_rule(shape, case.arch, release_of(case.engine, None))
            if rule is None and case.draft_tokens:
                rule = "drafts are verified in steps of one batch"
            if rule is not None:
                return rule
    return None


def run(frame: Frame, pace: Pace, added: Added) -> Settled:
    """All loops settled; the times of closed ones as simulated. Steps that yield several tokens are shared by these."""
    rested, closed = settled(frame, pace, added), frame.clients > 0
    ttft, tpot, rate = rested.ttft_s.copy(), rested.tpot_s / frame.yielded, rested.rate_per_s.copy()
    if not closed.any():
        return Settled(rate, ttft, tpot, rested.decoding)
    simulated = simulate_loops(taken(loop_of(frame, pace, added), closed))
    ttft[closed], tpot[closed] = simulated.ttft_s, simulated.tpot_s / frame.yielded[closed]
    rate[closed] = (frame.clients / (ttft + (frame.osl - 1.0) * tpot))[closed]  # Little's law
    return Settled(rate, ttft, tpot, rested.decoding)
