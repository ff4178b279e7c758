"""Training steps of a role: forward and backward of micro-batches, through a pipeline schedule if any; AdamW."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from planner.costs.operators.optimizer import NAME as OPTIMIZER
from planner.execute.judge.predict import executed_operators
from planner.execute.judge.verdict import PIPELINE
from planner.execute.model.stage import Stage
from planner.execute.model.step import Step
from planner.execute.ranks.worker import RankWorker, meet
from planner.execute.shards.cases import TRAIN, StepCase
from planner.execute.shards.schedule import EXECUTED

_LEARNING_RATE = 1e-4

Loss = Callable[[Tensor, Tensor], Tensor]
Schedule: TypeAlias = Schedule1F1B | ScheduleGPipe | ScheduleInterleaved1F1B


def train(worker: RankWorker, case: StepCase) -> None:
    """All micro-batches through the pipeline, or one through the stages of this rank alone."""
    scheduled = worker.in_pipeline and worker.role.schedule in EXECUTED
    batches = case.micro_batches if scheduled else 1
    operators = executed_operators(worker.role, worker.spec, case, working=worker.working)
    worker.expect(operators, batches * (worker.role.parallelism.pp if scheduled else 1))
    step = worker.step_of(case, last_only=False)
    targets = torch.randint(0, worker.role.arch.vocab_size, (step.tokens,), device=worker.device)
    if not scheduled:
        inputs = [worker.inputs(stage, step.tokens) for stage in worker.stages]
        note = f"schedule `{worker.role.schedule}` is not executed: stages alone" if worker.in_pipeline else ""
        worker.measure(TRAIN, lambda: _one_micro_batch(worker, step, targets, inputs), note=note)
        return
    beside = (PIPELINE, *(["gradient_accumulation"] if batches > 1 else []))
    worker.measure(TRAIN, _scheduled(worker, step, targets, batches), beside=beside, micro_batches=batches)


def _one_micro_batch(worker: RankWorker, step: Step, targets: Tensor, inputs: list[Tensor]) -> None:
    _forget_gradients(worker)
    for stage, x in zip(worker.stages, inputs, strict=True):
        entered = x if stage.spec.embeds else x.detach().requires_grad_()
        out = stage(entered, step, None)
        if stage.logits is None:
            stage.shard.operators.watch(out).backward(torch.ones_like(out))  # type: ignore[no-untyped-call]  # of torch
        else:
            _loss(stage)(out, targets).backward()  # type: ignore[no-untyped-call]  # of torch itself


def _loss(stage: Stage) -> Loss:
    """The loss of a micro-batch, ready for its backward pass."""

    def loss_of(out: Tensor, targets: Tensor) -> Tensor:
        with stage.shard.operators("cross_entropy"):
            loss = nn.functional.cross_entropy(out.float(), targets)
        return stage.shard.operators.watch(loss)

    return loss_of


def _forget_gradients(worker: RankWorker) -> None:
    for stage in worker.stages:
        stage.zero_grad(set_to_none=True)


class _Chunk(nn.Module):
    """A stage as `torch.distributed.pipelining` takes it: one tensor in, one out."""

    def __init__(self, stage: Stage, step: Step) -> None:
        super().__init__()
        self.stage, self.step = stage, step

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stage(x, self.step, None)
        return out if self.stage.logits is not None else self.stage.shard.operators.watch(out)


def _scheduled(worker: RankWorker, step: Step, targets: Tensor, batches: int) -> Callable[[], None]:
    """A run of the plan's schedule on the stages of this rank, from when all ranks are there."""
    schedule = _schedule(worker, step, batches)
    tokens = torch.randint(0, worker.role.arch.vocab_size, (step.tokens * batches,), device=worker.device)
    inputs = (tokens,) if worker.spec.embeds else ()
    target = {"target": targets.repeat(batches)} if worker.spec.yields_logits else {}

    def run() -> None:
        _forget_gradients(worker)
        meet(worker.device)
        schedule.step(*inputs, **target, return_outputs=False)

    return run


def _schedule(worker: RankWorker, step: Step, batches: int) -> Schedule:
    role, pipeline = worker.role, worker.groups.pipeline
    chunks = [
        PipelineStage(
            _Chunk(stage, step),
            stage.spec.index,
            len(role.stages),
            worker.device,
            input_args=_input_like(worker, stage, step),
            output_args=_output_like(worker, stage, step),
            group=pipeline.handle,
        )
        for stage in worker.stages
    ]
    loss_of = next((_loss(stage) for stage in worker.stages if stage.spec.yields_logits), _no_loss)
    if role.parallelism.vpp > 1:
        return ScheduleInterleaved1F1B(list(chunks), batches, loss_fn=loss_of, scale_grads=False)
    kind = Schedule1F1B if batches >= role.parallelism.pp else ScheduleGPipe
    return kind(chunks[0], batches, loss_fn=loss_of, scale_grads=False)


def _no_loss(_out: Tensor, _targets: Tensor) -> Tensor:
    raise AssertionError("a rank without logits has no loss")


def _input_like(worker: RankWorker, stage: Stage, step: Step) -> Tensor:
    like = worker.inputs(stage, step.tokens)
    return like if stage.spec.embeds else like.requires_grad_()


def _output_like(worker: RankWorker, stage: Stage, step: Step) -> Tensor:
    """It says by its own gradient that the stage behind sends one."""
    arch = worker.role.arch
    width = arch.vocab_size if stage.spec.yields_logits else arch.hidden_size
    return torch.empty(step.tokens, width, device=worker.device, dtype=worker.dtype, requires_grad=True)


def optimize(worker: RankWorker, case: StepCase) -> None:
    """One update of what the rank's optimizer updates: fp32 weights, and their cast to the working format."""
    worker.expect(executed_operators(worker.role, worker.spec, case, working=worker.working))
    own = [part for stage in worker.stages for part in _updated(worker, stage)]
    masters = [nn.Parameter(part if part.dtype == torch.float32 else part.float()) for part in own]
    for master in masters:
        master.grad = torch.randn_like(master)
    optimizer = torch.optim.AdamW(masters, lr=_LEARNING_RATE, fused=True)
    operators = worker.stages[0].shard.operators

    def run() -> None:
        with operators(OPTIMIZER), torch.no_grad():
            optimizer.step()
            if worker.dtype != torch.float32:
                torch._foreach_copy_(own, masters)

    _forget_gradients(worker)
    worker.measure(OPTIMIZER, run)


def _updated(worker: RankWorker, stage: Stage) -> Iterator[Tensor]:
    """This rank's part of each parameter: all of it, or with ZeRO its share among the ranks that hold the same."""
    for module in stage.modules():
        group = stage.data_group(module)
        size, index = (group.size, group.index) if worker.spec.zero_stage else (1, 0)
        for parameter in module.parameters(recurse=False):
            flat = parameter.detach().view(-1)
            each = -(-flat.numel() // size)
            yield flat[index * each : (index + 1) * each]
