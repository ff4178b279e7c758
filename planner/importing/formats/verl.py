"""RL post-training: overrides of verl."""

import math
import re
from collections.abc import Mapping
from typing import Any

from planner.importing.formats.post_training import product_of, rl_findings, rl_reading
from planner.importing.launches import Launch
from planner.importing.options import Options, asks
from planner.importing.records import UNPRICED, Reading
from planner.importing.values import Values, is_unknown, mark, unknown_names

_ALGORITHMS = {"gae": "ppo"}
_ROLLED_OUT = (
    *("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size", "quantization", "enforce_eager"),
    *("max_num_batched_tokens", "multi_turn.enable"),
)
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

_UNPRICED = (
    *(f"{_ROLLOUT}.{name}" for name in _ROLLED_OUT),
    *(f"{_ACTOR}.{name}" for name in ("ulysses_sequence_parallel_size", "entropy_checkpointing")),
    *("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.enable_activation_offload"),
    "algorithm.filter_groups.enable",
)
"""Settings that change times or memory, and that no RL plan has fixed."""


def read_verl(launch: Launch) -> Reading:
    """Hydra overrides of verl (`verl/trainer/config/ppo_trainer.yaml`); actor, rollout and reference share GPUs."""
    values = Values()
    settings: Options = {}
    for word in launch.words:
        key, equals, value = word.partition("=")
        if equals and re.match(r"[+~]*[A-Za-z_][\w.@/]*\Z", key):
            settings[key.lstrip("+~")] = value.strip("'\"")
    settings = {name: _interpolated(str(value), settings, launch.environment) for name, value in settings.items()}
    nodes = values.integer(settings.get("trainer.nnodes"), 1)
    a_node = values.integer(settings.get("trainer.n_gpus_per_node"), 8)
    separate = any(
        re.search(r"one_step_off|fully_async|split_placement", w) for w in (launch.program, *launch.words[:1])
    )
    estimator = str(settings.get("algorithm.adv_estimator", "gae"))
    gpus = nodes * a_node if nodes and a_node else None
    if separate and gpus is not None and "rollout.nnodes" in settings:
        more, each = (
            values.integer(settings["rollout.nnodes"]),
            values.integer(settings.get("rollout.n_gpus_per_node"), 8),
        )
        gpus = gpus + more * each if more is not None and each else None
    train = _train(settings, values)
    tp = values.integer(settings.get(f"{_ROLLOUT}.tensor_model_parallel_size"), 2)
    rollout = {"engine": values.text(settings.get(f"{_ROLLOUT}.name")), "tp": tp,
               "samples": values.integer(settings.get(f"{_ROLLOUT}.n"), 1)}  # fmt: skip
    fields = {
        "engine": "verl",
        "algorithm": None if "\x00" in estimator else _ALGORITHMS.get(estimator, estimator),
        "model": values.text(settings.get("actor_rollout_ref.model.path")),
        "gpus": gpus,
        "colocated": not separate,
        "train": train,
        "rollout": rollout,
        "prompts": values.integer(settings.get("data.train_batch_size")) or _streamed_prompts(settings, values),
        "minibatch": values.integer(settings.get(f"{_ACTOR}.ppo_mini_batch_size")),
        "max_prompt": values.integer(settings.get("data.max_prompt_length")),
        "max_response": values.integer(settings.get("data.max_response_length")),
    }
    ranks = product_of(train, ("tp", "pp", "cp"))
    findings = rl_findings(gpus, a_node, tp, ranks)
    prompts, minibatch = fields["prompts"], fields["minibatch"]
    if isinstance(prompts, int) and isinstance(minibatch, int) and minibatch > prompts:
        findings.append(f"a minibatch of {minibatch} prompts is larger than the batch of {prompts}")
    samples, sharded = rollout["samples"], train["engine"] != "megatron" and not separate
    if sharded and gpus and isinstance(prompts, int) and isinstance(samples, int) and prompts * samples % gpus:
        findings.append(f"{prompts * samples} samples of {prompts} prompts do not divide over {gpus} GPUs")
    return rl_reading(fields, values, findings, _beside(settings, values))


_PLACE = re.compile(r"\\?\$\{(?:oc\.env:(?P<name>\w+)(?:,(?P<default>[^{}]*))?|(?P<path>[\w.]+))\}")
_DEPTH = 8  # of places that name places


def _interpolated(text: str, settings: Options, environment: Mapping[str, str]) -> str:
    """A value of OmegaConf with `${a.b}` and `${oc.env:NAME,default}` replaced; others wait for what they name."""

    def value(match: re.Match[str]) -> str:
        if match["path"] is not None:
            return str(settings[match["path"]]) if match["path"] in settings else mark([match["path"]])
        known = environment.get(match["name"], match["default"])
        return mark([match["name"]]) if known is None else known.strip("'\"")

    for _ in range(_DEPTH):
        if _PLACE.search(text) is None:
            break
        text = _PLACE.sub(value, text)
    return text


def _beside(settings: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """What summaries have no field for, with the defaults of `docs/examples/config.rst`; none of a KL: no reference."""
    divergences = [settings.get(name) for name in (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")]
    asked = [values.switch(value) for value in divergences]
    open_ones = [str(value) for value in divergences if is_unknown(value) and not any(asked)]
    waits = [name for text in open_ones for name in unknown_names(text)]
    return {
        "reference": any(asked) or bool(waits),
        "reference_waits_for": waits,
        "max_running": values.integer(settings.get(f"{_ROLLOUT}.max_num_seqs"), 1024),
        "memory_utilisation": values.number(settings.get(f"{_ROLLOUT}.gpu_memory_utilization", 0.5)),
        "epochs": values.integer(settings.get(f"{_ACTOR}.ppo_epochs"), 1),
        UNPRICED: [f"{name}={settings[name]}" for name in _UNPRICED if asks(name, settings.get(name))],
    }


def _streamed_prompts(settings: Mapping[str, Any], values: Values) -> int | None:
    """Prompts between updates of the weights of rollouts, as the fully asynchronous recipe counts them."""
    names = (f"{_ACTOR}.ppo_mini_batch_size", "async_training.require_batches",
             "async_training.trigger_parameter_sync_step")  # fmt: skip
    counts = [values.integer(settings.get(name)) for name in names]
    return math.prod(count for count in counts if count) if all(counts) else None


def _train(settings: Mapping[str, Any], values: Values) -> dict[str, Any]:
    engine = settings.get("model_engine") or settings.get(f"{_ACTOR}.strategy")
    if engine is None and any(key.startswith(f"{_ACTOR}.megatron.") for key in settings):
        engine = "megatron"
    engine = engine or "fsdp"
    engine = {"dp": "fsdp"}.get(str(engine), str(engine))
    if engine.startswith("megatron"):
        names = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
        base = f"{_ACTOR}.megatron"
        degrees = {
            key: values.integer(settings.get(f"{base}.{name}_{'model_' if key != 'cp' else ''}parallel_size"), 1)
            for key, name in names.items()
        }
        offload = values.switch(settings.get(f"{base}.param_offload"))
        return {"engine": "megatron", **{key: degrees[key] for key in names}, "offload": bool(offload)}
    strategy = values.text(settings.get(f"{_ACTOR}.strategy")) or engine
    base = f"{_ACTOR}.fsdp_config"
    offload = values.switch(settings.get(f"{base}.param_offload"))
    return {"engine": strategy, "offload": bool(offload)}
