"""Speculative-decoding flags of serving engines: the draft model or heads, and which drafts each engine takes.

vLLM 0.33 (vllm/config/speculative.py): one object with the method, the tokens a step, and for methods with weights of
their own the model, which is split as the target is or not at all; drafts have no pipeline. SGLang 0.5.23
(sglang/srt/arg_groups/speculative_hook.py): a chain of k drafts is `num-steps` k, `topk` 1 and k + 1 tokens to verify;
STANDALONE, a model of its own, takes no data-parallel attention, and a draft model is quantised as the target is unless
told otherwise. With prefill and decode apart both sides load the drafter, whose cache is handed over too.
"""

from dataclasses import dataclass

from planner.emit.serving.checkpoints import load_quantisation
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import Scene, limit
from planner.problem.schema import ModelSpec
from planner.problem.speculation import SpeculationSpec

_FP8 = {"fp8": "fp8"}  # what both engines make of a bf16 checkpoint


@dataclass(frozen=True, slots=True)
class InstanceDrafts:
    """What an instance drafts with, and how many tokens of a sequence in a step."""

    spec: SpeculationSpec
    tokens: int
    model: ModelSpec | None  # of method `model`


def drafts_of(scene: Scene, instance: EngineInstance) -> InstanceDrafts | None:
    """The drafts of an instance; prefill runs with as many as the instances that it hands over to.

    Raises PlannerError where launch scripts cannot name the drafter, and for pipelines.
    """
    tokens = limit(instance, "draft_tokens")
    if tokens is None:
        return None
    spec = SpeculationSpec.of(scene.cluster.problem)
    if spec is None:
        raise instance.refuse(f"{tokens} drafts, and the plan names no drafter", "solve with `options.speculation`")
    if instance.role.parallelism.pp > 1:
        raise instance.refuse("engines draft without pipeline stages", "plan with pp 1")
    if spec.method == "stated" and spec.algorithm is None:
        raise instance.refuse(
            "launch scripts cannot name a drafter of which only the time is stated",
            "name it as `algorithm` (and its `checkpoint`) in `options.speculation`",
        )
    if instance.role.function == "prefill":
        key = scene.model_key(instance)
        decoding = [instance for instance in scene.instances if instance.role.function == "decode"]
        receivers = [instance for instance in decoding if scene.model_key(instance) == key]
        tokens = max([tokens, *(limit(receiver, "draft_tokens") or 0 for receiver in receivers)])
    model = None if spec.model is None else scene.cluster.problem.models.get(spec.model)
    if spec.method == "model" and model is None:
        raise instance.refuse(f"unknown draft model `{spec.model}`", "solve with a draft model of `models`")
    return InstanceDrafts(spec, tokens, model)


def check_handover(scene: Scene, sender: EngineInstance, receiver: EngineInstance) -> None:
    """Raises PlannerError where one side keeps the cache of a drafter and the other does not."""
    of_sides = [drafts_of(scene, instance) for instance in (sender, receiver)]
    keeps = [drafts is not None and drafts.spec.method != "stated" for drafts in of_sides]
    if keeps[0] != keeps[1]:
        raise receiver.refuse(
            f"routers send its requests from role `{sender.role.name}` too, and only one of the two drafts",
            "plan with drafts on both sides or on neither: one entry above 0 in `draft_tokens`",
        )


def verified_tokens(instance: EngineInstance) -> int:
    """Tokens of a sequence that a step which decodes computes."""
    return 1 + (limit(instance, "draft_tokens") or 0) * (instance.role.function != "prefill")


def draft_quantisation(drafts: InstanceDrafts, engine: str) -> str | None:
    """The engine's name for quantising a draft model while loading it."""
    assert drafts.model is not None
    where = f"inputs.models.{drafts.spec.model}.weights"
    return load_quantisation(drafts.model, _FP8, engine, where)
