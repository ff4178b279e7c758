"""Speculative decoding as engines are told of it: vLLM's JSON, SGLang's flags.

vLLM 0.33 (vllm/config/speculative.py): one object with the method, the tokens a step, and for methods with weights of
their own the model, which is split as the target is or not at all; drafts have no pipeline. SGLang 0.5.23
(sglang/srt/arg_groups/speculative_hook.py): a chain of k drafts is `num-steps` k, `topk` 1 and k + 1 tokens to verify;
STANDALONE, a model of its own, takes no data-parallel attention, and a draft model is quantised as the target is unless
told otherwise. With prefill and decode apart both sides load the drafter, whose cache is handed over too.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from planner.emit.serving.checkpoints import load_quantisation, published_name
from planner.emit.serving.instances import Instance
from planner.emit.serving.scripts import Scene, limit
from planner.emit.shell import Word, argument, word
from planner.problem.schema import ModelSpec
from planner.problem.speculation import SpeculationSpec

_FP8 = {"fp8": "fp8"}  # what both engines make of a bf16 checkpoint

Flags = Iterator[tuple[str, Word | None]]


@dataclass(frozen=True, slots=True)
class Drafting:
    """What an instance drafts with, and how many tokens of a sequence in a step."""

    spec: SpeculationSpec
    tokens: int
    model: ModelSpec | None  # of method `model`


def drafting_of(scene: Scene, instance: Instance) -> Drafting | None:
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
        hint = "name it as `algorithm` (and its `checkpoint`) in `options.speculation`"
        raise instance.refuse("launch scripts cannot name a drafter of which only the time is stated", hint)
    if instance.role.function == "prefill":
        key = scene.model_key(instance)
        receivers = [one for one in scene.instances if one.role.function == "decode" and scene.model_key(one) == key]
        tokens = max([tokens, *(limit(one, "draft_tokens") or 0 for one in receivers)])
    model = None if spec.model is None else scene.cluster.problem.models.get(spec.model)
    if spec.method == "model" and model is None:
        raise instance.refuse(f"unknown draft model `{spec.model}`", "solve with a draft model of `models`")
    return Drafting(spec, tokens, model)


def check_handover(scene: Scene, sender: Instance, receiver: Instance) -> None:
    """Raises PlannerError where one side keeps the cache of a drafter and the other does not."""
    one, other = drafting_of(scene, sender), drafting_of(scene, receiver)
    keeps = [found is not None and found.spec.method != "stated" for found in (one, other)]
    if keeps[0] != keeps[1]:
        raise receiver.refuse(
            f"routers send its requests from role `{sender.role.name}` too, and only one of the two drafts",
            "plan with drafts on both sides or on neither: one entry above 0 in `draft_tokens`",
        )


def verified_tokens(instance: Instance) -> int:
    """Tokens of a sequence that a step which decodes computes."""
    return 1 + (limit(instance, "draft_tokens") or 0) * (instance.role.function != "prefill")


def vllm_flags(scene: Scene, instance: Instance) -> Flags:
    """`--speculative-config`."""
    found = drafting_of(scene, instance)
    if found is None:
        return
    data: dict[str, str | int] = {"num_speculative_tokens": found.tokens}
    if found.spec.method == "mtp":
        data["method"] = "mtp"
    elif found.model is not None:
        data |= {"method": "draft_model", "model": published_name(found.model)}
        data["draft_tensor_parallel_size"] = instance.role.parallelism.tp
        quantisation = _quantisation(found, "vLLM")
        data |= {"quantization": quantisation} if quantisation is not None else {}
    else:
        data["method"] = str(found.spec.algorithm)
        data |= {"model": found.spec.checkpoint} if found.spec.checkpoint is not None else {}
    yield "--speculative-config", argument(json.dumps(data, sort_keys=True), what="drafter")


def sglang_flags(scene: Scene, instance: Instance) -> Flags:
    """`--speculative-algorithm` and what belongs to it."""
    found = drafting_of(scene, instance)
    if found is None:
        return
    algorithm = {"mtp": "NEXTN", "model": "STANDALONE"}.get(found.spec.method, str(found.spec.algorithm).upper())
    yield "--speculative-algorithm", word(algorithm)
    if algorithm == "NGRAM":
        yield "--speculative-num-draft-tokens", word(found.tokens + 1)
        yield "--speculative-ngram-max-bfs-breadth", word(1)
        return
    if algorithm == "STANDALONE" and instance.role.parallelism.dp > 1:
        raise instance.refuse(
            "SGLang drafts with a model of its own only without data-parallel ranks", "plan with dp 1"
        )
    if found.model is not None:
        path = published_name(found.model)
        quantised = _quantisation(found, "SGLang") or "unquant"
        yield "--speculative-draft-model-path", argument(path, what="draft model name")
        yield "--speculative-draft-model-quantization", word(quantised)
    else:
        path = found.spec.checkpoint or scene.model_name(instance)
        yield "--speculative-draft-model-path", argument(path, what="drafter")
    yield "--speculative-num-steps", word(found.tokens)
    yield "--speculative-eagle-topk", word(1)
    yield "--speculative-num-draft-tokens", word(found.tokens + 1)


def _quantisation(found: Drafting, engine: str) -> str | None:
    assert found.model is not None
    return load_quantisation(found.model, _FP8, engine, f"inputs.models.{found.spec.model}.weights")
