"""Checks of towers and generators: their degrees beside those of the language model, their GPUs, their memory."""

from collections.abc import Iterator

from planner.documents.units import format_si
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.figures import ROUNDING
from planner.kinds.train.unlike import ModuleRun
from planner.plan.findings import Finding
from planner.plan.schema import Parallelism


def modules_findings(decision: TrainDecision, shape: Parallelism) -> Iterator[Finding]:
    """One finding a rule and module; nothing where there are none."""
    language_gpus = shape.tp * shape.cp * shape.pp * shape.dp
    for index, module in enumerate(decision.modules):
        where = f"modules.{index}"
        if module.place == "colocated":
            right = (module.tp, module.dp) == (shape.tp, shape.dp) and module.first_rank is None
            what = f"the {module.name} runs at tp {module.tp}, dp {module.dp}, its stage at {shape.tp}, {shape.dp}"
            yield Finding("train.modules", right, what, where, "give it the degrees of the language model")
            continue
        divides = module.dp % shape.dp == 0 or shape.dp % module.dp == 0
        what = f"dp {module.dp} of the {module.name}, dp {shape.dp} of the language model"
        hint = f"use a divisor or a multiple of {shape.dp}"
        yield Finding("train.module_dp", divides, what, f"{where}.dp", hint)
        yield _ranks(decision, module, language_gpus, where)
        memory = module.memory
        fits = memory is not None and memory.used_bytes <= memory.capacity_bytes * (1.0 + ROUNDING)
        what = f"a rank of the {module.name} states no memory"
        if memory is not None:
            what = f"a rank of the {module.name} needs {format_si(memory.used_bytes, 'B')}"
            what += f", may use {format_si(memory.capacity_bytes, 'B')}"
        yield Finding("train.module_memory", fits, what, f"{where}.memory", "give it a larger tp, or more ranks")


def _ranks(decision: TrainDecision, module: ModuleRun, language_gpus: int, where: str) -> Finding:
    """Its ranks lie behind those of the language model, on whole groups, and on no other module's."""
    first = -1 if module.first_rank is None else module.first_rank
    own = range(first, first + module.tp * module.dp)
    others = [
        range(other.first_rank, other.first_rank + other.tp * other.dp)
        for other in decision.modules
        if other is not module and other.first_rank is not None
    ]
    shared = [other for other in others if max(own.start, other.start) < min(own.stop, other.stop)]
    right = first >= language_gpus and first % module.tp == 0 and not shared
    what = f"the {module.name} has ranks {own.start} to {own.stop - 1}, the language model the first {language_gpus}"
    if shared:
        what += f", and another module some of {shared[0].start} to {shared[0].stop - 1}"
    hint = f"begin at a multiple of {module.tp} of at least {language_gpus}, behind other modules"
    return Finding("train.module_ranks", right, what, f"{where}.first_rank", hint)
