"""Random plans emitted for every target and read again: the reading beside what the plan says.

What a format cannot say is left out of the comparison, target by target, in `UNSAID`.
"""

import dataclasses
import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cluster_jobs import random_training
from emit_plans import DEEPSEEK, LLAMA, QWEN, QWEN_MOE, Case, RolePlan
from training_plans import LLAMA_8B, WHOLE, TrainCase
from training_plans import QWEN_MOE as SMALL_MOE

from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.hardware.library import find_accelerator
from planner.importing.files import read_files
from planner.importing.plans.shapes import EngineRole
from planner.importing.records import Reading
from planner.kinds.rl.decision import RlDecision
from planner.models.library import find_model
from planner.plan.schema import Engine, Envelope

LAST: dict[str, Any] = {"text": "", "degrees": []}
"""The text that was read last, and the degrees of its roles, for whoever compares other readings with ours."""
RL_PLAN = Path(__file__).parents[1] / "plans" / "rl.json"
IMAGES = ClusterOptions(image="vllm/vllm-openai:v1", router_image="example/router:1")
ALONE = ClusterOptions(image="vllm/vllm-openai:v1")
JOB = ClusterOptions(image="example/train:1", settings=(("MEGATRON_LM", "/opt/Megatron-LM"),))
OPTIONS = {
    **dict.fromkeys(("kubernetes", "lws", "docker-compose", "llm-d"), IMAGES),
    **dict.fromkeys(("dynamo", "kserve", "ray-serve"), ALONE),
    "disaggregatedset": dataclasses.replace(IMAGES, namespace="serving"),
    **dict.fromkeys(("jobset", "kubeflow-trainer"), JOB),
}
BOTH = ("vllm", "sglang")
SERVING = {
    **{name: (name,) for name in BOTH},
    "tensorrt-llm": ("trtllm",),
    **dict.fromkeys(("kubernetes", "lws", "docker-compose", "dynamo", "disaggregatedset"), (*BOTH, "trtllm")),
    **dict.fromkeys(("kserve", "ray-serve", "llm-d"), ("vllm",)),
}
TRAINING = (
    "megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "torchrun", "nemo-automodel", "slurm", "jobset",
    "kubeflow-trainer",
)  # fmt: skip
RL = ("verl", "slime", "openrlhf", "areal", "nemo-rl")


@dataclass(frozen=True)
class Difference:
    """A field of a role (or of the whole) as it was planned and as it was read."""

    place: str
    planned: Any
    read: Any

    def __str__(self) -> str:
        return f"{self.place}: planned {self.planned}, read {self.read}"


def differences(target: str, engine: str, draw: random.Random) -> list[Difference] | None:
    """What differs between a random plan and its reading; None where the target refuses the plan."""
    try:
        if target in SERVING:
            return _serving(target, engine, draw)
        return _training(target, draw) if target in TRAINING else _post_training(target, draw)
    except PlannerError as refused:
        return [Difference("refused", target, refused.what)] if "importing" in _where(refused) else None


def _where(refused: PlannerError) -> str:
    """The files through which an error came."""
    trace, names = refused.__traceback__, []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return " ".join(names)


def read(files: Mapping[str, str]) -> Reading:
    """What the files say, from a folder of their own."""
    LAST["text"] = "\n".join(files.values())
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return read_files([folder], {})


def random_case(target: str, draw: random.Random) -> Case:
    """One model in one mode on nodes of 8 GPUs, of a size that the target has a place for."""
    small = target in ("docker-compose", "llm-d") or draw.random() < 0.3
    model = draw.choice((QWEN, LLAMA, QWEN_MOE, DEEPSEEK))

    def role(function: str, first: int) -> RolePlan:
        degrees = {"tp": draw.choice((1, 2, 4, 8) if small else (1, 2, 4, 8, 16))}
        if model in (QWEN_MOE, DEEPSEEK) and target != "ray-serve":
            dp = draw.choice((1, 2, 4) if small else (1, 2, 4, 8, 16))
            tp = draw.choice((1, 2, 4)) if dp > 1 else degrees["tp"]
            tp = min(tp, 8 // dp) if small else tp
            degrees = {"tp": tp, "dp": dp, "ep": tp * dp} if tp * dp > 1 else {"tp": 1}
        elif draw.random() < 0.3 and not small:
            degrees["pp"] = 2
        limits = {"max_batch": draw.randint(1, 128), "max_context_tokens": 8192}
        limits |= {"chunk_tokens": draw.choice((512, 2048, 8192))} if function != "decode" else {}
        return RolePlan(function, draw.randint(1, 3), degrees, limits, first=first)

    split = target == "disaggregatedset" or draw.random() < 0.4
    roles = (role("prefill", 0), role("decode", 160)) if split else (role("colocated", 0),)
    nodes = tuple(f"node-{index}.example" for index in range(64)) if target == "docker-compose" else None
    return Case(roles, {"default": {"name": model, "kv_cache": draw.choice(("bf16", "fp8"))}}, 64, nodes)


def _serving(target: str, engine: str, draw: random.Random) -> list[Difference]:
    case = random_case(target, draw)
    envelope, decision = case.build()
    roles = tuple(role.model_copy(update={"engine": Engine(name=engine)}) for role in decision.roles)
    files = emit(envelope, decision.model_copy(update={"roles": roles}), target, (), OPTIONS.get(target))
    reading = read(files)
    LAST["degrees"] = [{name: role.degrees.get(name, 1) for name in ("tp", "pp", "dp")} for role in case.roles]
    model = case.models["default"]["name"]
    wanted = {"engine": engine, "model": model}
    rows = [Difference(name, value, reading.fields[name]) for name, value in wanted.items()]
    rows += [Difference("finding", None, text) for text in reading.findings]
    rows += [Difference("unresolved", None, name) for name in reading.unresolved]
    by_role = {role["role"]: role for role in reading.fields["roles"]}
    rows.append(Difference("roles", sorted(role.function for role in case.roles), sorted(by_role)))
    for role in case.roles:
        if role.function in by_role:
            rows += _role(case, role, by_role[role.function], engine)
    return [row for row in rows if row.planned != row.read]


@cache
def _model(name: str) -> Any:  # noqa: ANN401
    return find_model(name)


def _role(case: Case, plan: RolePlan, got: dict[str, Any], engine: str) -> Iterator[Difference]:
    gpu = find_accelerator("h200_sxm", where="")
    (part,) = EngineRole(engine, got, _model(case.models["default"]["name"]), gpu).instances()[:1]
    ranks = {name: plan.degrees.get(name, 1) for name in ("tp", "pp", "dp", "ep")}
    read = {name: getattr(part.shape, name) for name in ranks}
    devices = ranks["tp"] * ranks["pp"] * ranks["dp"]
    yield Difference(f"{plan.function}.degrees", ranks, read)
    yield Difference(f"{plan.function}.replicas", plan.replicas, part.replicas)
    yield Difference(f"{plan.function}.gpus", devices, got["gpus_per_replica"])
    if plan.function != "prefill":
        yield Difference(f"{plan.function}.max_batch", plan.limits["max_batch"], part.max_batch)
    if plan.function != "decode":
        yield Difference(f"{plan.function}.chunk_tokens", plan.limits["chunk_tokens"], part.chunk_tokens)
    yield Difference(f"{plan.function}.max_context", plan.limits["max_context_tokens"], got["max_model_len"])
    if case.models["default"]["kv_cache"] == "fp8":
        yield Difference(f"{plan.function}.kv_dtype", True, str(got["kv_dtype"]).startswith("fp8"))


def random_mixture(draw: random.Random) -> TrainCase:
    """A model with experts on whole nodes of 8 GPUs."""
    tp, ep = draw.choice((1, 2)), draw.choice((2, 4, 8))
    dp = 8 // tp * draw.choice((1, 2, 4))
    more = {"zero_stage": draw.choice((0, 1)), "sequence_parallel": tp > 1}
    return TrainCase(SMALL_MOE, tp * dp // 8, {"tp": tp, "dp": dp, "ep": ep}, ((1, 48, WHOLE),),
                     global_batch=dp * draw.choice((2, 4)), more=more)  # fmt: skip


def _train_case(target: str, draw: random.Random) -> TrainCase:
    """A case that the target has words for: DeepSpeed and AutoModel cut no pipelines and lay no experts."""
    case = random_mixture(draw) if draw.random() < 0.25 else random_training(draw)
    if target in ("deepspeed", "nemo-automodel"):
        tp, nodes = draw.choice((1, 2)), draw.choice((1, 2, 4))
        stage = draw.choice((2, 3) if tp == 1 or target == "nemo-automodel" else (1, 2))
        more = {"zero_stage": stage, "sequence_parallel": tp > 1 and target == "nemo-automodel"}
        task = {"task": "sft"} if target == "nemo-automodel" else {}
        return TrainCase(LLAMA_8B, nodes, {"tp": tp, "dp": 8 * nodes // tp}, ((1, 32, WHOLE),),
                         global_batch=8 * nodes * draw.choice((2, 4)), more=more, options=task)  # fmt: skip
    if target == "torchtitan":
        return dataclasses.replace(case, more={**case.more, "zero_stage": draw.choice((0, 2, 3))})
    return case


def _training(target: str, draw: random.Random) -> list[Difference]:
    case = _train_case(target, draw)
    envelope, decision = case.build()
    reading = read(emit(envelope, decision, target, (), OPTIONS.get(target)))
    fields = reading.fields
    degrees = {name: case.degrees.get(name, 1) for name in ("tp", "pp", "dp", "cp", "ep")}
    LAST["degrees"] = [degrees]
    wanted = {
        **degrees, "gpus": degrees["tp"] * degrees["pp"] * degrees["dp"], "micro_batch": case.micro_batch,
        "global_batch": case.global_batch, "sequence": case.sequence_tokens, "precision": "bf16",
    }  # fmt: skip
    unsaid = UNSAID.get(target, ())
    rows = [Difference(name, value, fields[name]) for name, value in wanted.items() if name not in unsaid]
    rows += [Difference("finding", None, text) for text in reading.findings]
    return [row for row in rows if row.planned != row.read]


UNSAID: dict[str, tuple[str, ...]] = {
    "deepspeed": ("sequence",),
    "nemo-automodel": ("precision",),
    "torchtitan": ("precision",),
    "areal": ("algorithm",),
}
"""Fields that a target's files do not have: they stand in the program that is started, or in its defaults."""
MODES: tuple[dict[str, Any], ...] = (
    {},
    {"arrangement": "disaggregated", "synchrony": "asynchronous", "staleness": 1},
    {"arrangement": "disaggregated", "synchrony": "stream"},
)
SHAPES = ({"tp": 4, "dp": 8}, {"tp": 2, "dp": 16}, {"tp": 8, "dp": 4}, {"tp": 2, "pp": 2, "dp": 8})


def random_post_training(draw: random.Random, engine: str) -> tuple[Envelope, RlDecision]:
    """The hand-written plan with other degrees, modes and options."""
    document = json.loads(RL_PLAN.read_text(encoding="utf-8"))
    decision, shape = document["decision"], draw.choice(SHAPES)
    for role in decision["roles"]:
        if role["function"] == "rollout":
            role["engine"]["name"] = engine
        else:
            role["parallelism"] = {"pp": 1, "cp": 1, "ep": 1, "moe_tp": shape["tp"], "vpp": 1} | shape
    document["inputs"]["options"] |= {"samples_per_prompt": draw.choice((4, 8)), "prompts": draw.choice((256, 512))}
    decision |= draw.choice(MODES)
    envelope = Envelope.model_validate(document)
    return envelope, RlDecision.model_validate(envelope.decision)


def _post_training(target: str, draw: random.Random) -> list[Difference]:
    engines = {"verl": BOTH, "slime": ("sglang",), "areal": BOTH}.get(target, ("vllm",))
    engine = draw.choice(engines)
    envelope, decision = random_post_training(draw, engine)
    reading = read(emit(envelope, decision, target))
    roles = {role.function: role for role in decision.roles}
    shape = roles["actor"].parallelism
    options: Any = envelope.inputs["options"]
    LAST["degrees"] = [{"tp": shape.tp, "pp": shape.pp, "dp": 1}]
    wanted: dict[str, Any] = {
        "rollout.engine": engine, "rollout.tp": roles["rollout"].parallelism.tp,
        "rollout.samples": options["samples_per_prompt"], "prompts": options["prompts"],
        "colocated": decision.arrangement == "colocated", "train.tp": shape.tp, "train.pp": shape.pp,
        "algorithm": options["algorithm"],
        "gpus": 32 if decision.arrangement == "colocated" else 64,
    }  # fmt: skip

    def at(path: str) -> Any:  # noqa: ANN401
        head, _, tail = path.partition(".")
        return reading.fields[head].get(tail, 1) if tail else reading.fields[head]

    unsaid = UNSAID.get(target, ())
    rows = [Difference(path, value, at(path)) for path, value in wanted.items() if path not in unsaid]
    rows += [Difference("finding", None, text) for text in reading.findings]
    return [row for row in rows if row.planned != row.read]


PAIRS = [
    *((target, engine) for target, engines in SERVING.items() for engine in engines),
    *((target, "") for target in (*TRAINING, *RL)),
]
