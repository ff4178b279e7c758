"""Cases that share a cost model, as arrays: what their models ask for, the memory that is left, and the steps priced.

Four steps are priced for every case: decoding at its full batch and at half of it, one prompt, and a step full of
prompts. Decoding is linear in the batch between the first two, prefill in tokens through the others. What pads a batch
to the next CUDA graph costs nothing: products read the same weights, attention has nothing to read, and SGLang leaves
it out of experts (srt/layers/moe/topk.py, `num_token_non_padded`); other engines may read some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import forward, ranks_in_step
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.step import launches
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.estimate.case import Case, Part
from planner.estimate.frame import Frame, half_of
from planner.hardware.profiles.store import ProfileStore
from planner.kinds.serve.steady.demand import link_bytes_per_s
from planner.kinds.serve.steady.steps.formulas import Costs
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence

PRICED_TOKENS = 8192.0  # of the step from which the time of a prompt token is taken
DEFAULT_MAX_BATCH = 1024  # vLLM's default on these accelerators; SGLang and TensorRT-LLM admit more


def groups_of(cases: Sequence[Case], *, tables: bool = True) -> list[list[int]]:
    """Indices of cases that share model, nodes, engine, mode and drafter, and what prices them.

    Kernel tables are of releases; without `tables`, those alike in their overheads go together.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        pool, release = (id(case.pool.node), case.pool.oversubscription), case.version if tables else case.section
        shared = (id(case.arch), *pool, case.engine, release, case.calibration, case.prefill is None, id(case.drafter))
        groups.setdefault((*shared, case.whole_tiles, case.triton_experts), []).append(index)
    return list(groups.values())


def batch_of(cases: list[Case], store: ProfileStore | None) -> "Batch":
    """Cases that share model, nodes, engine, mode and drafter, with what prices them, as in the largest of their pools.

    Groups of ranks find the same links in a larger pool of equal nodes.
    """
    first = max(cases, key=lambda case: case.pool.num_nodes)
    calibration = load_calibration(first.calibration)
    pricer = make_pricer(
        first.pool,
        first.arch,
        engine=first.engine,
        version=first.version,
        calibration=calibration,
        store=store,
        tiles=first.whole_tiles,
        triton=first.triton_experts,
        alike=True,
    )
    return Batch(
        cases,
        Costs(first.arch, pricer, calibration.engine(first.engine, first.version, first.arch.name), first.drafter),
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the model of each case [N] asks for, whatever prices it."""

    fixed_bytes: Floats  # weights, and the activations of a small step, on a decoding device
    sequence_bytes: Floats  # cache that a sequence is admitted for
    kernels: Floats  # of a step with prompts
    latent_layers: Floats  # of those, with prompts

    @classmethod
    def of(cls, arch: Architecture, decode: Shards, prefill: Shards, admitted_tokens: Floats) -> "Sizes":
        """Of cases of one model: shards and tokens [N] of a sequence when it is admitted."""
        prompt = Work.prefill(np.full(len(prefill), 1024.0))
        kernels, latent_layers = (
            np.broadcast_to(count * prefill.micro_batches, len(prefill))
            for count in launches(list(forward(arch, prefill, prompt)))
        )
        fixed = weight_bytes(arch, decode) + activation_bytes(arch, decode, 512.0, 64.0)
        return cls(fixed, kv_cache_bytes(arch, decode, admitted_tokens), kernels, latent_layers)


def sizes_of(batches: Sequence["Batch"]) -> list[Sizes]:
    """Those of the cases of every batch; batches of one model are counted together."""
    models: dict[int, list[int]] = {}
    for index, batch in enumerate(batches):
        models.setdefault(id(batch.costs.arch), []).append(index)
    result: dict[int, Sizes] = {}
    for members in models.values():
        own = [batches[index] for index in members]
        sizes = Sizes.of(
            own[0].costs.arch,
            Shards.joined([batch.decode_shards for batch in own]),
            Shards.joined([batch.prefill_shards for batch in own]),
            np.concatenate([batch.admitted_tokens for batch in own]),
        )
        ends = np.cumsum([len(batch.cases) for batch in own])[:-1]
        parts = (np.split(getattr(sizes, part.name), ends) for part in fields(Sizes))
        result.update(zip(members, (Sizes(*each) for each in zip(*parts, strict=True)), strict=True))
    return [result[index] for index in range(len(batches))]


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a decoding device of each case [N]."""

    fixed_bytes: Floats  # weights and workspace
    room_bytes: Floats  # that they leave to the cache; below 0 where they do not fit
    sequence_bytes: Floats  # of the cache

    @property
    def admitted(self) -> Floats:
        """Sequences that the cache holds."""
        return np.floor(np.maximum(self.room_bytes, 0.0) / self.sequence_bytes)

    def cache_tokens(self, admitted_tokens: Floats) -> Floats:
        """That the cache holds, of sequences that are admitted for so many."""
        return np.floor(np.maximum(self.room_bytes, 0.0) * admitted_tokens / self.sequence_bytes)

    def used_bytes(self, decoding: Floats) -> Floats:
        """With so many sequences that decode, as far as the cache holds them."""
        return self.fixed_bytes + np.minimum(decoding, np.maximum(self.admitted, 1.0)) * self.sequence_bytes


@dataclass(frozen=True)
class Batch:
    """Cases that share model, nodes and engine; arrays [N] over cases."""

    cases: list[Case]
    costs: Costs

    @cached_property
    def decode_shards(self) -> Shards:
        """Of the instances that decode."""
        return self._shards(False)

    @cached_property
    def prefill_shards(self) -> Shards:
        """Of those that take prompts."""
        return self._shards(True)

    @property
    def group(self) -> str:
        """What their errors are common to."""
        return self.cases[0].group

    @property
    def admitted_tokens(self) -> Floats:
        """Of a sequence when it is admitted: not all that it writes, where engines take pages as it grows."""
        return self._numbers("isl") + self._numbers("osl") * self._numbers("reserved_output")

    def priced(self, sizes: Sizes, memory: "Memory", batch: Floats | None = None) -> tuple[Frame, list[Floats]]:
        """The deployments, and seconds [N] of each of the priced steps, the largest with `batch` where it is given."""
        frame = self.frame(sizes, memory)
        frame = frame if batch is None else replace(frame, full_batch=batch)
        engine = self.costs.engine.unhurried()  # the loop adds the launches of each step
        steps = self.steps(frame)
        shards, work = Shards.joined([shards for shards, _ in steps]), Work.joined([work for _, work in steps])
        seconds = replace(self.costs, engine=engine).step(shards, work).seconds
        return frame, np.split(seconds, len(steps))

    def frame(self, sizes: Sizes | None = None, memory: "Memory | None" = None) -> Frame:
        """The deployments without their step times."""
        sizes = sizes or sizes_of([self])[0]
        memory = memory or self.memory(sizes)
        clients, isl = self._numbers("clients"), self._numbers("isl")
        ranks, most = self._numbers_of_parts(False, "ranks"), np.clip(memory.admitted, 1.0, self._most_batch())
        each = np.minimum(np.where(clients > 0, clients / ranks, most), most)
        preempts = self._numbers("preempts") > 0
        return Frame(
            clients=clients,
            rate_per_s=self._numbers("rate_per_s"),
            requests_per_client=self._numbers("requests_per_client"),
            isl=isl,
            osl=self._numbers("osl"),
            isl_cv=self._numbers("isl_cv"),
            osl_cv=np.array([case.isl_cv if case.osl_cv is None else case.osl_cv for case in self.cases]),
            disaggregated=np.array([case.prefill is not None for case in self.cases], dtype=np.float64),
            decode_instances=self._numbers_of_parts(False, "replicas"),
            decode_ranks=ranks,
            prefill_ranks=self._numbers_of_parts(True, "ranks"),
            prefill_members=ranks_in_step(self.costs.arch, self.prefill_shards.dp),
            prefill_stages=self.prefill_shards.pp,
            most_decoding=most,
            full_batch=np.maximum(each, 1.0),
            chunks=np.ceil(isl / PRICED_TOKENS),
            prompts=np.maximum(np.floor(PRICED_TOKENS / isl), 1.0),
            moved_s=self._moved_s(),
            chunk_tokens=self._numbers_of_parts(True, "chunk_tokens"),
            poll_steps=self._numbers("poll_steps"),
            hold_steps=self._numbers("hold_steps"),
            staggered=self._numbers("staggered"),
            in_process=self._numbers("in_process"),
            mixed_steps=self._numbers("mixed_steps"),
            launches=sizes.kernels,
            latent_layers=sizes.latent_layers,
            triton_layers=self.costs.pricer.triton_layers(self.costs.arch) * self.prefill_shards.micro_batches,
            prefix_hits=self._numbers("prefix_hits"),
            captured_tokens=self._captured_tokens(),
            most_sequences=np.where(preempts, self._most_batch(), most),
            cache_tokens=np.where(preempts, memory.cache_tokens(self.admitted_tokens), np.inf),
            graph_batch=self._numbers("graph_batch"),
            whole_prompts=self._numbers("whole_prompts"),
            jitter=self._numbers("jitter"),
            yielded=self.costs.tokens_per_step(self._numbers("draft_tokens")),
        )

    def steps(self, frame: Frame) -> list[tuple[Shards, Work]]:
        """What is priced: a full batch and half of it, one prompt (with the batch where both share steps), and many."""
        decode, prefill = self.decode_shards, self.prefill_shards
        context, tokens = frame.isl + frame.osl / 2.0, frame.isl / frame.chunks
        before = (frame.isl - tokens) / 2.0
        beside = frame.full_batch / decode.pp * (1.0 - frame.disaggregated)
        priced = [
            *(
                (decode, Work.decode(batch / decode.pp, context))
                for batch in (frame.full_batch, half_of(frame.full_batch))
            ),
            (prefill, Work.of(tokens, 1.0, before, beside, context)),
            (prefill, Work.of(frame.prompts * tokens, frame.prompts, before, 0.0, 0.0)),
        ]
        if self.costs.drafter is None:
            return priced
        return [(shards, work.with_drafts(self._numbers("draft_tokens"))) for shards, work in priced]

    def _captured_tokens(self) -> Floats:
        """Of the largest step that graphs hold; none of steps with prompts in two batches."""
        default = self.costs.engine.captured_tokens
        stated = self._numbers("captured_tokens")  # NaN where a case says nothing
        captured = np.where(np.isnan(stated), default, stated)
        return np.where(self.prefill_shards.micro_batches > 1.0, 0.0, captured)

    def _numbers(self, name: str) -> Floats:
        return np.array([getattr(case, name) for case in self.cases], dtype=np.float64)

    def _numbers_of_parts(self, prefill: bool, name: str) -> Floats:
        return np.array([getattr(part, name) for part in self._parts(prefill)], dtype=np.float64)

    def _parts(self, prefill: bool) -> list[Part]:
        return [case.prefill if prefill and case.prefill is not None else case.decode for case in self.cases]

    def _shards(self, prefill: bool) -> Shards:
        names = ("tp", "pp", "dp", "moe_tp", "ep", "micro_batches", "redundant")
        return Shards.of(**{name: self._numbers_of_parts(prefill, name) for name in names})

    def _most_batch(self) -> Floats:
        given = self._numbers_of_parts(False, "max_batch")
        return np.where(given > 0, given, float(DEFAULT_MAX_BATCH))

    def memory(self, sizes: Sizes | None = None) -> "Memory":
        """Of a decoding device, that of a drafter too.

        What an engine takes for larger steps than a small one shrinks the cache, and with it the sequences admitted,
        but never keeps a deployment from starting.
        """
        sizes, drafter = sizes or sizes_of([self])[0], self.costs.drafter
        fixed, sequence = sizes.fixed_bytes + self.costs.engine.workspace_bytes, sizes.sequence_bytes
        if drafter is not None:
            shards, drafts = self.decode_shards, self._numbers("draft_tokens")
            fixed = fixed + drafter.weight_bytes(shards, drafts)
            sequence = sequence + drafter.kv_bytes(shards, self.admitted_tokens, drafts)
        memory = self.cases[0].pool.node.accelerator.memory_bytes
        room = memory * self._numbers("memory_utilisation") - fixed
        room = np.where(room < 0, np.maximum(room, memory * self._numbers("most_memory_utilisation") - fixed), room)
        room = np.where(room > 0, room * self._numbers("free_memory_share"), room)
        return Memory(fixed, room, sequence)

    def _moved_s(self) -> Floats:
        """Moving a request's cache from one pool to the other; 0 where one pool does both."""
        isl, shards = self._numbers("isl"), self.prefill_shards
        if self.cases[0].prefill is None:
            return np.zeros_like(isl)
        moved = kv_bytes(self.costs.arch, isl) + state_bytes_per_sequence(self.costs.arch, np.ones(len(isl)))
        if self.costs.drafter is not None:
            moved = moved + self.costs.drafter.kv_bytes(
                Shards.of(np.ones(len(isl))), isl, self._numbers("draft_tokens")
            )
        links = np.array([link_bytes_per_s(case.pool) for case in self.cases])
        return np.asarray(moved / (shards.tp * links) + self.cases[0].pool.node.nic_latency_s)
