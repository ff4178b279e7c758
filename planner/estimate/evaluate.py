"""Cases to predictions: grouped by what shares a cost model, priced as arrays, simulated or settled together.

Four steps are priced for every case: decoding at its full batch and at half of it, one prompt, and a step full of
prompts. Decoding is linear in the batch between the first two, prefill in tokens through the others. Every loop is
settled in the mean (`mean_field.settle`); the times of a closed one, with its opening burst and its queues, are those
of the benchmark simulated request by request (`estimate.closed_loop`), and its rate follows from them.
"""

from collections.abc import Callable, Sequence
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
    reasons = cases[0].arch.unsupported_parts()
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


def _unhurried(costs: Costs) -> Costs:
    """The same without the time that the host needs to launch, which the loop adds to each of its steps."""
    return replace(costs, engine=costs.engine.unhurried())


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases that share model, pool and engine; arrays [N] over cases."""

    cases: list[Case]
    costs: Costs

    def estimates(self) -> list[Estimate | Refused]:
        """An estimate or a refusal for every case."""
        frame = self.frame()
        costs = _unhurried(self.costs)
        seconds = [costs.step(shards, work).seconds for shards, work in self.steps(frame)]
        added = Added.of([self.costs.engine] * len(self.cases))
        pace = pace_of(frame, seconds, added)
        settled = run(frame, pace, added)
        intervals = self._intervals(settled, idle_ttft_s(frame, pace, added))
        fixed, per_sequence = self._fixed_bytes(), self._sequence_bytes()
        room = self._memory_bytes() - fixed
        memory = fixed + np.minimum(settled.decoding, np.maximum(self._admitted(), 1.0)) * per_sequence
        found = [self._answer(i, case, settled, room, memory) for i, case in enumerate(self.cases)]
        return [
            replace(one, ttft_s_interval=ttft, tpot_s_interval=tpot) if isinstance(one, Estimate) else one
            for one, ttft, tpot in zip(found, *intervals, strict=True)
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
        clients, isl = self._numbers(lambda case: case.clients), self._isl()
        ranks, most = self._ranks(False), np.clip(self._admitted(), 1.0, self._most_batch())
        each = np.minimum(np.where(clients > 0, clients / ranks, most), most)
        kernels, latent_layers = self._launches()
        return Frame(
            clients=clients,
            rate_per_s=self._numbers(lambda case: case.rate_per_s),
            requests_per_client=self._numbers(lambda case: case.requests_per_client),
            isl=isl,
            osl=self._osl(),
            isl_cv=self._numbers(lambda case: case.isl_cv),
            disaggregated=self._numbers(lambda case: case.prefill is not None),
            decode_instances=np.array([part.replicas for part in self._parts(False)], dtype=np.float64),
            decode_ranks=ranks,
            prefill_ranks=self._ranks(True),
            prefill_stages=self._shards(True).pp,
            most_decoding=most,
            full_batch=np.maximum(each, 1.0),
            chunks=np.ceil(isl / PRICED_TOKENS),
            prompts=np.maximum(np.floor(PRICED_TOKENS / isl), 1.0),
            moved_s=self._moved_s(),
            chunk_tokens=np.array([part.chunk_tokens for part in self._parts(True)], dtype=np.float64),
            poll_steps=self._numbers(lambda case: case.poll_steps),
            hold_steps=self._numbers(lambda case: case.hold_steps),
            staggered=self._numbers(lambda case: case.staggered),
            launches=kernels,
            latent_layers=latent_layers,
            prefix_hits=self._numbers(lambda case: case.prefix_hits),
            captured_tokens=self._captured_tokens(),
            yielded=self.costs.tokens_per_step(self._drafts()),
        )

    def steps(self, frame: Frame) -> list[tuple[Shards, Work]]:
        """What is priced: a full batch and half of it, one prompt (with the batch where both share steps), and many."""
        decode, prefill = self._shards(False), self._shards(True)
        context, tokens = frame.isl + frame.osl / 2.0, frame.isl / frame.chunks
        before = (frame.isl - tokens) / 2.0
        beside = frame.full_batch / decode.pp * (1.0 - frame.disaggregated)
        found = [
            *(
                (decode, Work.decode(pad_graph_batch(batch) / decode.pp, context))
                for batch in (frame.full_batch, half_of(frame.full_batch))
            ),
            (prefill, Work.of(tokens, 1.0, before, beside, context)),
            (prefill, Work.of(frame.prompts * tokens, frame.prompts, before, 0.0, 0.0)),
        ]
        if self.costs.drafter is None:
            return found
        return [(shards, work.with_drafts(self._drafts())) for shards, work in found]

    def _drafts(self) -> Floats:
        return self._numbers(lambda case: case.draft_tokens)

    def _launches(self) -> tuple[Floats, Floats]:
        """Kernels of a step with prompts, and its layers of latent attention."""
        one = np.ones(len(self.cases))
        found = launches(list(forward(self.costs.arch, self._shards(True), Work.prefill(1024.0 * one))))
        halves = self._shards(True).micro_batches
        return found[0] * halves, found[1] * halves

    def _captured_tokens(self) -> Floats:
        """Of the largest step that graphs hold; none of steps with prompts in two batches."""
        default = self.costs.engine.captured_tokens
        captured = self._numbers(lambda case: default if case.captured_tokens is None else case.captured_tokens)
        return np.where(self._shards(True).micro_batches > 1.0, 0.0, captured)

    def _isl(self) -> Floats:
        return self._numbers(lambda case: case.isl)

    def _osl(self) -> Floats:
        return self._numbers(lambda case: case.osl)

    def _ranks(self, prefill: bool) -> Floats:
        return np.array([part.replicas * part.dp for part in self._parts(prefill)], dtype=np.float64)

    def _sequence_bytes(self) -> Floats:
        """Cache of a sequence half-way through its output: engines take pages as sequences grow."""
        shards, drafter, tokens = self._shards(False), self.costs.drafter, self._isl() + self._osl() / 2.0
        own = kv_cache_bytes(self.costs.arch, shards, tokens)
        return own if drafter is None else own + drafter.kv_bytes(shards, tokens, self._drafts())

    def _admitted(self) -> Floats:
        """Sequences of a decoding rank that its cache holds."""
        room = np.maximum(self._memory_bytes() - self._fixed_bytes(), 0.0)
        return np.asarray(np.floor(room / self._sequence_bytes()), dtype=np.float64)

    def _answer(self, i: int, case: Case, settled: Settled, room: Floats, memory: Floats) -> Estimate | Refused:
        reason = _uncut(case)
        if reason is not None:
            return Refused(case.id, reason)
        if room[i] < 0:
            over = -room[i] / 1e9
            return Refused(case.id, f"out of memory: weights and workspace exceed a device by {over:.2f} GB")
        if not np.isfinite(settled.ttft_s[i]):
            return Refused(case.id, f"saturated: at most {settled.rate_per_s[i]:.3g} requests/s can be served")
        tokens = settled.rate_per_s[i] * case.osl / case.gpus
        return Estimate(float(settled.ttft_s[i]), float(settled.tpot_s[i]), float(tokens), float(memory[i]))

    def _numbers(self, of: Callable[[Case], float]) -> Floats:
        return np.array([of(case) for case in self.cases], dtype=np.float64)

    def _parts(self, prefill: bool) -> list[Part]:
        return [case.prefill if prefill and case.prefill is not None else case.decode for case in self.cases]

    def _shards(self, prefill: bool) -> Shards:
        parts = self._parts(prefill)
        rows = [(part.tp, part.pp, part.dp, part.moe_tp, part.ep, part.micro_batches) for part in parts]
        return Shards.of(*np.array(rows, dtype=np.float64).T)

    def _most_batch(self) -> Floats:
        given = np.array([part.max_batch for part in self._parts(False)], dtype=np.float64)
        return np.where(given > 0, given, float(DEFAULT_MAX_BATCH))

    def _memory_bytes(self) -> Floats:
        accelerator = self.cases[0].pool.node.accelerator
        return self._numbers(lambda case: accelerator.usable_bytes(case.memory_utilisation))

    def _fixed_bytes(self) -> Floats:
        """Weights, those of a drafter too, workspace and the activations of a small step on a decoding device.

        What an engine takes for larger steps shrinks the cache, and with it the sequences admitted, but never keeps
        a deployment from starting.
        """
        shards, drafter = self._shards(False), self.costs.drafter
        activations = activation_bytes(self.costs.arch, shards, 512.0, 64.0)
        own = weight_bytes(self.costs.arch, shards) + activations + self.costs.engine.workspace_bytes
        return own if drafter is None else own + drafter.weight_bytes(shards, self._drafts())

    def _moved_s(self) -> Floats:
        """Moving a request's cache from one pool to the other; 0 where one pool does both."""
        isl, shards, pool = self._isl(), self._shards(True), self.cases[0].pool
        if self.cases[0].prefill is None:
            return np.zeros_like(isl)
        moved = kv_bytes(self.costs.arch, isl) + state_bytes_per_sequence(self.costs.arch, np.ones(len(isl)))
        if self.costs.drafter is not None:
            moved = moved + self.costs.drafter.kv_bytes(Shards.of(np.ones(len(isl))), isl, self._drafts())
        return np.asarray(moved / (shards.tp * link_bytes_per_s(pool)) + pool.node.nic_latency_s)


def _uncut(case: Case) -> str | None:
    """Why steps cannot be cut in two batches as a case says, None where they can or need not be."""
    for part in (case.prefill, case.decode):
        if part is not None and part.micro_batches > 1:
            shape = InstanceShape(part.tp, part.pp, part.dp, part.moe_tp, part.ep, part.micro_batches)
            rule = halving_rule(shape, case.arch, case.engine)
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
