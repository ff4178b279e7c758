"""Steps of a role to run: batch and context from the plan's limits and workloads, or cut smaller."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from planner.errors import PlannerError, did_you_mean
from planner.execute.shards.spec import RankSpec
from planner.plan.records import PlanDocument, Role

PREFILL, DECODE, MIXED, TRAIN, KV_TRANSFER = "prefill", "decode", "mixed", "train", "kv_transfer"
EXPERT_LAYER, OPTIMIZER = "expert_layer", "optimizer"
TRAINING = ("train", "actor")  # functions of roles that train
EXPERT_TOKENS = 1024  # of each attention rank, where a plan of a layout says nothing
_FROM_THE_START = (PREFILL, KV_TRANSFER)
_CACHED = "steps after cached tokens have no context-parallel executor"
_DRAFTED = "drafts, and steps that verify several tokens of a sequence, have no executor"
_ROOM = 0.1  # least share of a chunk that is left for prefill, as in `planner.kinds.serve.steady.steps.formulas`


@dataclass(frozen=True, slots=True)
class StepCase:
    """What one attention rank does in one step; tokens are new ones, contexts are what the cache already holds."""

    kind: str
    prefill_sequences: int = 0
    prefill_tokens: int = 0  # of each prefilling sequence
    prefill_context: int = 0
    decode_sequences: int = 0
    decode_context: int = 0
    micro_batches: int = 1  # that follow each other through the stages of a role that runs whole

    @property
    def batch(self) -> int:
        """Sequences of the step."""
        return self.prefill_sequences + self.decode_sequences

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return self.prefill_sequences * self.prefill_tokens + self.decode_sequences

    @property
    def cached_tokens(self) -> int:
        """Tokens that the KV cache holds after the step."""
        prefilled = self.prefill_sequences * (self.prefill_context + self.prefill_tokens)
        return prefilled + self.decode_sequences * (self.decode_context + 1)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Cut:
    """Upper bounds that make a step small enough for the machine at hand; 0 leaves it as the plan has it."""

    layers: int = 0  # of each stage
    batch: int = 0  # sequences
    context: int = 0  # cached tokens of a sequence
    tokens: int = 0  # new tokens of a prefilling sequence
    micro_batches: int = 0  # of a step that runs whole

    def of(self, step: StepCase) -> StepCase:
        """The step within the bounds."""
        return replace(
            step,
            prefill_sequences=_bounded(step.prefill_sequences, self.batch),
            prefill_tokens=_bounded(step.prefill_tokens, self.tokens),
            prefill_context=_bounded(step.prefill_context, self.context),
            decode_sequences=_bounded(step.decode_sequences, self.batch),
            decode_context=_bounded(step.decode_context, self.context),
            micro_batches=_bounded(step.micro_batches, self.micro_batches),
        )

    def of_rank(self, rank: RankSpec) -> RankSpec:
        """The rank with the first layers of each of its stages."""
        if not self.layers:
            return rank
        stages = tuple(replace(stage, num_layers=min(stage.num_layers, self.layers)) for stage in rank.stages)
        return replace(rank, stages=stages)


def parse_cut(text: str | None) -> Cut:
    """`layers=2,batch=4` as a Cut; raises PlannerError for other keys and values."""
    known = list(Cut.__slots__)
    values: dict[str, int] = {}
    for part in text.split(",") if text else ():
        key, _, value = part.strip().partition("=")
        if key not in known:
            raise PlannerError(
                f"unknown bound `{key}`",
                where="--cut",
                hint=did_you_mean(key, known, otherwise=f"write for example `--cut {known[0]}=2,{known[1]}=4`"),
            )
        if not value.isdigit() or int(value) < 1:
            raise PlannerError(
                f"`{key}` must be a whole number of at least 1, found `{value}`",
                where="--cut",
                hint=f"write for example `--cut {key}=2`",
            )
        values[key] = int(value)
    return Cut(**values)


def role_steps(plan: PlanDocument, role: Role, cut: Cut | None = None) -> list[StepCase]:
    """The steps of a role by its function; raises PlannerError for functions that have none."""
    if role.function not in STEPS:
        known = ", ".join(f"`{function}`" for function in STEPS)
        raise PlannerError(
            f"a role of the function `{role.function}` cannot be executed",
            where=f"{plan.source}: decision.roles.{role.name}",
            hint=f"roles that can: {known}",
        )
    cut = cut or Cut()
    return [_whole_rounds(cut.of(step), role) for step in STEPS[role.function](plan, role)]


def _whole_rounds(step: StepCase, role: Role) -> StepCase:
    """Interleaved schedules take micro-batches in rounds, one for each pipeline rank."""
    shape = role.parallelism
    if shape.vpp == 1 or step.micro_batches <= shape.pp:
        return step
    return replace(step, micro_batches=step.micro_batches - step.micro_batches % shape.pp)


def _serving(*kinds: str) -> "Steps":
    def steps(plan: PlanDocument, role: Role) -> list[StepCase]:
        known = {step.kind: step for step in _serving_steps(plan, role)}
        if role.parallelism.cp == 1:
            return [known[kind] for kind in kinds]
        if PREFILL not in kinds:
            raise PlannerError(
                _CACHED,
                where=f"{plan.source}: decision.roles.{role.name}",
                hint="execute the plan with cp 1, or its other roles",
            )
        return [replace(known[kind], prefill_context=0) for kind in kinds if kind in _FROM_THE_START]

    return steps


def left_out(role: Role) -> dict[str, str]:
    """Steps of a serving role that are not run, by role and kind, and why."""
    reasons = {f"{role.name}.drafting": _DRAFTED} if role.limits.get("draft_tokens") else {}
    if role.parallelism.cp == 1 or role.function not in ("colocated", "rollout"):
        return reasons
    return reasons | {f"{role.name}.{kind}": _CACHED for kind in (DECODE, MIXED)}


def _serving_steps(plan: PlanDocument, role: Role) -> Iterator[StepCase]:
    """Chunks halfway through prompts and outputs halfway done, as in `planner.kinds.serve.steady.steps.formulas`.

    As many of them follow each other through a pipeline as it has stages: the most that engines have in flight.
    """
    isl, osl = _mean_lengths(plan, role)
    pp = role.parallelism.pp
    chunk = int(role.limits.get("chunk_tokens", 0)) or isl
    batch = max(1, math.ceil(int(role.limits.get("max_batch", 1)) / pp))
    prompts, chunks = max(chunk // isl, 1), math.ceil(isl / chunk)
    tokens = math.ceil(isl / chunks)
    yield StepCase(PREFILL, prompts, tokens, (isl - tokens) // 2, micro_batches=pp)
    context = isl + osl // 2
    yield StepCase(DECODE, decode_sequences=batch, decode_context=context, micro_batches=pp)
    tokens = math.ceil(isl / math.ceil(isl / max(chunk - batch, chunk * _ROOM, 1)))
    yield StepCase(MIXED, 1, tokens, (isl - tokens) // 2, batch, context, micro_batches=pp)
    yield StepCase(KV_TRANSFER, 1, isl)


def _training_steps(plan: PlanDocument, _role: Role) -> list[StepCase]:
    """Micro-batches, then the optimizer; in RL sequences are prompts with their answers, as the generating role has
    them.
    """
    options = plan.inputs.get("options", {})
    sequence = int(options.get("sequence_tokens", 0)) or int(options.get("sequence_length", 0))
    generating = next((role for role in plan.roles if role.function == "rollout"), None)
    if not sequence and generating is not None:
        sequence = sum(_mean_lengths(plan, generating))
    if not sequence:
        raise PlannerError(
            "says no length of sequences", where=f"{plan.source}: inputs.options", hint="set `options.sequence_tokens`"
        )
    batches = int(plan.extra.get("num_micro_batches", 1))
    step = StepCase(TRAIN, int(plan.extra.get("micro_batch", 1)), sequence, micro_batches=batches)
    return [step, StepCase(OPTIMIZER)]


def _expert_steps(_plan: PlanDocument, role: Role) -> list[StepCase]:
    """Tokens through expert layers: those of a chunk, else of a decoding batch, where the role has such limits."""
    chunk, batch = (int(role.limits.get(name, 0)) for name in ("chunk_tokens", "max_batch"))
    if batch and not chunk:
        return [StepCase(EXPERT_LAYER, decode_sequences=batch)]
    return [StepCase(EXPERT_LAYER, 1, chunk or EXPERT_TOKENS)]


def _mean_lengths(plan: PlanDocument, role: Role) -> tuple[int, int]:
    """Mean input and output tokens of the workloads of the role, by their traffic; the longest context without any."""
    shares = {route.workload: route.share for route in plan.routing if route.to == role.name}
    loads = [load for load in plan.inputs.get("workloads", ()) if load.get("name") in shares or not shares]
    total = sum(shares.get(load["name"], 1.0) for load in loads)
    if not loads or total <= 0:
        longest = int(role.limits.get("max_context_tokens", 2048))
        return max(longest // 2, 1), max(longest // 2, 1)
    sides = ("input_tokens", "output_tokens")
    mean = [sum(shares.get(load["name"], 1.0) * _mean(load[side], plan) for load in loads) / total for side in sides]
    return max(round(mean[0]), 1), max(round(mean[1]), 1)


def _mean(lengths: object, plan: PlanDocument) -> float:
    """The mean of a length as problems write it."""
    if isinstance(lengths, int | float):
        return float(lengths)
    if isinstance(lengths, Mapping):
        if "mean" in lengths:
            return float(lengths["mean"])
        if "low" in lengths and "high" in lengths:
            return (float(lengths["low"]) + float(lengths["high"])) / 2
    if isinstance(lengths, Sequence) and len(lengths) == 2 and not isinstance(lengths, str):
        return (float(lengths[0]) + float(lengths[1])) / 2
    raise PlannerError(
        "has lengths from a trace, whose mean the plan does not say",
        where=f"{plan.source}: inputs.workloads",
        hint="write `mean` and `cv` instead of the trace",
    )


def _bounded(value: int, most: int) -> int:
    return min(value, most) if most else value


Steps = Callable[[PlanDocument, Role], Sequence[StepCase]]

STEPS: Mapping[str, Steps] = {
    "prefill": _serving(PREFILL, KV_TRANSFER),
    "decode": _serving(DECODE, KV_TRANSFER),
    "colocated": _serving(PREFILL, DECODE, MIXED),
    "rollout": _serving(PREFILL, DECODE, MIXED),
    "train": _training_steps,
    "actor": _training_steps,
    "experts": _expert_steps,
}
"""Steps by the function of a role. A new kind adds those of its functions here, and a builder to
`planner.execute.shards.spec` where its ranks hold something other than stages of a whole model."""
