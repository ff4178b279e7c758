"""The entry of a job that runs every case of its world size; each rank leaves a JSON of its errors."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from backward_pipeline import BackwardPipeline
from shard_models import CASES, MODELS, Case
from shared_weights import SharedWeights, cut
from torch import Tensor
from torch import distributed as dist
from whole_model import WholeModel

from planner.execute.model.groups import Communicator, Communicators, make_groups
from planner.execute.model.stage import build_stage
from planner.execute.model.step import KvCache, Segment, Step, context_part
from planner.execute.shards.faults import RankProgress
from planner.execute.shards.spec import RankSpec, RoleSpec, StageSpec, role_spec

CPU = torch.device("cpu")
SEQUENCES, TOKENS, PROMPT, BLOCK = 2, 8, 5, 3


def run(job: Mapping[str, Any], progress: RankProgress) -> None:
    """Every case of this world size on one rank."""
    rank, world, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(job["folder"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    errors = {}
    for case in CASES[world]:
        progress.mark(case.name)
        errors[case.name] = compared(case, rank)
    (folder / f"rank{rank}.errors.json").write_text(json.dumps(errors), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def compared(case: Case, rank: int) -> dict[str, float]:
    """The largest differences between this rank's shard and the whole model: of logits, gradients and decoding."""
    role = role_spec(case.plan(), "job", arch=case.arch)
    spec = role.rank(rank)
    groups = _groups(case, role, rank)
    weights, layouts = SharedWeights(case.arch.name, CPU, torch.float32), case.layouts(rank)
    stages = [
        build_stage(stage, case.arch, groups, device=CPU, dtype=torch.float32, layouts=layouts, weights=weights)
        for stage in _stages(case, role, spec)
    ]
    pipeline = BackwardPipeline(role, groups, stages, torch.float32)
    tokens, pull, logits, tensors = _whole(case.model, spec.parallelism.dp * SEQUENCES * case.micro_batches)
    errors = {"logits": 0.0, "gradients": 0.0, "decoding": 0.0}
    place = _context(case, spec)
    step = Step.of_context_part(SEQUENCES, context_part(TOKENS, spec.coords["cp"], spec.parallelism.cp))

    def rows(index: int) -> slice:
        first = (spec.coords["dp"] * case.micro_batches + index) * SEQUENCES
        return slice(first, first + SEQUENCES)

    def loss_of(index: int, output: Tensor) -> Tensor:
        wanted = logits[rows(index)][:, place].flatten(0, 1)
        errors["logits"] = max(errors["logits"], _largest(output - wanted))
        return (output * pull[rows(index)][:, place].flatten(0, 1)).sum()

    batches = [(tokens[rows(index)][:, place].flatten(), step) for index in range(case.micro_batches)]
    pipeline.forward_backward(batches, loss_of)
    if case.arch.tied_embeddings and groups.pipeline.size > 1 and case.fault != "ends":
        pipeline.sum_tied_gradients()
    for stage in stages:
        for name, parameter in stage.named_parameters():
            pieces = weights.pieces[id(parameter)]
            if case.slots and ".experts." in pieces[0].name:
                continue  # each copy has the gradient of its own tokens
            error = _gradient_error(parameter, pieces, tensors)
            if error > errors["gradients"]:
                errors["gradients"] = error
                errors["worst"] = f"{name} {pieces[0].name}"  # type: ignore[assignment]
    if spec.parallelism.cp == 1 and not case.fault:
        errors["decoding"] = _decoding_error(pipeline, tokens[rows(0)], logits[rows(0)])
    return errors


@cache
def _whole(model: str, batch: int) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Tokens, the gradients of their logits, the logits, and the model's tensors with their gradients."""
    arch, generator = MODELS[model], torch.Generator().manual_seed(7)
    tokens = torch.randint(0, arch.vocab_size, (batch, TOKENS), generator=generator)
    pull = torch.randn(batch, TOKENS, arch.vocab_size, generator=generator)
    whole = WholeModel(arch)
    logits = whole(tokens)
    (logits * pull).sum().backward()  # type: ignore[no-untyped-call]
    return tokens, pull, logits.detach(), whole.tensors


def _decoding_error(pipeline: BackwardPipeline, tokens: Tensor, logits: Tensor) -> float:
    """A prompt in two chunks and then token by token, against the logits of the whole at once."""
    caches = [KvCache(SEQUENCES, TOKENS, CPU, torch.float32, block_tokens=BLOCK) for _ in pipeline.stages]
    worst, cached = 0.0, 0
    for new in (3, PROMPT - 3, 1, 1):  # the second token begins a block
        step = Step.of([Segment(SEQUENCES, new, cached)], CPU, last_only=True)
        output = pipeline.forward(tokens[:, cached : cached + new].flatten(), step, caches)
        cached += new
        if output is not None:
            worst = max(worst, _largest(output - logits[:, cached - 1]))
    return worst


def _gradient_error(parameter: Tensor, pieces: tuple, tensors: dict[str, Tensor]) -> float:  # type: ignore[type-arg]
    """The largest difference, in parts of the largest gradient of the whole tensor (or of one where that is small)."""
    rows = (parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)).flatten(0, -2)
    worst, first = 0.0, 0
    for piece in pieces:
        gradient = rows[first : first + len(piece.outputs)]
        first += len(piece.outputs)
        whole = tensors[piece.name].grad
        wanted = cut(piece, whole if whole is not None else torch.zeros_like(tensors[piece.name]))
        worst = max(worst, _largest(gradient - wanted) / max(_largest(wanted), 1.0))
    return worst if first == len(rows) else float("inf")


def _largest(value: Tensor) -> float:
    return float(value.detach().abs().max()) if value.numel() else 0.0


def _groups(case: Case, role: RoleSpec, rank: int) -> Communicators:
    """The groups of the plan, or wrong ones where the case says so."""
    groups = make_groups(role, rank)
    shape = role.parallelism
    if case.fault in ("groups", "stage_groups", "expert_groups"):
        # Swapped within a stage where there are several: ranks of two stages in one sum would wait for each other.
        first = case.fault == "stage_groups"
        swapped = replace(role, order=role.order[:first] + tuple(reversed(role.order[first:])))
        wrong = make_groups(swapped, rank)
        if case.fault in ("groups", "stage_groups"):
            return replace(wrong, pipeline=groups.pipeline)
        return replace(groups, tp=wrong.tp, expert=wrong.expert, ep=wrong.ep, moe_tp=wrong.moe_tp)
    if case.fault == "experts":
        return replace(groups, ep=replace(groups.ep, index=(groups.ep.index + 1) % shape.ep))
    alone = Communicator((rank,), 0)
    if case.fault == "kv_replicas":
        return replace(groups, kv_replicas=dict.fromkeys(groups.kv_replicas, alone))
    if case.fault == "data":
        return replace(groups, data=alone)
    return replace(groups, expert_data=alone) if case.fault == "expert_data" else groups


def _stages(case: Case, role: RoleSpec, spec: RankSpec) -> tuple[StageSpec, ...]:
    if case.fault == "layer":  # the second stage starts a layer early, and leaves the last one out
        return tuple(replace(stage, first_layer=max(stage.first_layer - 1, 0)) for stage in spec.stages)
    if case.fault == "stages":  # the layers of the two halves change places
        half = role.arch.num_layers // 2
        return tuple(replace(stage, first_layer=half - stage.first_layer) for stage in spec.stages)
    return spec.stages


def _context(case: Case, spec: RankSpec) -> Tensor:
    """Which tokens of each sequence this rank has."""
    parts = spec.parallelism.cp
    part = (spec.coords["cp"] + (case.fault == "context")) % parts
    return context_part(TOKENS, part, parts)
