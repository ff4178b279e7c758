"""What tells plans of a kind apart: the parts that a plan uses, and the problem without some of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.alternatives.axes import placed
from planner.errors import PlannerError
from planner.plan.schema import Envelope, Role
from planner.problem.schema import Problem

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Distinctness:
    """How plans of a kind are told apart; `without` leaves parts out of the options, given the best plan of all."""

    words: str
    parts: Callable[[Envelope], frozenset[str]]
    without: Callable[[Envelope, Options, Sequence[str]], Options]


def distinctness(problem: Problem) -> Distinctness:
    """That of the problem's kind; raises PlannerError where its plans have no alternatives that could be ranked."""
    options = problem.options
    if problem.kind == "place" and (options.get("layers") or options.get("mix") or options.get("lora")):
        raise _unranked("placements of layers, of mixes and of adapters are solved as a whole")
    if problem.kind == "rl" and options.get("horizon"):
        raise _unranked("a plan over training time is one for each of its periods")
    if problem.kind == "train" and len(problem.cluster.pools) > 1:
        raise _unranked("training across several pools is weighed use by use of them")
    if problem.kind not in _KINDS:
        raise _unranked(f"plans of kind `{problem.kind}` differ in nothing but how experts lie")
    return _KINDS[problem.kind]


def _unranked(why: str) -> PlannerError:
    return PlannerError(f"alternatives are not ranked: {why}", where="--alternatives", hint="leave it out")


def _instance_types(envelope: Envelope) -> frozenset[str]:
    roles = (Role.model_validate(role) for role in envelope.decision["roles"])  # type: ignore[union-attr]  # a list of records
    return frozenset(instance_type(role) for role in roles if role.function != "ffn")


def instance_type(role: Role) -> str:
    """`decode/qwen3/tp2/h200`: what an instance is, whatever its batch and chunk."""
    shape = role.parallelism
    degrees = (("tp", shape.tp), ("pp", shape.pp), ("dp", shape.dp), ("ep", shape.ep))
    label = "".join(f"{name}{size}" for name, size in degrees if size > 1) or "tp1"
    return f"{role.function}/{role.model}/{label}/{role.pool}"


def _without_types(_: Envelope, options: Options, parts: Sequence[str]) -> Options:
    stated = options.get("without") or []
    return {**options, "without": [*stated, *parts]}


_TRAIN = ("tp", "pp", "cp", "ep")


def _degrees(envelope: Envelope) -> frozenset[str]:
    roles: Any = envelope.decision["roles"]
    shape = Role.model_validate(roles[0]).parallelism
    return frozenset(f"{axis}={getattr(shape, axis)}" for axis in _TRAIN)


def _without_degrees(best: Envelope, options: Options, parts: Sequence[str]) -> Options:
    axes = {axis: [int(str(value)) for value in best.certificate.axes[axis]] for axis in _TRAIN}
    left = _left(axes, parts)
    changed: Options = {**options, "choice": "fastest"}
    for axis, values in left.items():
        changed = placed(changed, ("search", axis), values)
    return changed


def _left(axes: Mapping[str, Sequence[Any]], parts: Sequence[str]) -> dict[str, list[Any]]:
    """What is left of the axes that lose values; an axis without any has no plan."""
    gone = [part.partition("=")[::2] for part in parts]
    touched = dict.fromkeys(axis for axis, _ in gone)
    return {axis: [value for value in axes[axis] if (axis, str(value)) not in gone] for axis in touched}


def _rl_parts(envelope: Envelope) -> frozenset[str]:
    decision: Any = envelope.decision
    roles = {role["function"]: Role.model_validate(role).parallelism for role in reversed(decision["roles"])}
    parts = {f"arrangements={decision['arrangement']}", f"synchrony={decision['synchrony']}"}
    parts |= {f"generation_tp={roles['rollout'].tp}", f"training_tp={roles['actor'].tp}"}
    return frozenset({*parts, f"training_pp={roles['actor'].pp}"})


def _without_rl(best: Envelope, options: Options, parts: Sequence[str]) -> Options:
    modes = [str(mode) for mode in best.certificate.axes["mode"]]
    words = [re.split(r",? ", mode) for mode in modes]
    axes: dict[str, list[Any]] = {
        "arrangements": list(dict.fromkeys(row[0] for row in words)),
        "synchrony": list(dict.fromkeys(row[1] for row in words)),
        "generation_tp": _sizes(best, "generating replica", "tp"),
        "training_tp": _sizes(best, "training replica", "tp"),
        "training_pp": _sizes(best, "training replica", "pp"),
    }
    return {**options, **_left(axes, parts)}


def _sizes(best: Envelope, axis: str, degree: str) -> list[int]:
    texts = " ".join(map(str, best.certificate.axes[axis]))
    return sorted({int(size) for size in re.findall(rf"\b{degree}(\d+)", texts)})


def _group_parts(envelope: Envelope) -> frozenset[str]:
    roles: Any = envelope.decision["roles"]
    shapes = [Role.model_validate(role).parallelism for role in roles]
    return frozenset(f"{axis}={getattr(shape, axis)}" for shape in shapes for axis in ("tp", "pp"))


def _without_groups(best: Envelope, options: Options, parts: Sequence[str]) -> Options:
    texts = " ".join(map(str, best.certificate.axes["groups"]))
    axes = {axis: sorted({int(size) for size in re.findall(rf"{axis}(\d+)", texts)}) for axis in ("tp", "pp")}
    return {**options, **_left(axes, parts)}


_KINDS: Mapping[str, Distinctness] = {
    "serve": Distinctness(
        "each does without an instance type (function, model, degrees, pool) of every better one",
        _instance_types,
        _without_types,
    ),
    "train": Distinctness("any two differ in tp, pp, cp or ep", _degrees, _without_degrees),
    "rl": Distinctness(
        "any two differ in arrangement, synchrony, tp of generation, or tp or pp of training", _rl_parts, _without_rl
    ),
    "place": Distinctness(
        "each does without a tp or pp that groups of every better one have", _group_parts, _without_groups
    ),
}
