"""Cases to predictions: grouped by what shares a cost model, priced as arrays, settled together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.costs.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.parameters import load_calibration
from planner.costs.shapes import FloatArray, Shards
from planner.costs.source import make_pricer
from planner.estimate.case import Case, Part, Refused
from planner.hardware.profiles.store import ProfileStore
from planner.kinds.serve.closed_loop import Dynamics, Settled, settle
from planner.kinds.serve.demand import link_bytes_per_s
from planner.kinds.serve.steady import Costs, decode_step, pad_graph_batch, prefill_alone, prefill_mixed
from planner.models.kv import kv_bytes, state_bytes_per_sequence

DEFAULT_CHUNK_TOKENS = 8192
DEFAULT_MAX_BATCH = 1024  # vLLM's default on these accelerators; SGLang and TensorRT-LLM admit more


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one case is predicted to do; times of a mean request."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s_per_gpu: float
    memory_bytes: float


def evaluate(cases: Sequence[Case], store: ProfileStore | None) -> list[Estimate | Refused]:
    """An estimate, or the reason why there is none, for every case, in order."""
    results: dict[int, Estimate | Refused] = {}
    for members in _groups(cases):
        for index, result in zip(members, _group([cases[i] for i in members], store), strict=True):
            results[index] = result
    return [results[index] for index in range(len(cases))]


def loops(cases: Sequence[Case], store: ProfileStore | None) -> Dynamics:
    """What decides the loop of every case, in order; all must be of models that have costs."""
    order: list[int] = []
    found: list[Dynamics] = []
    for members in _groups(cases):
        order += members
        found.append(_batch([cases[i] for i in members], store).dynamics())
    place = np.argsort(order)
    names = [field.name for field in fields(Dynamics)]
    return Dynamics(**{name: np.concatenate([getattr(one, name) for one in found])[place] for name in names})


def _groups(cases: Sequence[Case]) -> list[list[int]]:
    """Indices of cases that share model, pool, engine and mode."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        key = (id(case.arch), id(case.pool.node), case.pool.num_nodes, case.engine, case.version, case.calibration)
        groups.setdefault((*key, case.prefill is None), []).append(index)
    return list(groups.values())


def _group(cases: list[Case], store: ProfileStore | None) -> list[Estimate | Refused]:
    reasons = cases[0].arch.unsupported_parts()
    if reasons:
        return [Refused(case.id, f"{case.arch.name}: unsupported {'; '.join(reasons)}") for case in cases]
    return _batch(cases, store).estimates()


def _batch(cases: list[Case], store: ProfileStore | None) -> "_Batch":
    first = cases[0]
    calibration = load_calibration(first.calibration)
    pricer = make_pricer(
        first.pool.node.accelerator,
        first.pool.topology(),
        first.arch,
        engine=first.engine,
        version=first.version,
        calibration=calibration,
        store=store,
    )
    return _Batch(cases, Costs(first.arch, pricer, calibration.engine(first.engine)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Cases that share model, pool and engine; arrays [N] over cases."""

    cases: list[Case]
    costs: Costs

    def estimates(self) -> list[Estimate | Refused]:
        fixed, per_sequence = self._fixed_bytes(), self._sequence_bytes()
        settled = settle(self.dynamics())
        room = self._memory_bytes() - fixed
        memory = fixed + np.minimum(settled.decoding, np.maximum(self._admitted(), 1.0)) * per_sequence
        return [self._answer(i, case, settled, room, memory) for i, case in enumerate(self.cases)]

    def dynamics(self) -> Dynamics:
        """What decides the loop of each case."""
        return self._dynamics(np.clip(self._admitted(), 1.0, self._most_batch()))

    def _sequence_bytes(self) -> FloatArray:
        """Cache of a sequence half-way through its output: engines take pages as sequences grow."""
        cached = self._numbers(lambda case: case.isl + case.osl / 2.0)
        return kv_cache_bytes(self.costs.arch, self._shards(False), cached)

    def _admitted(self) -> FloatArray:
        """Sequences of a decoding rank that its cache holds."""
        room = np.maximum(self._memory_bytes() - self._fixed_bytes(), 0.0)
        return np.asarray(np.floor(room / self._sequence_bytes()), dtype=np.float64)

    def _answer(self, i: int, case: Case, settled: Settled, room: FloatArray, memory: FloatArray) -> Estimate | Refused:
        if room[i] < 0:
            over = -room[i] / 1e9
            return Refused(case.id, f"out of memory: weights and workspace exceed a device by {over:.2f} GB")
        if not np.isfinite(settled.ttft_s[i]):
            return Refused(case.id, f"saturated: at most {settled.rate_per_s[i]:.3g} requests/s can be served")
        tokens = settled.rate_per_s[i] * case.osl / case.gpus
        return Estimate(float(settled.ttft_s[i]), float(settled.tpot_s[i]), float(tokens), float(memory[i]))

    def _numbers(self, of: Callable[[Case], float]) -> FloatArray:
        return np.array([of(case) for case in self.cases], dtype=np.float64)

    def _parts(self, prefill: bool) -> list[Part]:
        return [case.prefill if prefill and case.prefill is not None else case.decode for case in self.cases]

    def _shards(self, prefill: bool) -> Shards:
        rows = [(part.tp, part.pp, part.dp, part.moe_tp, part.ep) for part in self._parts(prefill)]
        return Shards.of(*np.array(rows, dtype=np.float64).T)

    def _chunk(self) -> FloatArray:
        given = np.array([part.chunk_tokens for part in self._parts(True)], dtype=np.float64)
        return np.where(given > 0, given, float(DEFAULT_CHUNK_TOKENS))

    def _most_batch(self) -> FloatArray:
        given = np.array([part.max_batch for part in self._parts(False)], dtype=np.float64)
        return np.where(given > 0, given, float(DEFAULT_MAX_BATCH))

    def _memory_bytes(self) -> FloatArray:
        accelerator = self.cases[0].pool.node.accelerator
        return accelerator.memory_bytes * self._numbers(lambda case: case.memory_utilisation)

    def _fixed_bytes(self) -> FloatArray:
        """Weights, workspace and the activations of a small step on a decoding device.

        What an engine takes for larger steps shrinks the cache, and with it the sequences admitted, but never keeps
        a deployment from starting.
        """
        shards = self._shards(False)
        activations = activation_bytes(self.costs.arch, shards, 512.0, 64.0)
        return weight_bytes(self.costs.arch, shards) + activations + self.costs.engine.workspace_bytes

    def _dynamics(self, most_decoding: FloatArray) -> Dynamics:
        shards, cases = self._shards(False), self.cases
        isl, osl = self._numbers(lambda case: case.isl), self._numbers(lambda case: case.osl)
        ranks = self._numbers(lambda case: case.decode.replicas * case.decode.dp)
        clients = self._numbers(lambda case: case.clients)
        share = np.minimum(np.where(clients > 0, clients / ranks, most_decoding), most_decoding)
        high = np.maximum(share, 1.0)
        low = np.maximum(np.floor(high / 2.0), 1.0)
        context = isl + osl / 2.0
        decode_high = self._decode_s(shards, high, context)
        decode_low = self._decode_s(shards, low, context)
        slope = np.maximum((decode_high - decode_low) / np.maximum(high - low, 1.0), 0.0)
        colocated = cases[0].prefill is None
        if colocated:
            prefill = prefill_mixed(self.costs, shards, isl, osl, self._chunk(), high, context, decode_high)
            moved = np.zeros(len(cases))
            prefill_ranks = ranks
        else:
            prefill_shards = self._shards(True)
            prefill = prefill_alone(self.costs, prefill_shards, isl, np.maximum(self._chunk(), isl))
            moved = self._transfer_s(prefill_shards, isl)
            prefill_ranks = np.array([part.replicas * part.dp for part in self._parts(True)], dtype=np.float64)
        return Dynamics(
            clients=clients,
            rate_per_s=self._numbers(lambda case: case.rate_per_s),
            osl=osl,
            decode_ranks=ranks,
            prefill_ranks=prefill_ranks,
            decode_base_s=np.maximum(decode_high - slope * high, 1e-6),
            decode_slope_s=slope,
            stretch_s=prefill.stretch_s,
            queue_s=prefill.queue_s,
            service_s=prefill.latency_s + moved + self.costs.engine.request_s,
            first_steps=np.full(len(cases), self.costs.engine.first_token_steps if colocated else 0.0),
            together=np.full(len(cases), self.costs.engine.together),
            service_cv2=self._numbers(lambda case: case.isl_cv**2),
            most_decoding=most_decoding,
        )

    def _decode_s(self, shards: Shards, batch: FloatArray, context: FloatArray) -> FloatArray:
        return decode_step(self.costs, shards, pad_graph_batch(batch), context).seconds

    def _transfer_s(self, shards: Shards, isl: FloatArray) -> FloatArray:
        pool = self.cases[0].pool
        moved = kv_bytes(self.costs.arch, isl) + state_bytes_per_sequence(self.costs.arch, np.ones(len(isl)))
        return np.asarray(moved / (shards.tp * link_bytes_per_s(pool)) + pool.node.nic_latency_s)
