"""Generated RL problems, solved, checked and emitted: what each launcher starts, field by field, beside the plan.

Each problem names its engine and draws models, GPUs, batch, lengths, formats, arrangement, staleness and who scores.
Every target either refuses a plan with a reason or starts it as planned. A micro-batch counts as planned where it is
the one that training was priced at, memory and time. The trivial answer is the framework's defaults: how many of the
fields they would have right.

    python benchmarks/rl_launches.py [--quick] [--seed N] [--problems N]
"""

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "emit"))

from launched_problems import numbered, print_totals
from launched_rl_fields import Fields, differences, launched, planned

from planner.api import solve
from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.setting import read_setting
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again

TARGETS = ("verl", "nemo-rl", "areal", "slime", "openrlhf")
NODES = {"Qwen/Qwen2.5-7B": 1, "meta-llama/Llama-3.1-8B": 1, "Qwen/Qwen3-14B": 2, "Qwen/Qwen2.5-32B": 4,
         "Qwen/Qwen3-30B-A3B": 4, "meta-llama/Llama-3.1-70B": 8, "Qwen/Qwen3-235B-A22B": 16}  # fmt: skip
DEFAULTS: Fields = {
    **dict.fromkeys(("training_tp", "training_pp", "training_cp", "training_ep"), 1),
    **dict.fromkeys(("generating_tp", "generating_pp", "generating_ep", "samples_per_prompt"), 1),
    **dict.fromkeys(("in_flight", "streams", "recomputes", "critic_recomputes"), False),
    **dict.fromkeys(("precision", "rollout_weights"), "bf16"),
    **dict.fromkeys(("critic", "critic_micro_tokens", "reference"), None),
    "shared": True,
    "ahead": 0,
    "at_once": 256,
}
"""What frameworks do where nothing is said; sizes of the job have no default."""


def drawn(draw: random.Random) -> dict[str, Any]:
    """A problem."""
    model = draw.choice(list(NODES))
    mean, ahead = draw.choice((800, 2000, 6000)), draw.choice((0, 1, 1, 2))
    algorithm = draw.choice(("grpo", "grpo", "dapo", "gspo", "ppo"))
    options: dict[str, Any] = {
        "algorithm": algorithm,
        "prompts": draw.choice((64, 128, 256)),
        "samples_per_prompt": 8,
        "minibatches": draw.choice((1, 2, 4)),
        "max_staleness": ahead,
        "whole_nodes": draw.random() < 0.7,
        "iterations": 2,
    }
    models = {"policy": {"name": model}}
    if algorithm == "ppo":
        models["critic"] = {"name": draw.choice((model, "Qwen/Qwen2.5-7B"))}
    rare: tuple[tuple[float, str, object], ...] = (
        (0.6, "reference", "policy"),
        (0.4 * (ahead > 0), "in_flight_updates", True),
        (0.2, "training_precision", ["fp8_block"]),
        (0.2, "rollout_weights", ["fp8_block"]),
        (0.3, "max_output_tokens", 3 * mean),
        (0.2, "max_running", 128),
        (0.3, "training_cp", [1, 2, 4]),
        (0.3, "training_pp", [1]),
    )
    for share, name, value in rare:
        if draw.random() < share:
            options[name] = value
    if draw.random() < 0.2:
        models["judge"] = {"name": "Qwen/Qwen2.5-7B"}
        options |= {"reward": "judge", "served": [{"part": "reward"}] if not options.get("in_flight_updates") else []}
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": models,
        "cluster": {"pools": [{"gpu": draw.choice(("h100", "h100", "h200")), "nodes": 2 * NODES[model]}]},
        "workloads": [{"model": "policy", "input_tokens": draw.choice((512, 1024)),
                       "output_tokens": {"mean": mean, "cv": draw.choice((0.5, 1.0))}}],
        "objective": {"minimize": "iteration_time"},
        "engine": {"name": draw.choice(("vllm", "sglang"))},
        "options": {"actor": "policy", **options},
    }  # fmt: skip


def outcome(problem: dict[str, Any], counts: Counter[str], fields: Counter[str]) -> str:
    """One problem from end to end; what became of it, in words."""
    try:
        plan = solve(problem)
    except Infeasible as none:
        counts["nothing fits"] += 1
        return f"nothing fits: {', '.join(str(limit) for limit in none.conflict)}"
    except PlannerError as error:
        counts["refused as a problem"] += 1
        return f"refused as a problem: {error.what} ({error.where})"
    decision, options = RlDecision.model_validate(plan.decision), RlOptions.model_validate(plan.inputs["options"])
    broken = [finding.what for finding in check_plan(plan, decision) if not finding.ok and not finding.skipped]
    counts["checks broken"] += bool(broken)
    actor = next(role for role in decision.roles if role.function == "actor")
    shape, wanted = actor.parallelism, planned(decision, options)
    priced = _priced_micro_tokens(plan, shape.tp, shape.pp, shape.cp, shape.ep)
    text = (f"{decision.arrangement}, {decision.synchrony} by {decision.staleness}; training tp{shape.tp} pp{shape.pp} "
            f"cp{shape.cp} ep{shape.ep} dp{shape.dp}, micro-batches of {priced};")  # fmt: skip
    told = []
    for target in TARGETS:
        try:
            files = emit(plan, decision, target)
        except PlannerError:
            counts["refused by a target"] += 1
            continue
        read, apart = launched(target, files), differences(target, files, decision, options)
        if read["micro_tokens"] != priced:
            apart["micro_tokens"] = (read["micro_tokens"], priced)
        counts["emitted"] += 1
        counts["fields"] += len(read)
        counts["as planned"] += len(read) - len(apart)
        counts["as defaults"] += sum(DEFAULTS.get(name, "") == wanted[name] for name in read)
        fields.update(apart)
        told.append(" ".join([target, *(f"{name} {pair}" for name, pair in apart.items())]))
    counts["without a launcher"] += not told
    return " ".join([text, ", ".join(told) or "NO LAUNCHER", *(f"CHECK {what}" for what in broken)])


def _priced_micro_tokens(plan: Envelope, tp: int, pp: int, cp: int, ep: int) -> int:
    """Of the micro-batch whose time and memory the costs of a training of these degrees are."""
    resolved = resolved_again(plan.inputs, RlOptions, AtHand(), plan.digests.profiles)
    for trainer in formulate(read_setting(resolved)).trainers.values():
        config = trainer.config
        if config is not None and (config.tp, config.pp, config.cp, config.ep) == (tp, pp, cp, ep):
            return config.sequence_tokens * config.micro_batch
    raise ValueError("a plan whose training is in no space")


def main() -> int:
    """Prints a line a problem and the totals; 1 where a plan is not launched as it is."""
    number, draw = numbered(__doc__)
    counts, fields = Counter[str](), Counter[str]()
    for index in range(number):
        problem = drawn(draw)
        pool, model = problem["cluster"]["pools"][0], problem["models"]["policy"]["name"].partition("/")[2]
        head = f"{index:3} {model:16}{pool['nodes']:>3} x {pool['gpu']} {problem['options']['algorithm']:5}"
        print(f"{head} {outcome(problem, counts, fields)}", flush=True)
    print_totals(counts, fields, "frameworks'")
    return int(counts["as planned"] < counts["fields"] or counts["checks broken"] > 0)


if __name__ == "__main__":
    sys.exit(main())
