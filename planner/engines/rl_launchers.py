"""What RL launchers run, by launcher, as their sources have it: what solve leaves out of plans and `emit` refuses.

- `verl` (0.9, verl/trainer/config): Megatron and vLLM, SGLang or TensorRT-LLM; reward models are engines, beside the
  actor or on GPUs of their own, teachers on GPUs of their own alone.
- `nemo-rl` (0.6, examples/configs/grpo_math_1B.yaml): Megatron, whose gradients stay in bf16 (`grad_reduce_in_fp32:
  false`), and vLLM, which drafts; no critic.
- `openrlhf` (0.11, openrlhf/cli/train_ppo_ray.py): DeepSpeed without pipelines and experts on several ranks, and vLLM.
- `slime` (slime/utils/arguments.py): Megatron-LM and SGLang, at most one rollout ahead; generates more than is trained
  on.
- `areal` (1.0.4, areal/api/cli_args.py): Megatron and SGLang or vLLM; rewards come by rule.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

RlLauncherName = Literal["areal", "nemo-rl", "openrlhf", "slime", "verl"]


@dataclass(frozen=True, slots=True)
class RlLauncher:
    """What one launcher runs; names are those of the options and of the decision of an RL plan."""

    name: RlLauncherName
    title: str  # as it calls itself
    engines: tuple[str, ...]  # that generate
    algorithms: tuple[str, ...]
    served: tuple[str, ...]  # models that score with engines of their own
    beside: tuple[str, ...]  # those that score on the training GPUs
    batches: bool  # engines that score are sent whole batches, else samples as they are generated
    host_sleepers: tuple[str, ...]  # engines that keep their weights in host memory while they sleep
    precisions: tuple[str, ...] = ("bf16", "fp8", "fp8_block")  # of training
    rollout_weights: tuple[str, ...] = ("bf16", "fp8_block")
    synchrony: tuple[str, ...] = ("synchronous", "stream", "asynchronous")
    most_staleness: int | None = None
    in_flight: bool = True  # weights that come while samples are under way
    stages: bool = True  # of pipelines, in training and in generation
    spreads_experts: bool = True  # in training
    whole_experts: tuple[str, ...] = ()  # engines whose ranks are not told to share experts out
    moves_scorers: bool = True  # to the host between their turns, where training has GPUs of its own
    cut_apart: tuple[str, ...] = ()  # models beside the actor that may be cut otherwise than it is
    all_or_none: bool = False  # roles share all GPUs, or critic and reward have their own, cut as the actor is
    one_server: bool = False  # that scores beside the job
    even_nodes: bool = False  # roles have nodes of one size
    one_flag: bool = False  # for what actor and critic compute again, and for the ends of their pipelines
    gradient_bytes: float = 4.0  # each, kept and on its way between ranks
    whole_prompts: bool = False  # minibatches count prompts
    over_samples: bool = False
    drafts: bool = False
    max_running: int | None = None  # samples of a replica at once, where nothing states them


_MORE = ("dapo", "gspo", "grpo", "reinforce_pp")
RL_LAUNCHERS: dict[str, RlLauncher] = {
    launcher.name: launcher
    for launcher in (
        RlLauncher(
            name="areal",
            title="AReaL",
            engines=("sglang", "vllm"),
            algorithms=(*_MORE, "ppo", "rloo"),
            served=("reference", "teacher"),
            beside=("reference", "teacher"),
            batches=True,
            host_sleepers=("vllm",),
            rollout_weights=("bf16",),
            whole_experts=("vllm",),
            moves_scorers=False,
            cut_apart=("critic", "reference", "teacher"),
        ),
        RlLauncher(
            name="nemo-rl",
            title="NeMo-RL",
            engines=("vllm",),
            algorithms=(*_MORE, "rloo"),
            served=("reward",),
            beside=("reference",),
            batches=False,
            host_sleepers=("vllm",),
            synchrony=("synchronous", "asynchronous"),
            even_nodes=True,
            gradient_bytes=2.0,
            drafts=True,
        ),
        RlLauncher(
            name="openrlhf",
            title="OpenRLHF",
            engines=("vllm",),
            algorithms=(*_MORE, "ppo", "rloo"),
            served=("reference", "reward"),
            beside=("reference", "reward"),
            batches=True,
            host_sleepers=("vllm",),
            precisions=("bf16",),
            rollout_weights=("bf16",),
            synchrony=("synchronous", "asynchronous"),
            in_flight=False,
            stages=False,
            spreads_experts=False,
            whole_experts=("vllm",),
            moves_scorers=False,
            all_or_none=True,
            one_flag=True,
            max_running=256,  # `max_num_seqs` of vLLM's AsyncLLMEngine
        ),
        RlLauncher(
            name="slime",
            title="slime",
            engines=("sglang",),
            algorithms=(*_MORE, "ppo"),
            served=("reward", "teacher"),
            beside=("reference", "teacher"),
            batches=False,
            host_sleepers=(),
            synchrony=("synchronous", "asynchronous"),
            most_staleness=1,
            in_flight=False,
            one_server=True,
            one_flag=True,
            over_samples=True,
        ),
        RlLauncher(
            name="verl",
            title="verl",
            engines=("vllm", "sglang", "trtllm"),
            algorithms=(*_MORE, "ppo", "rloo"),
            served=("reward", "teacher"),
            beside=("reference", "reward"),
            batches=False,
            host_sleepers=(),
            cut_apart=("reward",),
            whole_prompts=True,
        ),
    )
}
assert set(RL_LAUNCHERS) == set(get_args(RlLauncherName))


def as_launched(asked: dict[str, Any]) -> dict[str, Any]:
    """Options as written, with those of their launcher where it runs one way alone; as they are without a launcher."""
    launcher = RL_LAUNCHERS.get(str(asked.get("launcher")))
    if launcher is None:
        return asked
    told = {**_defaults(launcher, asked), **asked}
    if isinstance(told.get("served"), list | tuple):
        told["served"] = [_sent(launcher, spec) for spec in told["served"]]
    if _sleeps_on_host(launcher, told):
        told.setdefault("engine_sleep", ["host"])
    return told


def _defaults(launcher: RlLauncher, asked: dict[str, Any]) -> dict[str, Any]:
    """Whole nodes, as every launcher starts roles, and what else this one does not choose."""
    one_way: dict[str, Any] = {"whole_nodes": True}
    if "stream" not in launcher.synchrony:
        ahead = ["asynchronous"] if asked.get("max_staleness") else []
        one_way["synchrony"] = ["synchronous", *ahead]
    if not launcher.stages:
        one_way["training_pp"] = [1]
    if launcher.all_or_none and (asked.get("algorithm") == "ppo" or asked.get("reward") or asked.get("served")):
        own = asked["critic_gpus"] == ["own"] if "critic_gpus" in asked else bool(asked.get("served"))
        one_way["arrangements"] = ["disaggregated" if own else "colocated"]
    if not launcher.spreads_experts:
        one_way["training_ep"] = [1]
    return one_way


def _sent(launcher: RlLauncher, spec: object) -> object:
    """Engines that score, sent what the launcher sends them."""
    return {"takes": "batches" if launcher.batches else "samples", **spec} if isinstance(spec, dict) else spec


def _sleeps_on_host(launcher: RlLauncher, asked: dict[str, Any]) -> bool:
    """Whether engines share GPUs with training, and every engine of the launcher then keeps its weights on the host."""
    arrangements, synchrony, costs = (asked.get(name) for name in ("arrangements", "synchrony", "costs"))
    shared = not isinstance(arrangements, list | tuple) or any(each != "disaggregated" for each in arrangements)
    in_turn = not isinstance(synchrony, list | tuple) or "synchronous" in synchrony
    measured = isinstance(costs, dict) and bool(costs.get("generation"))
    return shared and in_turn and not measured and launcher.host_sleepers == launcher.engines
