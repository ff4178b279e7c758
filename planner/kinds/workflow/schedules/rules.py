"""Rules of schedules, from the stated schedule and the problem alone, without the solver."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.plan.findings import Finding

DUST_S = 1e-9
HINT = "solve again"


def schedule_rules(options: WorkflowOptions, decision: WorkflowDecision) -> Iterator[Finding]:
    """One finding a rule of the form that the problem has."""
    if options.servers is not None:
        yield from _groups(options, decision)
        yield from _functions(options, decision)
    if options.engines is not None:
        yield from _batches(options, decision)


def _told(rule: str, wrong: Iterable[str], right: str, where: str) -> Finding:
    """The first thing that is wrong, or what is right."""
    first = next(iter(wrong), "")
    return Finding(f"workflow.{rule}", not first, first or right, where, HINT)


def _groups(options: WorkflowOptions, decision: WorkflowDecision) -> Iterator[Finding]:
    """Groups are linked stages, no more than may be, none in two."""
    assert options.servers is not None
    most, wrong = options.servers.most_members, list[str]()
    names = {stage.name for stage in options.stages}
    links = {(stage.name, before) for stage in options.stages for before in stage.after}
    held = Counter(name for group in decision.groups for name in group.stages)
    strange = {name: count for name, count in held.items() if name not in names or count > 1}
    wrong += [f"`{name}` is no stage, or in {count} groups" for name, count in strange.items()]
    for group in () if wrong else decision.groups:
        text = ", ".join(group.stages)
        wrong += [f"{len(group.stages)} stages in a group ({text}), at most {most}"] * (len(group.stages) > most)
        wrong += [f"stages of a group are not linked: {text}"] * (not _linked(group.stages, links))
    yield _told("groups", wrong, f"{len(decision.groups)} groups of linked stages", "decision.groups")


def _linked(members: Sequence[str], links: set[tuple[str, str]]) -> bool:
    reached, left = {members[0]}, set(members[1:])
    while near := {name for name in left if any({(name, m), (m, name)} & links for m in reached)}:
        reached, left = reached | near, left - near
    return not left


def _functions(options: WorkflowOptions, decision: WorkflowDecision) -> Iterator[Finding]:
    """Servers hold the functions of their groups, all slots together those of all stages; some stages have one."""
    assert options.servers is not None
    slots, wrong = options.servers.slots, list[str]()
    functions = {choice.stage: choice.functions or 0 for choice in decision.stages}
    used = Counter[int]()
    for group in decision.groups:
        used[group.server] += sum(functions.get(name, 0) for name in group.stages)
    for server, count in used.items():
        room = slots[server] if server < len(slots) else 0
        wrong += [f"groups on server {server} have {count} functions, it has {room} slots"] * (count > room)
    total = sum(functions.values())
    wrong += [f"{total} functions, and {sum(slots)} slots"] * (total > sum(slots))
    for stage in options.stages:
        count, single = functions.get(stage.name, 0), stage.work is not None and stage.work.one_function_s is not None
        wrong += [f"stage `{stage.name}` has {count} functions"] * (count < 1 or (single and count > 1))
    yield _told("functions", wrong, f"{total} functions in {sum(slots)} slots", "decision.stages")


def _batches(options: WorkflowOptions, decision: WorkflowDecision) -> Iterator[Finding]:
    """Every stage of every query stands in one batch, of its primitive, behind its query and what it waits for."""
    assert options.engines is not None
    kinds, come_s = options.engines.primitives, options.engines.queries_s
    stages = {stage.name: stage for stage in options.stages}
    begins, ends = dict[tuple[int, str], float](), dict[tuple[int, str], float]()
    by_engine: dict[str, list[tuple[float, float]]] = {}
    wrong = list[str]()
    for batch in decision.batches:
        kind, at = kinds.get(batch.primitive), f"the batch of `{batch.primitive}` at {batch.start_s:g} s"
        if kind is None or kind.engine != batch.engine or len(batch.queries) > kind.most_members:
            wrong.append(f"{at} is of no primitive, on another engine, or too large")
            continue
        end_s = batch.start_s + kind.setup_s + kind.each_s * len(batch.queries)
        by_engine.setdefault(batch.engine, []).append((batch.start_s, end_s))
        for query, name in batch.members:
            key, stage = (query, name), stages.get(name)
            if stage is None or stage.primitive != batch.primitive or query >= len(come_s) or key in begins:
                wrong.append(f"{at} has stage `{name}` of query {query}, which is none of it, or is taken twice")
            begins[key], ends[key] = batch.start_s, end_s
    if not wrong:
        missing = [(q, name) for q in range(len(come_s)) for name in stages if (q, name) not in begins]
        wrong += [f"stage `{name}` of query {query} is in no batch" for query, name in missing[:1]]
    yield _told("batches", wrong, f"{len(decision.batches)} batches hold every stage once", "decision.batches")
    if not wrong:
        yield _told("order", _early(options, begins, ends), "nothing begins early", "decision.batches")
        yield _told("engines", _overlaps(by_engine), "engines run one batch at a time", "decision.batches")


def _early(
    options: WorkflowOptions, begins: dict[tuple[int, str], float], ends: dict[tuple[int, str], float]
) -> Iterator[str]:
    assert options.engines is not None
    stages = {stage.name: stage for stage in options.stages}
    for (query, name), start_s in begins.items():
        ready_s = max([options.engines.queries_s[query], *(ends[query, before] for before in stages[name].after)])
        if start_s < ready_s - DUST_S * max(1.0, ready_s):
            yield f"stage `{name}` of query {query} begins at {start_s:g} s, and may at {ready_s:g} s"


def _overlaps(by_engine: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    for engine, spans in by_engine.items():
        free_s = 0.0
        for start_s, end_s in sorted(spans):
            if start_s < free_s - DUST_S * max(1.0, free_s):
                yield f"engine `{engine}` begins a batch at {start_s:g} s, and is free at {free_s:g} s"
            free_s = end_s
