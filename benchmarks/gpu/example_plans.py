"""The plans whose shards `make gpu` executes: sizes that are not among those that the profiler may measure.

Prompts of about 2k and 8k tokens, decoding of 1, 30 and about 250 sequences at about 4k tokens, and a training stage.
Prompt lengths and contexts lie between the sizes of `planner.costs.shape_list`, as do all batches but that of one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner import __version__
from planner.documents.files import digest
from planner.documents.read import given_document
from planner.execute.judge.predict import as_executed, rank_memory_bytes
from planner.execute.shards.cases import DECODE, StepCase
from planner.execute.shards.spec import AXES, RoleSpec, even_stages
from planner.hardware.library import find_accelerator
from planner.load.problems import resolve_document
from planner.models.library import find_model
from planner.plan.records import Parallelism
from planner.plan.schema import SCHEMA, Axis, Block, Certificate, Digests, Envelope, Objective, Role, Route, Software
from planner.plan.store import plan_json
from planner.problem.resolve import normalised

GPU, PER_NODE = "h200_sxm", 8
SHORT, LONG, CONTEXT, SEQUENCE = 1984, 8064, 4032, 3968  # tokens
FEW = 30
MANY = (250, 230, 210, 190, 170, 150)  # sequences: the most that fit
FILLED = 0.88  # of the memory, by weights, cache and activations; gathers of a layer and graphs take more
TRAINED = "llama-3.1-8b-train"
_EIGHT_BITS = ("fp8", "fp8_block")  # formats of experts that the executor may have to run in bf16


@dataclass(frozen=True, slots=True)
class Example:
    """A model under degrees of parallelism, one rank of which is executed."""

    name: str
    model: str
    degrees: Parallelism


SERVED = (
    Example("llama-3.1-8b-tp1", "llama-3.1-8b", Parallelism()),
    Example("llama-3.1-70b-tp8", "llama-3.1-70b", Parallelism(tp=8)),
    Example("qwen3-30b-a3b-ep8", "qwen3-30b-a3b", Parallelism(dp=8, ep=8)),
    Example("deepseek-v3-ep32", "deepseek-v3", Parallelism(dp=32, ep=32)),
)
EXECUTED = ("chat", "prefill", "decode_one", "decode_many")
"""Roles of a serving plan that are executed; the others only make it whole."""


def example_plans() -> dict[str, str]:
    """The text of every plan by its name."""
    plans = {example.name: plan_json(_serving(example)) for example in SERVED}
    return plans | {TRAINED: plan_json(_training())}


def executed_roles() -> dict[str, tuple[str, ...]]:
    """The roles to execute, by name of the plan."""
    return {example.name: EXECUTED for example in SERVED} | {TRAINED: ("job",)}


def _most_sequences(example: Example) -> int:
    """Of `MANY`, the first whose cache fits beside the weights of the rank, experts in bf16."""
    arch = as_executed(find_model(example.model), _EIGHT_BITS)
    order = tuple((axis, getattr(example.degrees, axis)) for axis in AXES)
    stages = even_stages(arch.num_layers, 1)
    rank = RoleSpec("decode", "decode", arch, example.degrees, order, stages, ((0,),)).rank(0)
    limit = FILLED * find_accelerator(GPU).memory_bytes
    cases = {batch: StepCase(DECODE, decode_sequences=batch, decode_context=CONTEXT) for batch in MANY}
    return next(batch for batch, case in cases.items() if rank_memory_bytes(arch, rank, case) <= limit)


def _serving(example: Example) -> Envelope:
    """Prompts of 2k tokens served by one role, prompts of 8k handed over, and two sizes of decoding batches."""
    roles = [
        _role("chat", "colocated", example, FEW, SHORT),
        _role("prefill", "prefill", example, 1, LONG),
        _role("decode_long", "decode", example, FEW, LONG),
        _role("prefill_short", "prefill", example, 1, CONTEXT),
        _role("decode_one", "decode", example, 1, CONTEXT),
        _role("decode_many", "decode", example, _most_sequences(example), CONTEXT),
    ]
    lengths = {
        "chat": (SHORT, 2 * (CONTEXT - SHORT)),
        "long": (LONG, 128),
        "one": (CONTEXT - 64, 128),
        "many": (CONTEXT - 64, 128),
    }
    handed = (("long", "prefill", "decode_long"), ("one", "prefill_short", "decode_one"))
    routing = [Route(workload="chat", to="chat", share=1.0)]
    for workload, before, after in (*handed, ("many", "prefill_short", "decode_many")):
        routing.append(Route(workload=workload, to=before, share=1.0))
        routing.append(Route(workload=workload, to=after, source=before, share=1.0))
    problem = {
        "schema": "planner.problem/1", "kind": "serve", "name": example.name,
        "models": {"model": {"name": find_model(example.model).name}},
        "cluster": {"pools": [_pool(len(roles) * example.degrees.devices)]},
        "workloads": [
            {"name": name, "input_tokens": tokens, "output_tokens": out, "load": {"rate_per_s": 1.0}}
            for name, (tokens, out) in lengths.items()
        ],
        "objective": {"minimize": "gpus"},
    }  # fmt: skip
    decision = {"mode": "mixed", "routing": [route.model_dump(mode="json", exclude_none=True) for route in routing]}
    return _envelope(problem, roles, decision)


def _training() -> Envelope:
    """Llama-3.1-8B on two stages: the first embeds, the last yields the loss."""
    example = Example(TRAINED, "llama-3.1-8b", Parallelism(pp=2))
    role = _role("job", "train", example, 1, SEQUENCE, engine="megatron-lm")
    each = find_model(example.model).num_layers // 2
    problem = {
        "schema": "planner.problem/1", "kind": "train", "name": TRAINED,
        "models": {"model": {"name": find_model(example.model).name}},
        "cluster": {"pools": [_pool(2)]},
        "options": {"global_batch": 2, "sequence_tokens": SEQUENCE},
        "objective": {"minimize": "gpus"},
    }  # fmt: skip
    decision = {
        "schedule": "1f1b",
        "stage_runs": [{"num_layers": each, "parts": ["embedding"]}, {"num_layers": each, "parts": ["loss"]}],
        "micro_batch": 1,
        "num_micro_batches": 2,
    }
    return _envelope(problem, [role], decision)


def _pool(devices: int) -> dict[str, Any]:
    nodes = -(-devices // PER_NODE)
    return {"name": "gpus", "gpu": GPU, "nodes": nodes}


def _role(name: str, function: str, example: Example, batch: int, chunk: int, engine: str = "vllm") -> Role:
    return Role.model_validate(
        {
            "name": name, "function": function, "model": "model", "engine": {"name": engine}, "pool": "gpus",
            "replicas": 1, "parallelism": {axis: getattr(example.degrees, axis) for axis in (*AXES, "moe_tp", "ep")},
            "limits": {} if function == "train" else {"max_batch": batch, "chunk_tokens": chunk},
        }
    )  # fmt: skip


def _blocks(roles: Sequence[Role]) -> Iterator[Block]:
    """One role behind the other, pp outermost and tp innermost."""
    first = 0
    for role in roles:
        sizes = {axis: getattr(role.parallelism, axis) for axis in AXES}
        axes, stride = [], role.parallelism.devices
        for axis in AXES:
            stride //= sizes[axis]
            if sizes[axis] > 1:
                axes.append(Axis(name=axis, size=sizes[axis], stride=stride))
        yield Block(role=role.name, pool="gpus", first_device=first, axes=tuple(axes))
        first += role.parallelism.devices


def _envelope(problem: dict[str, Any], roles: Sequence[Role], decision: dict[str, Any]) -> Envelope:
    resolved = resolve_document(given_document(problem, str(problem["name"])), Path())
    inputs, known = normalised(resolved), resolved.digests()
    common = {
        "roles": [role.model_dump(mode="json", exclude_none=True) for role in roles],
        "placement": [block.model_dump(mode="json") for block in _blocks(roles)],
    }
    devices = sum(role.parallelism.devices for role in roles)
    objective = Objective(metric="gpus", sense="minimize", value=float(devices))
    return Envelope(
        schema=SCHEMA,
        kind=str(problem["kind"]),
        name=str(problem["name"]),
        software=Software(planner=__version__),
        digests=Digests(problem=digest(inputs), models=known["models"], hardware=known["hardware"]),
        inputs=inputs,
        decision=common | decision,
        certificate=Certificate(
            claim="written by hand; nothing was searched", status="stated", stop_reason="stated", objective=objective
        ),
        assumptions=("sizes for comparing predictions with executed steps, between those that profiles measure",),
    )
