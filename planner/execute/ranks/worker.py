"""One rank with its shard: how its steps are measured, and where the measurements are stored."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from planner.costs.operators.kernels import Collective, Operator, demand
from planner.costs.operators.recompute import SUFFIX
from planner.documents.files import write_text_atomic
from planner.execute.judge.predict import BACKWARD, context_tokens
from planner.execute.judge.verdict import Measured, base_name
from planner.execute.model.groups import Communicators
from planner.execute.model.stage import Stage
from planner.execute.model.step import Segment, Step, context_part
from planner.execute.ranks.recorder import EnteredOperators, Recorder, operator_seconds
from planner.execute.ranks.timing import Clock, CudaClock
from planner.execute.shards.cases import StepCase
from planner.execute.shards.faults import RankProgress
from planner.execute.shards.spec import RankSpec, RoleSpec

_PROBE_SIZE = 768  # of the matrices whose product says how fast a processor is


@dataclass(slots=True)
class RankWorker:
    """What the steps of one rank share."""

    role: RoleSpec
    spec: RankSpec
    groups: Communicators
    stages: list[Stage]
    device: torch.device
    dtype: torch.dtype
    alone: bool
    budget_s: float
    progress: RankProgress
    path: Path
    measured: list[Measured] = field(default_factory=list)

    @property
    def working(self) -> str:
        """The format of activations, as `planner.costs` calls it."""
        return "fp32" if self.dtype == torch.float32 else "bf16"

    @property
    def in_pipeline(self) -> bool:
        """Whether ranks of other stages are there to work with."""
        return not self.alone and self.role.parallelism.pp > 1

    def record(self, recorder: Recorder | None) -> None:
        """Hands `recorder` to every stage."""
        for stage in self.stages:
            stage.shard.operators.recorder = recorder

    def step_of(self, case: StepCase, *, last_only: bool) -> Step:
        """The tokens of a step on this rank, of which context parallelism leaves it a part."""
        cp = self.groups.cp
        if cp.size > 1:
            part = context_part(context_tokens(case, self.spec), cp.index, cp.size).to(self.device)
            return Step.of_context_part(case.prefill_sequences, part, last_only=last_only)
        prefilling = Segment(case.prefill_sequences, case.prefill_tokens, case.prefill_context)
        decoding = Segment(case.decode_sequences, 1, case.decode_context, case.prefill_sequences)
        segments = [segment for segment in (prefilling, decoding) if segment.num_sequences]
        return Step.of(segments, self.device, last_only=last_only)

    def inputs(self, stage: Stage, tokens: int) -> Tensor:
        """Random tokens, or random activations for a stage without the embedding."""
        if stage.spec.embeds:
            return torch.randint(0, self.role.arch.vocab_size, (tokens,), device=self.device)
        return torch.randn(tokens, self.role.arch.hidden_size, device=self.device, dtype=self.dtype)

    def expect(self, operators: Iterable[Operator], runs: int = 1) -> None:
        """Says how long a step may take here, so that a long one is not taken for one that hangs."""
        if self.device.type != "cpu":
            return
        demands = [(demand(op), op.count) for op in operators if not isinstance(op, Collective)]
        flop_per_s, bytes_per_s = _processor_rates()
        seconds = [
            (float(work.flop[0]) / flop_per_s + float(work.size_bytes[0]) / bytes_per_s) * count
            for work, count in demands
        ]
        self.progress.expect(sum(seconds) * runs)

    def measure(
        self,
        kind: str,
        run: Callable[[], object],
        *,
        graph: bool = False,
        note: str = "",
        beside: Sequence[str] = (),
        micro_batches: int = 0,
    ) -> None:
        """One pass that names operators and sees memory, the time of the step, and the times of its operators.

        beside: what the step does outside the operators of the shard.
        """
        operators = EnteredOperators(self.progress)
        self.groups.skipped.clear()
        self.record(operators)
        began = time.perf_counter()
        memory_bytes = _peak_memory(self.device, run)
        self.progress.expect(max(self.progress.expected_s, time.perf_counter() - began))
        skipped = set(self.groups.skipped)
        self.record(None)

        def marked() -> None:
            self.progress.enter("")
            run()

        together = not self.alone and distributed.get_world_size() > 1
        clock = (CudaClock if self.device.type == "cuda" else Clock)(self.budget_s, together=together)
        timing = clock.time(marked, graph=graph and not together)
        self.progress.enter("")
        seconds: dict[str, float] = {}
        if operators.entered:
            seconds = operator_seconds(marked, self.record, self.device.type, graph=timing.graph)
        self.record(None)
        executed = [name for name in operators.entered if not _is_collective(name) or base_name(name) not in skipped]
        counts = _counts(seconds, operators.entered, executed)
        self._save(
            Measured(
                role=self.role.name,
                rank=self.spec.rank,
                step=kind,
                median_s=timing.median_s,
                p10_s=timing.p10_s,
                p90_s=timing.p90_s,
                operators_s={name: (seconds.get(name, 0.0), count) for name, count in counts.items()},
                executed=(*executed, *beside),
                memory_bytes=memory_bytes,
                graph=timing.graph,
                note=note,
                plain=tuple(sorted({name for stage in self.stages for name in stage.shard.plain})),
                working=self.working,
                micro_batches=micro_batches,
            )
        )

    def _save(self, measured: Measured) -> None:
        """Keeps a step; the file always holds all steps so far."""
        self.measured.append(measured)
        document = {"device": device_facts(self.device), "steps": [asdict(step) for step in self.measured]}
        write_text_atomic(self.path, json.dumps(document))


def meet(device: torch.device) -> None:
    """Waits for all ranks, so that each measures the same stretch of time."""
    distributed.barrier(device_ids=[device.index or 0] if device.type == "cuda" else None)


def device_facts(device: torch.device) -> dict[str, Any]:
    """The device and the software that ran on it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {"kind": device.type, "name": name, "torch": torch.__version__, "cuda": torch.version.cuda}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "cpu"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def _processor_rates() -> tuple[float, float]:
    """Operations and bytes per second of one thread: a product of matrices, and a copy of one of them."""
    matrix = torch.ones(_PROBE_SIZE, _PROBE_SIZE)
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    multiplied = time.perf_counter()
    matrix.clone()
    copied = time.perf_counter()
    return 2.0 * _PROBE_SIZE**3 / (multiplied - began), 2.0 * matrix.nbytes / (copied - multiplied)


def _peak_memory(device: torch.device, run: Callable[[], object]) -> float | None:
    """Runs once; the most bytes that tensors took meanwhile, where the device says."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def _counts(seconds: dict[str, float], entered: dict[str, int], executed: Sequence[str]) -> dict[str, int]:
    """How often each operator ran; gradients are as many as what they are gradients of."""
    back = [name for name in seconds if name.endswith(BACKWARD) and base_name(name) in executed]
    return {name: entered[name] for name in executed} | {name: entered[base_name(name)] for name in back}


_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_tokens", "reduce_scatter", "all_to_all", "dispatch", "combine")


def _is_collective(name: str) -> bool:
    """By its name; the gradient of a product may skip a collective under the name of the product."""
    plain = name.removesuffix(SUFFIX)
    return plain.endswith(_COLLECTIVES) and plain != "expert_combine"
