"""What tells plans of a kind apart: the parts that a plan uses, and the problem without some of them.

Placements of layers and mixes are told apart by pools, of adapters by the tp of engines and by merging, expert layouts
by the slots that they fill on a rank.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.alternatives.axes import placed
from planner.errors import PlannerError
from planner.plan.instance_types import role_degrees, unlimited_name
from planner.plan.schema import Envelope
from planner.problem.schema import Problem

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Distinctness:
    """How plans of a kind are told apart; `without` leaves parts out of the options, given the plan of all of them.

    It gives the options of problems that together have all plans that are left.
    """

    words: str
    parts: Callable[[Envelope], frozenset[str]]
    without: Callable[[Envelope, Options, Sequence[str]], Iterable[Options]]


def distinctness(problem: Problem) -> Distinctness:
    """That of the problem's kind."""
    options = problem.options
    if problem.kind == "rl" and options.get("horizon"):
        return _OVER_TIME
    if problem.kind == "workflow" and (options.get("servers") or options.get("engines")):
        what = "nothing says when two schedules of a graph are distinct"
        raise PlannerError(
            what, where="kind", hint="leave `--alternatives` out: the shortest is proven, or has a bound"
        )
    form = next((name for name in _PLACED if options.get(name) is not None), None) if problem.kind == "place" else None
    if form is None and problem.kind not in _KINDS:
        what = f"nothing says when two plans of kind `{problem.kind}` are distinct"
        raise PlannerError(what, where="kind", hint="leave `--alternatives` out, and sweep what is in question")
    return _KINDS[problem.kind] if form is None else _PLACED[form]


def _instance_types(envelope: Envelope) -> frozenset[str]:
    roles = (role for role in envelope.roles if role.function != "ffn")
    return frozenset(unlimited_name(each.function, each.model, role_degrees(each), each.pool) for each in roles)


def _listed_out(_: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    yield {**options, "without": [*(options.get("without") or []), *parts]} if parts else options


_TRAIN = ("tp", "pp", "cp", "ep")


def _degrees(envelope: Envelope) -> frozenset[str]:
    """Those of the job: stages on several pools are one pipeline."""
    shapes = [role.parallelism for role in envelope.roles]
    joined = envelope.decision.get("pools") == "stages"
    pp = sum(shape.pp for shape in shapes) if joined else shapes[0].pp
    shape = shapes[0].model_copy(update={"pp": pp})
    return frozenset(f"{axis}={getattr(shape, axis)}" for axis in _TRAIN)


def _without_degrees(best: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    axes = {axis: [int(str(value)) for value in best.certificate.axes[axis]] for axis in _TRAIN}
    left = _left(axes, parts)
    changed: Options = {**options, "choice": "fastest"}
    for axis, values in left.items():
        changed = placed(changed, ("search", axis), values)
    yield changed


def _left(axes: Mapping[str, Sequence[Any]], parts: Sequence[str]) -> dict[str, list[Any]]:
    """What is left of the axes that lose values; an axis without any has no plan."""
    gone = [part.partition("=")[::2] for part in parts]
    touched = dict.fromkeys(axis for axis, _ in gone)
    return {axis: [value for value in axes[axis] if (axis, str(value)) not in gone] for axis in touched}


def _rl_parts(envelope: Envelope) -> frozenset[str]:
    decision: Any = envelope.decision
    roles = {role.function: role.parallelism for role in reversed(envelope.roles)}
    parts = {f"arrangements={decision['arrangement']}", f"synchrony={decision['synchrony']}"}
    parts |= {f"generation_tp={roles['rollout'].tp}", f"training_tp={roles['actor'].tp}"}
    return frozenset({*parts, f"training_pp={roles['actor'].pp}"})


def _parts_over_time(envelope: Envelope) -> frozenset[str]:
    """Those of the plans of all periods together."""
    decision: Any = envelope.decision
    return frozenset(part for period in decision["horizon"] for part in _parts_of_period(period))


def _parts_of_period(period: Mapping[str, Any]) -> Iterator[str]:
    arrangement, synchrony = _mode_words(period["mode"])
    yield from (f"arrangements={arrangement}", f"synchrony={synchrony}")
    yield f"generation_tp={_size(period['generation'], 'tp')}"
    yield from (f"training_{axis}={_size(period['training'], axis)}" for axis in ("tp", "pp"))


def _mode_words(mode: str) -> tuple[str, str]:
    """`disaggregated` and `asynchronous` of `disaggregated, asynchronous by 1`."""
    arrangement, _, rest = mode.partition(", ")
    return arrangement, rest.partition(" ")[0]


def _size(name: str, axis: str) -> int:
    """2 of `8 x tp2 h20`; degrees of 1 are left out of names."""
    stated = re.search(rf" {axis}(\d+)\b", name)
    return int(stated[1]) if stated else 1


def _without_rl(best: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    axes = {
        "generation_tp": _sizes(best, "generating replica", "tp"),
        "training_tp": _sizes(best, "training replica", "tp"),
        "training_pp": _sizes(best, "training replica", "pp"),
    }
    modes = [part for part in parts if part.partition("=")[0] not in axes]
    left = _left(axes, [part for part in parts if part not in modes])
    yield {**options, **(_modes_left(best, modes) if modes else {}), **left}


def _modes_left(best: Envelope, parts: Sequence[str]) -> dict[str, list[str]]:
    """Arrangements and synchrony of the modes that are left; what none of them has is refused where it is asked for."""
    rows = [_mode_words(str(mode)) for mode in best.certificate.axes["mode"]]
    left = [row for row in rows if not {f"arrangements={row[0]}", f"synchrony={row[1]}"} & set(parts)]
    columns = enumerate(("arrangements", "synchrony"))
    return {name: list(dict.fromkeys(row[place] for row in left)) for place, name in columns}


def _sizes(best: Envelope, axis: str, degree: str) -> list[int]:
    texts = " ".join(map(str, best.certificate.axes[axis]))
    return sorted({int(size) for size in re.findall(rf"\b{degree}(\d+)", texts)})


def _group_parts(envelope: Envelope) -> frozenset[str]:
    shapes = [role.parallelism for role in envelope.roles]
    return frozenset(f"{axis}={getattr(shape, axis)}" for shape in shapes for axis in ("tp", "pp"))


def _without_groups(best: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    texts = " ".join(map(str, best.certificate.axes["groups"]))
    axes = {axis: sorted({int(size) for size in re.findall(rf"{axis}(\d+)", texts)}) for axis in ("tp", "pp")}
    yield {**options, **_left(axes, parts)}


def _pools(envelope: Envelope) -> frozenset[str]:
    return frozenset(role.pool for role in envelope.roles)


_MERGED = "merged"


def _engine_parts(envelope: Envelope) -> frozenset[str]:
    decision: Any = envelope.decision
    sizes = {f"tp={role.parallelism.tp}" for role in envelope.roles}
    return frozenset(sizes | ({_MERGED} if any(host["merged"] for host in decision["adapters"]) else set()))


def _without_engines(best: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    left = _left({"tp": best.certificate.axes["tp"]}, [part for part in parts if part != _MERGED])
    lora: Any = options["lora"]
    yield {**options, **left, "lora": {**lora, "merged": False} if _MERGED in parts else lora}


def _filled(envelope: Envelope) -> frozenset[str]:
    decision: Any = envelope.decision
    return frozenset({f"slots={max(decision['slots_per_rank'])}"})


def _fewer_slots(best: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    """Every number of slots that holds all experts: all of them are filled, and more may balance worse."""
    decision: Any = best.decision
    stated: Any = options["slots_per_rank"]
    by_rank = [stated] * int(str(options["ep"])) if isinstance(stated, int) else list(stated)
    for most in range(max(by_rank), 0, -1):
        slots = [min(most, own) for own in by_rank]
        if f"slots={most}" not in parts and sum(slots) >= int(decision["num_experts"]):
            yield {**options, "slots_per_rank": most if isinstance(stated, int) else slots}


def _nodes_of_jobs(envelope: Envelope) -> frozenset[str]:
    """The numbers of nodes that jobs of a day have at some time; none is no part, as no job can do without it."""
    decision: Any = envelope.decision
    return frozenset(
        f"{job}/{nodes}" for window in decision["windows"] for job, nodes in window["nodes"].items() if nodes
    )


def _stage_options(envelope: Envelope) -> frozenset[str]:
    """The option of every stage; a pool that encodes images or none."""
    decision: Any = envelope.decision
    chosen = {f"{stage['stage']}={stage['option']}" for stage in decision["stages"]}
    names = {str(stage["stage"]) for stage in decision["stages"]}
    return frozenset(chosen | ({"encode=none"} if "images" in _form(envelope) and "encode" not in names else set()))


def _form(envelope: Envelope) -> Mapping[str, Any]:
    options: Any = envelope.inputs["options"]
    return {name: options[name] for name in ("speech", "images") if options.get(name) is not None}


def _without_options(best: Envelope, options: Options, parts: Sequence[str]) -> Iterator[Options]:
    """Every stage without the options that are gone; a stage that has none left leaves no plan."""
    stages: Any = options.get("choices") or {}
    left = _left(_options_by_stage(best, stages), parts)
    if all(left.values()):
        choices = {stage: {**stages.get(stage, {}), "options": names} for stage, names in left.items()}
        yield {**options, "choices": {**stages, **choices}} if choices else options


def _options_by_stage(best: Envelope, stages: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of options by stage, without those that the problem leaves out."""
    inputs: Any = best.inputs
    named: dict[str, list[str]] = {}
    for key, form in _form(best).items():
        pools = ("encode", "prefill", "decode", *(("vocode",) if key == "speech" else ()))
        named = {stage: [option["name"] for option in form[stage]] for stage in pools}
        if key == "images":
            named["encode"].append("none")
    for stage in inputs["options"].get("stages") or ():
        if stage.get("serve") is None:
            named[stage["name"]] = [option["name"] for option in stage["options"]]
        else:
            own = stage["serve"].get("pools")
            held = own or [pool.get("name") or pool["gpu"] for pool in inputs["cluster"]["pools"]]
            named[stage["name"]] = [f"served on {pool}" for pool in held]
    kept = {stage: choice.get("options") for stage, choice in stages.items()}
    return {stage: [name for name in names if name in (kept.get(stage) or names)] for stage, names in named.items()}


_KINDS: Mapping[str, Distinctness] = {
    "workflow": Distinctness("any two differ in the option of a stage", _stage_options, _without_options),
    "fleet": Distinctness(
        "each does without a number of nodes of a job that every better one uses", _nodes_of_jobs, _listed_out
    ),
    "serve": Distinctness(
        "each does without an instance type (function, model, degrees, pool) of every better one",
        _instance_types,
        _listed_out,
    ),
    "train": Distinctness("any two differ in tp, pp, cp or ep", _degrees, _without_degrees),
    "rl": Distinctness(
        "any two differ in arrangement, synchrony, tp of generation, or tp or pp of training", _rl_parts, _without_rl
    ),
    "place": Distinctness(
        "each does without a tp or pp that groups of every better one have", _group_parts, _without_groups
    ),
    "experts": Distinctness("any two differ in the slots that they fill on a rank at most", _filled, _fewer_slots),
}
_OVER_TIME = Distinctness(
    "each does without an arrangement, synchrony, tp of generation, or tp or pp of training that every better one has"
    " in a period",
    _parts_over_time,
    _without_rl,
)
_PLACED: Mapping[str, Distinctness] = {
    "layers": Distinctness("each does without a pool that every better one uses", _pools, _listed_out),
    "mix": Distinctness("each does without a pool that every better one uses", _pools, _listed_out),
    "lora": Distinctness(
        "each does without a tp of engines, or without merging, that every better one has",
        _engine_parts,
        _without_engines,
    ),
}
"""Of placements in place of models on groups, by the option that asks for them."""
