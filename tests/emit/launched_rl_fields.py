"""What launch files of RL frameworks start, read without the code that wrote them, beside what a plan decided.

`launched` reads the files of one target as a mapping of plain fields, with the defaults of the framework where nothing
is said; `planned` states the same fields of a plan. A field that a framework has no word for is in neither's reading.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.options import RlOptions
from planner.plan.schema import Role

Fields = dict[str, Any]
FP8 = {("hybrid", "tensorwise"): "fp8", ("e4m3", "blockwise"): "fp8_block"}
VLLM_SAMPLES = 256
PARTS = ("rollout", "actor", "critic", "reference", "reward", "teacher")


def differences(target: str, files: Mapping[str, str], decision: RlDecision, options: RlOptions) -> Fields:
    """Fields that start otherwise than planned, both values of each."""
    wanted, read = planned(decision, options), launched(target, files)
    return {name: (value, wanted[name]) for name, value in read.items() if value != wanted[name]}


def planned(decision: RlDecision, options: RlOptions) -> Fields:
    """The fields of a plan, as its roles and options state them."""
    of = {role.function: role for role in decision.roles if role.function in PARTS}
    rollout, actor, critic = of["rollout"], of["actor"], of.get("critic")
    assert rollout.engine is not None
    samples = options.prompts * options.samples_per_prompt
    micro = actor.limits.get("micro_tokens", rollout.limits["max_context_tokens"])
    return {
        "engine": rollout.engine.name,
        "shared": decision.arrangement == "colocated",
        "ahead": decision.staleness,
        "in_flight": decision.in_flight_updates is not None,
        "streams": decision.synchrony == "stream",
        "prompts": options.prompts,
        "samples_per_prompt": options.samples_per_prompt,
        "samples_per_update": samples // options.minibatches,
        "longest": rollout.limits["max_context_tokens"],
        "generating_gpus": rollout.replicas * rollout.parallelism.devices,
        "training_gpus": actor.parallelism.devices,
        **_degrees("generating", rollout),
        "replicas": rollout.replicas,
        "at_once": rollout.limits["max_batch"],
        **_degrees("training", actor),
        "training_cp": actor.parallelism.cp,
        "end_stages": tuple(actor.limits.get(f"{end}_stage_layers") for end in ("first", "last")),
        "recomputes": actor.limits.get("recompute") == "full",
        "drops": False,
        "precision": actor.limits.get("precision", "bf16"),
        "rollout_weights": rollout.limits.get("weights", "bf16"),
        "micro_tokens": micro,
        "reference": of["reference"].limits.get("between_turns", "device") if "reference" in of else None,
        "critic": None if critic is None else (critic.parallelism.tp, critic.parallelism.pp, critic.parallelism.cp),
        "critic_recomputes": critic is not None and critic.limits.get("recompute") == "full",
        "critic_micro_tokens": None if critic is None else micro,
    }


def _degrees(part: str, role: Role) -> Fields:
    shape = role.parallelism
    return {f"{part}_tp": shape.tp, f"{part}_pp": shape.pp, f"{part}_ep": shape.ep}


def launched(target: str, files: Mapping[str, str]) -> Fields:
    """The fields that the files of this target start."""
    readers: dict[str, Callable[[], Fields]] = {
        "verl": lambda: _verl(files["launch-verl.sh"]),
        "nemo-rl": lambda: _nemo_rl(yaml.safe_load(files["nemo-rl.yaml"])),
        "areal": lambda: _areal(yaml.safe_load(files["areal.yaml"])),
        "slime": lambda: _slime(files["launch-slime.sh"]),
        "openrlhf": lambda: _openrlhf(files["launch-openrlhf.sh"]),
    }
    return readers[target]()


def _words(script: str) -> list[str]:
    lines = (line for line in script.splitlines() if not line.lstrip().startswith("#"))
    return shlex.split("\n".join(lines).replace("\\\n", " "))


def _flags(script: str) -> dict[str, str]:
    flags, name = dict[str, str](), ""
    for word in _words(script):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            flags[name] = value
        elif name:
            flags[name] = word if not flags[name] else f"{flags[name]} {word}"
    return flags


def _verl(script: str) -> Fields:
    """Hydra overrides on ppo_megatron_trainer.yaml and its two asynchronous relatives."""
    rows = dict(word.lstrip("+").split("=", 1) for word in _words(script) if re.match(r"\+?[a-z_]+\.[\w.]+=", word))
    say = {key: yaml.safe_load(value.strip("'")) for key, value in rows.items()}
    actor, rollout, ref = ("actor_rollout_ref." + part for part in ("actor.", "rollout.", "ref."))
    cut, again = actor + "megatron.", "override_transformer_config.recompute_granularity"
    main = re.search(r"-m (\S+)", script)
    assert main is not None
    recipe = main[1].rpartition(".")[2]
    shared, own = recipe == "main_ppo" and "one_step" not in main[1], recipe == "fully_async_main"
    train = say["trainer.nnodes"] * say["trainer.n_gpus_per_node"]
    generate = train if shared else say["rollout.nnodes"] * say["rollout.n_gpus_per_node"]
    cp, gen_tp, gen_pp = say[cut + "context_parallel_size"], say[rollout + "tensor_model_parallel_size"], say.get(
        rollout + "pipeline_model_parallel_size", 1
    )  # fmt: skip
    batch = say.get("data.train_batch_size", say[actor + "ppo_mini_batch_size"] * say.get(
        "async_training.require_batches", 1) * say.get("async_training.trigger_parameter_sync_step", 1))  # fmt: skip
    fp8 = FP8[say[cut + "override_transformer_config.fp8"], say[cut + "override_transformer_config.fp8_recipe"]] if (
        cut + "override_transformer_config.fp8" in say) else "bf16"  # fmt: skip
    ref_moves, critic = say.get(ref + "megatron.param_offload"), "critic.megatron."
    has_critic = "critic.model.path" in say
    read: Fields = {
        "engine": say[rollout + "name"],
        "shared": shared,
        "ahead": 0 if shared else say["async_training.staleness_threshold"] if own else 1,
        "in_flight": bool(say.get("async_training.partial_rollout")),
        "streams": own and say["async_training.trigger_parameter_sync_step"] > 1,
        "prompts": batch,
        "samples_per_prompt": say[rollout + "n"],
        "samples_per_update": say[actor + "ppo_mini_batch_size"] * say[rollout + "n"],
        "longest": say[rollout + "max_model_len"],
        "generating_gpus": generate,
        "training_gpus": train,
        "generating_tp": gen_tp,
        "generating_pp": gen_pp,
        "generating_ep": say.get(rollout + "expert_parallel_size", 1),
        "replicas": generate // (gen_tp * gen_pp),
        "at_once": say[rollout + "max_num_seqs"],
        "training_tp": say[cut + "tensor_model_parallel_size"],
        "training_pp": say[cut + "pipeline_model_parallel_size"],
        "training_ep": say.get(cut + "expert_model_parallel_size", 1),
        "training_cp": cp,
        "end_stages": tuple(
            say.get(f"{cut}override_transformer_config.num_layers_in_{end}_pipeline_stage") for end in ("first", "last")
        ),
        "recomputes": say.get(cut + again) == "full",
        "precision": fp8,
        "rollout_weights": "fp8_block" if say.get(rollout + "quantization") == "fp8" else "bf16",
        "critic": tuple(say[f"{critic}{name}_parallel_size"] for name in ("tensor_model", "pipeline_model", "context"))
        if has_critic
        else None,
        "critic_recomputes": say.get(critic + again) == "full",
    }
    micro = {"micro_tokens": actor, **({"critic_micro_tokens": "critic."} if has_critic else {})}
    read |= {name: _at_most(say[f"{prefix}ppo_max_token_len_per_gpu"], cp, read["longest"]) for name, prefix in
             micro.items()}  # fmt: skip
    if not shared:
        read["reference"] = None if ref_moves is None else "host" if ref_moves else "device"
    return read


def _at_most(of_rank: int, ranks: int, longest: int) -> int:
    """Tokens of a micro-batch by those of a rank, which are rounded up: the longest sample where that is what it is."""
    return longest if 0 <= of_rank * ranks - longest < ranks else of_rank * ranks


def _nemo_rl(read: Mapping[str, Any]) -> Fields:
    """YAML on top of grpo_math_1B.yaml, where a micro-batch is packed to `max_total_sequence_length` x its size."""
    grpo, policy, cluster = read["grpo"], read["policy"], read["cluster"]
    cut, generation = policy["megatron_cfg"], policy["generation"]
    engine, ahead = generation["vllm_cfg"], grpo.get("async_grpo", {"enabled": False})
    fp8, shared = cut.get("fp8_cfg", {"enabled": False}), generation["colocated"]["enabled"]
    apart = generation["colocated"].get("resources", cluster)
    everything, generate = (part["num_nodes"] * part["gpus_per_node"] for part in (cluster, apart))
    scorer = read.get("env", {}).get("reward_model", {}).get("resources", {"num_nodes": 0, "gpus_per_node": 0})
    rest = everything - scorer["num_nodes"] * scorer["gpus_per_node"]
    return {
        "engine": generation["backend"],
        "shared": shared,
        "ahead": ahead["max_trajectory_age_steps"] if ahead["enabled"] else 0,
        "in_flight": bool(ahead.get("in_flight_weight_updates")),
        "streams": False,
        "prompts": grpo["num_prompts_per_step"],
        "samples_per_prompt": grpo["num_generations_per_prompt"],
        "samples_per_update": policy["train_global_batch_size"],
        "longest": engine["max_model_len"],
        "generating_gpus": generate,
        "training_gpus": rest if shared else rest - generate,
        "generating_tp": engine["tensor_parallel_size"],
        "generating_pp": engine["pipeline_parallel_size"],
        "generating_ep": engine["expert_parallel_size"],
        "replicas": generate // (engine["tensor_parallel_size"] * engine["pipeline_parallel_size"]),
        "at_once": generation["vllm_kwargs"].get("max_num_seqs"),
        "training_tp": cut["tensor_model_parallel_size"],
        "training_pp": cut["pipeline_model_parallel_size"],
        "training_ep": cut["expert_model_parallel_size"],
        "training_cp": cut["context_parallel_size"],
        "end_stages": tuple(cut.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last")),
        "recomputes": cut["activation_checkpointing"],
        "precision": FP8[fp8["fp8"], fp8["fp8_recipe"]] if fp8["enabled"] else "bf16",
        "rollout_weights": "fp8_block" if engine.get("precision") == "fp8" else "bf16",
        "micro_tokens": policy["max_total_sequence_length"] * policy["train_micro_batch_size"],
        "critic": None,
    }


def _areal(read: Mapping[str, Any]) -> Fields:
    """YAML with allocation strings: `d` data, `p` pipeline, `t` tensor, `c` context and `e` expert parallel ranks."""
    rollout, actor, critic = read["rollout"], read["actor"], read.get("critic")
    generating, training = _allocation(rollout["backend"]), _allocation(actor["backend"])
    engine = read[generating["name"]]
    fp8, reference = actor.get("megatron", {}).get("fp8_config"), read.get("ref")
    cut = None if critic is None else _allocation(critic["backend"])
    beside = reference is None or reference["scheduling_strategy"]["type"] == "colocation"
    return {
        "engine": generating["name"],
        "shared": rollout.get("scheduling_strategy", {}).get("target") == "actor",
        "ahead": rollout["max_head_offpolicyness"],
        "prompts": rollout["consumer_batch_size"],
        "samples_per_prompt": read["gconfig"]["n_samples"],
        "samples_per_update": rollout["consumer_batch_size"]
        * read["gconfig"]["n_samples"]
        // actor["ppo_n_minibatches"],
        "longest": engine.get("context_length", engine.get("max_model_len")),
        "generating_gpus": generating["gpus"],
        "training_gpus": training["gpus"],
        "generating_tp": generating["t"],
        "generating_pp": generating["p"],
        "replicas": generating["d"],
        "at_once": engine.get("max_running_requests", engine.get("max_num_seqs")),
        "training_tp": training["t"],
        "training_pp": training["p"],
        "training_ep": training["e"],
        "training_cp": training["c"],
        "recomputes": actor["gradient_checkpointing"],
        "drops": not all(trained["disable_dropout"] for trained in (actor, critic) if trained is not None),
        "precision": FP8[fp8["mode"], fp8["recipe"]] if fp8 else "bf16",
        "rollout_weights": "bf16",
        "micro_tokens": actor["mb_spec"]["max_tokens_per_mb"],
        "critic": None if cut is None else (cut["t"], cut["p"], cut["c"]),
        "critic_recomputes": critic is not None and critic["gradient_checkpointing"],
        "critic_micro_tokens": None if critic is None else critic["mb_spec"]["max_tokens_per_mb"],
        **({"reference": None if reference is None else "device"} if beside else {}),
    }


def _allocation(text: str) -> Fields:
    name, _, rest = text.partition(":")
    attention, _, experts = rest.strip("()").partition("|")
    sizes = {letter: int(size) for letter, size in re.findall(r"([dptc])(\d+)", attention.removeprefix("attn:"))}
    spread = re.search(r"e(\d+)", experts.removeprefix("ffn:").partition("t")[2])
    shape = {"d": 1, "p": 1, "t": 1, "c": 1, **sizes}
    return {"name": name, **shape, "gpus": shape["d"] * shape["p"] * shape["t"] * shape["c"],
            "e": int(spread[1]) if spread else 1}  # fmt: skip


def _slime(script: str) -> Fields:
    """Flags of slime's arguments.py, and those of Megatron-LM and SGLang behind it."""
    say, ahead = _flags(script), "train_async.py" in script
    train = int(say["--actor-num-nodes"]) * int(say["--actor-num-gpus-per-node"])
    shared, engine = "--colocate" in say, int(say["--rollout-num-gpus-per-engine"])
    generate, pp = train if shared else int(say["--rollout-num-gpus"]), int(say.get("--sglang-pp-size", 1))
    cp, longest = int(say["--context-parallel-size"]), _int(say, "--rollout-max-prompt-len")
    longest += _int(say, "--rollout-max-response-len")
    samples = _int(say, "--rollout-batch-size") * _int(say, "--n-samples-per-prompt")
    degrees = (_int(say, "--tensor-model-parallel-size"), _int(say, "--pipeline-model-parallel-size"), cp)
    micro, critic = _at_most(_int(say, "--max-tokens-per-gpu"), cp, longest), say["--advantage-estimator"] == "ppo"
    again = say.get("--recompute-granularity") == "full"
    return {
        "engine": "sglang",
        "shared": shared,
        "ahead": int(ahead),
        "in_flight": False,
        "streams": False,
        "prompts": _int(say, "--rollout-batch-size"),
        "samples_per_prompt": _int(say, "--n-samples-per-prompt"),
        "samples_per_update": samples // _int(say, "--num-steps-per-rollout"),
        "longest": longest,
        "generating_gpus": generate,
        "training_gpus": train,
        "generating_tp": engine // pp,
        "generating_pp": pp,
        "generating_ep": int(say.get("--sglang-ep-size", 1)),
        "replicas": generate // engine,
        "at_once": _int(say, "--sglang-server-concurrency"),
        "training_tp": degrees[0],
        "training_pp": degrees[1],
        "training_ep": _int(say, "--expert-model-parallel-size"),
        "training_cp": cp,
        "end_stages": tuple(
            int(layers) if layers else None
            for layers in (say.get(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        ),
        "recomputes": again,
        "drops": {say[f"--{part}-dropout"] for part in ("hidden", "attention")} != {"0.0"},
        "precision": FP8[say["--fp8-format"], say["--fp8-recipe"]] if "--fp8-format" in say else "bf16",
        "micro_tokens": micro,
        "critic": degrees if critic else None,
        "critic_recomputes": critic and again,
        "critic_micro_tokens": micro if critic else None,
    }


def _openrlhf(script: str) -> Fields:
    """Flags of train_ppo_ray.py; tokens of a micro-batch are those of a rank of its ring and tensor-parallel groups."""
    say = _flags(script)
    train = _int(say, "--actor.num_nodes") * _int(say, "--actor.num_gpus_per_node")
    ahead, tp, cp = "--train.async_enable" in say, _int(say, "--ds.tensor_parallel_size"), _int(
        say, "--ds.ring_attn_size")  # fmt: skip
    engines, size, longest = (_int(say, name) for name in (
        "--vllm.num_engines", "--vllm.tensor_parallel_size", "--data.max_len"))  # fmt: skip
    critic, again = "--critic.num_nodes" in say, "--actor.gradient_checkpointing_enable" in say
    micro = _at_most(_int(say, "--train.max_tokens_per_gpu"), tp * cp, longest)
    return {
        "engine": "vllm",
        "shared": "--train.colocate_all" in say and not ahead,
        "ahead": _int(say, "--train.async_queue_size") if ahead else 0,
        "in_flight": "--train.partial_rollout_enable" in say,
        "streams": False,
        "prompts": _int(say, "--rollout.batch_size"),
        "samples_per_prompt": _int(say, "--rollout.n_samples_per_prompt"),
        "samples_per_update": _int(say, "--train.batch_size"),
        "longest": longest,
        "generating_gpus": engines * size,
        "training_gpus": train,
        "generating_tp": size,
        "generating_pp": 1,
        "replicas": engines,
        "at_once": VLLM_SAMPLES,
        "training_tp": tp,
        "training_pp": 1,
        "training_ep": 1,
        "training_cp": cp,
        "recomputes": again,
        "precision": "bf16",
        "rollout_weights": "bf16",
        "micro_tokens": micro,
        "critic": (tp, 1, cp) if critic else None,
        "critic_recomputes": critic and again,
        "critic_micro_tokens": micro if critic else None,
    }


def _int(say: Mapping[str, str], name: str) -> int:
    return int(say[name])
