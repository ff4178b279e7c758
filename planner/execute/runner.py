"""One rank of a role at work: builds its stages, runs the steps of its role, and writes down what it measures.

`run_rank` is the entry of the job that `planner.execute.execution` starts; this module runs in the ranks alone.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from planner.execute.cases import DECODE, KV_TRANSFER, TRAIN, TRAINING, Cut, StepCase, role_steps
from planner.execute.faults import BUILD, Progress
from planner.execute.groups import Groups, make_groups
from planner.execute.launch import result_path
from planner.execute.predict import request_kv_bytes
from planner.execute.recorder import Names, Recorder, operator_seconds
from planner.execute.spec import RankSpec, RoleSpec, role_spec
from planner.execute.stage import Stage, build_stage
from planner.execute.step import KvCache, Segment, Step
from planner.execute.timing import Clock, Timing, make_clock
from planner.execute.verdict import Measured
from planner.files import write_text_atomic
from planner.plan.reader import read_plan

OPTIMIZER = "optimizer"
_LEARNING_RATE = 1e-4


@dataclass(slots=True)
class _Rank:
    """What the steps of one rank share."""

    role: RoleSpec
    spec: RankSpec
    groups: Groups
    stages: list[Stage]
    device: torch.device
    dtype: torch.dtype
    alone: bool
    budget_s: float
    progress: Progress
    path: Path
    found: list[Measured] = field(default_factory=list)

    def record(self, recorder: Recorder | None) -> None:
        """Hands `recorder` to every stage."""
        for stage in self.stages:
            stage.shard.operators.recorder = recorder

    def save(self, measured: Measured) -> None:
        """Keeps a step; the file always holds all steps so far."""
        self.found.append(measured)
        document = {"device": device_facts(self.device), "steps": [asdict(one) for one in self.found]}
        write_text_atomic(self.path, json.dumps(document))


def run_rank(job: Mapping[str, Any], progress: Progress) -> None:
    """Runs every step of the job's role on this rank; what is found is in the result file after each."""
    plan = read_plan(job["plan"])
    role, cut = role_spec(plan, job["role"]), Cut(**job["cut"])
    rank = _make_rank(job, role, cut, progress)
    for case in role_steps(plan, plan.role(role.name), cut):
        progress.mark(case.kind)
        if case.kind == TRAIN:
            _train(rank, case)
        elif case.kind == KV_TRANSFER:
            _transfer(rank, case)
        else:
            _serve(rank, case)
    if distributed.is_initialized():
        distributed.destroy_process_group()


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


def _make_rank(job: Mapping[str, Any], role: RoleSpec, cut: Cut, progress: Progress) -> _Rank:
    """Device, groups and stages of this process."""
    alone, process = bool(job["alone"]), int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if job["device"] == "cuda":
        device = torch.device("cuda", 0 if alone else int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if not alone:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    progress.mark(BUILD)
    torch.manual_seed(process)
    number = int(job["rank"]) if alone else process
    groups = make_groups(role, number, alone=alone)
    spec = cut.of_rank(role.rank(number))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fp8 = device.type == "cuda" and role.function not in TRAINING
    stages = [
        build_stage(one, role.arch, groups, device=device, dtype=dtype, fp8=fp8, layouts=role.layouts)
        for one in spec.stages
    ]
    path = result_path(Path(job["folder"]), process)
    budget_s = float(job["step_budget_s"])
    return _Rank(role, spec, groups, stages, device, dtype, alone, budget_s, progress, path)


def _segments(case: StepCase) -> list[Segment]:
    prefilling = Segment(case.prefill_sequences, case.prefill_tokens, case.prefill_context)
    decoding = Segment(case.decode_sequences, 1, case.decode_context, case.prefill_sequences)
    return [segment for segment in (prefilling, decoding) if segment.num_sequences]


def _inputs(rank: _Rank, stage: Stage, tokens: int) -> Tensor:
    """Random tokens, or random activations for a stage without the embedding."""
    if stage.spec.embeds:
        return torch.randint(0, rank.role.arch.vocab_size, (tokens,), device=rank.device)
    return torch.randn(tokens, rank.role.arch.hidden_size, device=rank.device, dtype=rank.dtype)


def _serve(rank: _Rank, case: StepCase) -> None:
    """One prefill, decode or mixed step with a KV cache; steps that only decode are replayed as a graph."""
    step = Step.of(_segments(case), rank.device, last_only=True)
    longest = max(case.prefill_context + case.prefill_tokens, case.decode_context + 1)
    cache = KvCache(case.batch, longest, rank.device, rank.dtype)
    inputs = [_inputs(rank, stage, step.tokens) for stage in rank.stages]

    def run() -> None:
        for stage, x in zip(rank.stages, inputs, strict=True):
            out = stage(x, step, cache)
            if stage.logits is not None:
                with stage.shard.operators("sampling"):
                    sample(out)

    with torch.inference_mode():
        _measure(rank, case.kind, run, graph=case.kind == DECODE)


def sample(logits: Tensor) -> Tensor:
    """One token a row [rows] by its probability: the largest of probability over exponential noise."""
    probabilities = logits.float().softmax(dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)


def _train(rank: _Rank, case: StepCase) -> None:
    """Forward and backward pass of one micro-batch, then an optimizer step."""
    step = Step.of(_segments(case), rank.device)
    inputs = [_inputs(rank, stage, step.tokens) for stage in rank.stages]
    targets = torch.randint(0, rank.role.arch.vocab_size, (step.tokens,), device=rank.device)

    def run() -> None:
        for stage, x in zip(rank.stages, inputs, strict=True):
            entered = x if stage.spec.embeds else x.detach().requires_grad_()
            out = stage(entered, step, None)
            if stage.logits is None:
                out.backward(torch.ones_like(out))
                continue
            with stage.shard.operators("cross_entropy"):
                loss = nn.functional.cross_entropy(out.float(), targets)
            loss.backward()  # type: ignore[no-untyped-call]  # of torch itself

    _measure(rank, TRAIN, run, graph=False)
    rank.progress.mark(OPTIMIZER)
    parameters = [parameter for stage in rank.stages for parameter in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=rank.device.type == "cuda")
    _measure(rank, OPTIMIZER, optimizer.step, graph=False, note="no prediction of the optimizer")


def _transfer(rank: _Rank, case: StepCase) -> None:
    """The KV cache of one sequence from device to device, or alone from one buffer to another."""
    size = max(int(request_kv_bytes(rank.role.arch, rank.spec, case.prefill_tokens)), 1)
    source = torch.zeros(size, dtype=torch.uint8, device=rank.device)
    target = torch.empty_like(source)
    paired = not rank.alone and distributed.get_world_size() > 1

    def run() -> None:
        if not paired:
            target.copy_(source)
            return
        own = distributed.get_rank()
        other = own ^ 1
        if other >= distributed.get_world_size():
            return
        if own % 2 == 0:
            distributed.send(source, other)
        else:
            distributed.recv(target, other)

    how = "sent between two ranks of the role" if paired else "copied on one device"
    note = f"{size} bytes {how}: says nothing of the link between the roles"
    _measure(rank, KV_TRANSFER, run, graph=False, note=note)


def _measure(rank: _Rank, kind: str, run: Callable[[], object], *, graph: bool, note: str = "") -> None:
    """One pass that names its operators and sees its memory, the time of the step, and the times of its operators."""
    names = Names(rank.progress)
    rank.groups.skipped.clear()
    rank.record(names)
    memory_bytes = _peak_memory(rank.device, run)
    skipped = set(rank.groups.skipped)
    rank.record(None)

    def marked() -> None:
        rank.progress.enter("")
        run()

    timing = _clock(rank).time(marked, graph=graph and rank.alone)
    rank.progress.enter("")
    seconds = operator_seconds(marked, rank.record, rank.device.type) if names.entered else {}
    rank.record(None)
    rank.save(_measured(rank, kind, timing, seconds, names.entered, skipped, memory_bytes, note))


def _clock(rank: _Rank) -> Clock:
    return make_clock(rank.device.type, budget_s=rank.budget_s, together=not rank.alone)


def _peak_memory(device: torch.device, run: Callable[[], object]) -> float | None:
    """Runs once; the most bytes that tensors held meanwhile, where the device says."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def _measured(
    rank: _Rank,
    kind: str,
    timing: Timing,
    seconds: Mapping[str, float],
    entered: Mapping[str, int],
    skipped: set[str],
    memory_bytes: float | None,
    note: str,
) -> Measured:
    executed = tuple(name for name in entered if name not in skipped or not _is_collective(name))
    return Measured(
        role=rank.role.name,
        rank=rank.spec.rank,
        step=kind,
        median_s=timing.median_s,
        p10_s=timing.p10_s,
        p90_s=timing.p90_s,
        operators_s={name: (seconds.get(name, 0.0), entered[name]) for name in executed},
        executed=executed,
        memory_bytes=memory_bytes,
        graph=timing.graph,
        note=note,
        plain=_plain_formats(rank.stages),
    )


_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_tokens", "reduce_scatter", "all_to_all", "dispatch", "combine")


def _is_collective(name: str) -> bool:
    """By its name; the gradient of a product may skip a collective under the name of the product."""
    return name.endswith(_COLLECTIVES) and name != "expert_combine"


def _plain_formats(stages: Sequence[Stage]) -> tuple[str, ...]:
    """Formats of matrices that ran in the working one."""
    notes = {note for stage in stages for note in stage.shard.notes}
    marker = " matrices run in "
    return tuple(sorted(note.partition(marker)[0] for note in notes if marker in note))
