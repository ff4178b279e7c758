"""Runs one rank of a role: builds its pipeline stages, runs the steps, writes its measurements.

`run_rank` is the entry of the job that `planner.execute.execution` starts; this module runs in the ranks alone.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from planner.execute.judge.predict import context_tokens, executed_operators, request_kv_bytes
from planner.execute.judge.verdict import PIPELINE
from planner.execute.model.groups import leave_world, make_groups
from planner.execute.model.pipeline import StagePipeline
from planner.execute.model.stage import Stage, build_stage
from planner.execute.model.step import BLOCK_TOKENS, KvCache
from planner.execute.ranks.launch import result_path
from planner.execute.ranks.link import link_difference
from planner.execute.ranks.worker import RankWorker, meet
from planner.execute.shards.cases import KV_TRANSFER, OPTIMIZER, TRAIN, TRAINING, Cut, StepCase, role_steps
from planner.execute.shards.faults import BUILD, RankProgress
from planner.execute.shards.spec import RoleSpec, role_spec
from planner.plan.reader import read_plan


def run_rank(job: Mapping[str, Any], progress: RankProgress) -> None:
    """Runs every step of the job's role on this rank; what it measured is in the result file after each."""
    plan = read_plan(job["plan"])
    planned = plan.role(job["role"])
    role, cut = role_spec(plan, planned.name), Cut(**job["cut"])
    worker = _make_worker(job, role, cut, progress)
    for case in role_steps(plan, planned, cut):
        progress.mark(case.kind)
        if case.kind in (TRAIN, OPTIMIZER):
            _train(worker, case)
        elif case.kind == KV_TRANSFER:
            _transfer(worker, case, link_difference(plan, planned))
        else:
            _serve(worker, case, int(planned.limits.get("block_tokens", BLOCK_TOKENS)))
    leave_world()


def _make_worker(job: Mapping[str, Any], role: RoleSpec, cut: Cut, progress: RankProgress) -> RankWorker:
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
        build_stage(stage, role.arch, groups, device=device, dtype=dtype, fp8=fp8, layouts=role.layouts)
        for stage in spec.stages
    ]
    path = result_path(Path(job["folder"]), process)
    return RankWorker(role, spec, groups, stages, device, dtype, alone, float(job["step_budget_s"]), progress, path)


def _train(worker: RankWorker, case: StepCase) -> None:
    from planner.execute.ranks.training import optimize, train  # its schedules take as long to import as the rest

    if case.kind == TRAIN:
        train(worker, case)
    else:
        optimize(worker, case)


def _serve(worker: RankWorker, case: StepCase, block_tokens: int) -> None:
    """One prefill, decode or mixed step with a paged KV cache, replayed as a graph where this rank runs it alone.

    With the ranks of the other stages, micro-batches follow each other through all of them, each with its own cache.
    """
    operators = executed_operators(worker.role, worker.spec, case, working=worker.working)
    batches = case.micro_batches if worker.in_pipeline else 1
    worker.expect(operators, batches + worker.role.parallelism.pp - 1 if worker.in_pipeline else 1)
    longest = max(case.prefill_context + context_tokens(case, worker.spec), case.decode_context + 1)
    caches = [
        KvCache(case.batch, longest, worker.device, worker.dtype, block_tokens=block_tokens) for _ in range(batches)
    ]
    with torch.inference_mode():
        if worker.in_pipeline:
            run = _through_stages(worker, case, caches)
            worker.measure(case.kind, run, beside=(PIPELINE,), micro_batches=batches)
        else:
            worker.measure(case.kind, _through_own(worker, case, caches[0]), graph=True)


def _through_own(worker: RankWorker, case: StepCase, cache: KvCache) -> Callable[[], None]:
    step = worker.step_of(case, last_only=True)
    inputs = [worker.inputs(stage, step.tokens) for stage in worker.stages]

    def run() -> None:
        for stage, x in zip(worker.stages, inputs, strict=True):
            _sampled(stage, stage(x, step, cache))

    return run


def _through_stages(worker: RankWorker, case: StepCase, caches: Sequence[KvCache]) -> Callable[[], None]:
    step = worker.step_of(case, last_only=True)
    pipeline = StagePipeline(worker.role, worker.groups, worker.stages, worker.dtype)
    tokens = torch.randint(0, worker.role.arch.vocab_size, (step.tokens,), device=worker.device)

    def run() -> None:
        meet(worker.device)
        for cache in caches:
            logits = pipeline.forward(tokens, step, [cache] * len(worker.stages))
            if logits is not None:
                _sampled(worker.stages[-1], logits)

    return run


def _sampled(stage: Stage, out: Tensor) -> None:
    if stage.logits is not None:
        with stage.shard.operators("sampling"):
            sample(out)


def sample(logits: Tensor) -> Tensor:
    """One token a row [rows] by its probability: the largest of probability over exponential noise."""
    probabilities = logits.float().softmax(dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)


def _transfer(worker: RankWorker, case: StepCase, difference: str) -> None:
    """The KV cache of one sequence to a neighbouring rank, or alone from one buffer to another.

    It is compared with the link between the two, which must be like the one between the roles.
    """
    size = max(int(request_kv_bytes(worker.role.arch, worker.spec, case.prefill_tokens)), 1)
    source = torch.zeros(size, dtype=torch.uint8, device=worker.device)
    target = torch.empty_like(source)
    world = 1 if worker.alone else distributed.get_world_size()
    own = 0 if worker.alone else distributed.get_rank()
    other = own ^ 1
    worker.expect(())

    def run() -> None:
        if other >= world:
            target.copy_(source)
        elif own % 2 == 0:
            distributed.send(source, other)
        else:
            distributed.recv(target, other)

    beside: tuple[str, ...] = ()
    if other >= world:
        note = f"{size} bytes copied on one device: no claim about the link between the roles"
    elif difference:
        note = f"{size} bytes between neighbours: no claim about the roles, {difference}"
    else:
        note, beside = f"{size} bytes between neighbours, joined like the roles", (KV_TRANSFER,)
    worker.measure(KV_TRANSFER, run, note=note, beside=beside)
