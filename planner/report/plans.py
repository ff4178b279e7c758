"""The page of a plan: decision, commands, limits, what else, candidates, map, time and memory, proof, sources."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from planner.check.inputs import pools_of
from planner.documents.units import figure, format_si, significant
from planner.engines.serving.registry import SERVING_ENGINES
from planner.explain.limits import HEADER, LimitRow, limit_rows
from planner.explain.stated import other_plans
from planner.kinds.registry import find_kind
from planner.plan.placement import gpus_in_use
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import recorded_problem
from planner.report.candidates import candidates_section
from planner.report.charts import Against, Bar, against, spans, stacked, waterfall
from planner.report.cluster import cluster_section
from planner.report.marks import COLOURS, table, text
from planner.report.page import Page, Section
from planner.report.reasons import reasons_section
from planner.report.rollouts import rollout_section

_VERBS = {
    "serve": "Serve with",
    "train": "Train with",
    "rl": "Run iterations with",
    "experts": "Lay out",
    "place": "Place",
    "fleet": "Share the day between",
}
_MOST_ROLES = 6  # that the sentence names
_MOST_PASSES = 1500  # that are drawn of a pipeline


def plan_page(envelope: Envelope, decision: Decision, path: Path, simulated: Sequence[Section] = ()) -> Page:
    """The page of a plan that lies at `path`; `simulated` are sections of a simulation of it."""
    sections = [
        Section("Commands", f"<pre>{text(_commands(envelope, path.name))}</pre>"),
        *_limits(envelope, decision),
        *simulated,
        *reasons_section(envelope, decision),
        *_others(envelope),
        *candidates_section(envelope, decision, path.parent),
        *cluster_section(envelope, decision),
        *_steps(envelope),
        *_memory(decision),
        *_day(envelope),
        *_timeline(envelope, decision),
        *rollout_section(envelope, decision),
        *_certificate(envelope),
        *_sources(envelope),
    ]
    certificate = envelope.certificate
    lead = f"{_sentence(envelope, decision)} {_status(envelope)}"
    kicker = f"{envelope.kind} plan, planner {envelope.software.planner}"
    tiles = [(_words(certificate.objective.metric), figure(certificate.objective.metric, certificate.objective.value))]
    return Page(kicker, envelope.name, lead, [*tiles, *_tiles(envelope, decision)], sections)


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_per_", " / ").replace("_", " ")


def shape(role: Role) -> str:
    """`tp2 ep4` or `1 GPU`."""
    return role.parallelism.text or "1 GPU"


def _sentence(envelope: Envelope, decision: Decision) -> str:
    told = [f"{role.replicas} × {role.name} ({shape(role)})" for role in decision.roles[:_MOST_ROLES]]
    rest = len(decision.roles) - len(told)
    told += [f"{rest} more roles"] if rest > 0 else []
    pools = ", ".join(dict.fromkeys(role.pool for role in decision.roles))
    told = [f"{', '.join(told)} on {pools}"] if told else []
    return f"{_VERBS.get(envelope.kind, 'Run')} {', '.join([*told, *_functions(envelope.decision)])}."


def _functions(decision: dict[str, Any]) -> Iterator[str]:
    """Stages of a workflow that are no roles, by their option or their number of functions."""
    for stage in decision.get("stages", ()):
        if not stage.get("roles"):
            functions = stage.get("functions")
            yield f"{stage['stage']} ({f'functions: {functions}' if functions else stage['option']})"


def _status(envelope: Envelope) -> str:
    certificate = envelope.certificate
    gap = f", {certificate.gap_text} from the bound" if certificate.gap is not None else ""
    estimate = f" An estimate: {certificate.estimate}." if certificate.estimate else ""
    within = f", and {certificate.within_text}" if certificate.within is not None else ""
    why = f": {certificate.gap_reason}" if certificate.gap_reason else ""
    return f"The plan is {certificate.status}{gap}{within}{why}.{estimate}"


def _tiles(envelope: Envelope, decision: Decision) -> Iterator[tuple[str, str]]:
    values = {row.metric: row.value for row in envelope.predictions if not row.of}
    if decision.roles:
        yield "GPUs", str(gpus_in_use(decision.roles, decision.placement))
        most_w = _most_power_w(envelope, decision)
        if most_w:
            yield "GPUs draw at most", format_si(most_w, "W")
    metric = envelope.certificate.objective.metric
    for name in ("usd_per_hour", "usd_per_mtok", "usd_per_iteration", "step_time_s", "mfu", "train_days"):
        if name in values and name != metric:
            yield _words(name), figure(name, values[name])
    if envelope.certificate.bound is not None:
        yield "proven bound", figure(metric, envelope.certificate.bound)


def _most_power_w(envelope: Envelope, decision: Decision) -> float:
    """Power limits of the GPUs in use, added up; 0 where the catalog does not know some pool."""
    problem = recorded_problem(envelope.inputs)
    pools, named = pools_of(problem) if problem is not None else {}, {role.pool for role in decision.roles}
    if not named <= set(pools):
        return 0.0
    return sum(
        pools[str(name)].node.accelerator.power_w
        * gpus_in_use(
            [role for role in decision.roles if role.pool == name],
            [block for block in decision.placement if block.pool == name],
        )
        for name in named
    )


def _commands(envelope: Envelope, file: str) -> str:
    target = {"serve": "vllm", "train": "megatron-lm", "rl": "verl"}.get(envelope.kind)
    roles: Any = envelope.decision.get("roles") or [{}]
    engine = (roles[0].get("engine") or {}).get("name")
    if engine is not None and envelope.kind != "rl":
        target = SERVING_ENGINES[engine].target if engine in SERVING_ENGINES else engine
    emit = (
        [f"planner emit {file} --target {target} -o launch/"]
        if target and envelope.kind in ("serve", "train", "rl")
        else []
    )
    return "\n".join([f"planner show {file}", f"planner check {file}", *emit, f"planner explain {file}"])


def _limits(envelope: Envelope, decision: Decision) -> Iterator[Section]:
    rows = [row for row in limit_rows(envelope, decision) if row.limit.bound > 0.0]
    if not rows:
        return
    judged = [_against(row) for row in rows if row.limit.value is not None and row.limit.sense == "<="]
    body = (against("values against their limits", judged) if judged else "") + table(HEADER, (r.cells for r in rows))
    note = "Bars are shares of the limit, or of what it is held to; the line across a bar is its interval."
    yield Section("Limits and latencies", body, note)


def _against(row: LimitRow) -> Against:
    limit = row.limit
    value = limit.value or 0.0
    low, high = limit.interval or (value, value)
    name = f"{limit.statistic} {_words(limit.metric)} {limit.of}".strip()
    return Against(name, value, low, high, limit.held_to, bool(limit.kept), " ".join(row.cells[:8]))


def _others(envelope: Envelope) -> Iterator[Section]:
    metric = envelope.certificate.objective.metric
    rows = [
        (
            str(other.get("plan")),
            figure(metric, float(str(other["objective"]))),
            f"{100 * float(str(other['loss'])):.1f} %",
        )
        for other in other_plans(envelope)
        if isinstance(other.get("objective"), (int, float)) and isinstance(other.get("loss"), (int, float))
    ]
    if rows:
        note = "`planner solve --alternatives 3` gives whole plans; `planner explain --why-not` weighs any other."
        yield Section("What else", table(("the best plan of another make", _words(metric), "worse by"), rows), note)


def _steps(envelope: Envelope) -> Iterator[Section]:
    """The step that dominates each role, by its largest operators over all roles."""
    steps = envelope.evidence.steps or {}
    totals: dict[str, float] = {}
    for step in steps.values():
        whole = sum(step.seconds.values()) or 1.0
        for name, seconds in step.seconds.items():
            totals[name] = totals.get(name, 0.0) + seconds / whole
    shown = sorted(totals, key=lambda name: -totals[name])[: COLOURS - 1]
    bars = []
    for role, step in steps.items():
        parts = {name.replace("_", " "): step.seconds[name] for name in shown if name in step.seconds}
        rest = sum(seconds for name, seconds in step.seconds.items() if name not in shown)
        parts |= {"other": rest} if rest > 0.0 else {}
        bars.append(Bar(role, [(name, size, f"{role}: {name} {format_si(size, 's')}") for name, size in parts.items()]))
    if bars:
        body = stacked("a step of each role, by operator", bars)
        yield Section("Where time goes", body, "The step that dominates a role.")


def _memory(decision: Decision) -> Iterator[Section]:
    bars = []
    for role in decision.roles[:24]:
        if role.memory is None:
            continue
        sizes = {name.removesuffix("_bytes"): size for name, size in role.memory.model_dump().items() if size}
        capacity = sizes.pop("capacity")
        parts = [
            (name.replace("_", " "), size, f"{role.name}: {name.replace('_', ' ')} {format_si(size, 'B')}")
            for name, size in sizes.items()
        ]
        bars.append(Bar(role.name, parts, capacity))
    if bars:
        note = "On the fullest GPU of each role; the line is what the plan may use."
        yield Section("What fills memory", stacked("memory by role", bars), note)


def _day(envelope: Envelope) -> Iterator[Section]:
    """Nodes of every job of a fleet by the hours of a day; the line is what there is for all of them."""
    windows: Any = envelope.decision.get("windows") if envelope.kind == "fleet" else None
    bars = [
        Bar(
            window["hours"],
            [(job, nodes, f"{window['hours']}: {nodes} nodes to {job}") for job, nodes in window["nodes"].items()],
            sum(window["nodes"].values()) + window.get("idle_nodes", 0),
        )
        for window in windows or ()
    ]
    if bars:
        note = "The line is what there is for all jobs, less the reserve."
        yield Section("Who has which nodes when", stacked("nodes by job and hours", bars), note)


def _timeline(envelope: Envelope, decision: Decision) -> Iterator[Section]:
    """Phases of an RL iteration; what ranks of a pipeline do of a micro-batch."""
    if decision.phases:
        rows: dict[str, list[tuple[float, float, str, str]]] = {}
        for phase in decision.phases:
            for role in phase.roles or ("hand-over",):
                size = phase.duration_s or 0.0
                words = f"{role}: {phase.name}, {format_si(size, 's')} from {format_si(phase.start_s, 's')}"
                rows.setdefault(role, []).append((phase.start_s, size, phase.name, words))
        title = "The day by sets of nodes" if envelope.kind == "fleet" else "An iteration"
        yield Section(title, spans("phases by role", list(rows.items()), "s"))
    ranks: Any = envelope.decision.get("pipeline_ranks")
    own = find_kind(envelope.kind).timeline()
    if own is not None and ranks and own.has_pipeline(decision):
        drawn = own.first_passes(decision, 2 * len(ranks))
        yield Section("A step in the pipeline", *_passes(drawn, envelope))
    if ranks:
        yield Section("The pipeline", _pipeline(ranks), "Of one micro-batch, all stages of a rank together.")


def _passes(drawn: Sequence[Any], envelope: Envelope) -> tuple[str, str]:
    """The passes of the first micro-batches by rank, and what is drawn of how many."""
    lanes: dict[str, list[tuple[float, float, str, str]]] = {}
    for each in drawn:
        size = format_si(each.duration_s, "s")
        words = f"rank {each.rank}: {each.kind} of micro-batch {each.micro_batch}, stage {each.stage}, {size}"
        lane = lanes.setdefault(f"rank {each.rank}", [])
        lane.append((each.start_s * 1e3, each.duration_s * 1e3, each.kind, words))
    batches, all_ = 1 + max(each.micro_batch for each in drawn), envelope.decision["num_micro_batches"]
    note = f"{batches} of {all_} micro-batches of a step; `planner show --perfetto FILE` has all of them."
    rows = list(lanes.items())
    most = max(_MOST_PASSES * len(rows) // max(len(drawn), 1), 2)
    if most < len(rows):
        rows = [rows[place * (len(rows) - 1) // (most - 1)] for place in range(most)]
        note = f"{most} of {len(lanes)} ranks, {note}"
    return spans("passes of each rank", rows, "ms"), note


def _pipeline(ranks: list[dict[str, Any]]) -> str:
    """Ranks that work alike as one row."""
    rows = []
    for works, of in groupby(enumerate(ranks), key=lambda ranked: tuple(_works(ranked[1]).values())):
        places = [place for place, _ in of]
        name = f"rank {places[0]}" if len(places) == 1 else f"ranks {places[0]}–{places[-1]}"
        start, spanned = 0.0, []
        for part, size in zip(_works(ranks[places[0]]), works, strict=True):
            words = f"{name}: {part} {format_si(size, 's')}, idle {100 * ranks[places[0]]['idle_share']:.1f} %"
            spanned.append((start * 1e3, size * 1e3, part, words))
            start += size
        rows.append((name, spanned))
    return spans("work of each rank for a micro-batch", rows, "ms")


def _works(rank: dict[str, Any]) -> dict[str, float]:
    names = ("forward", "backward_input", "backward_weight")
    return {name.replace("_", " "): rank[f"{name}_s"] for name in names}


def _certificate(envelope: Envelope) -> Iterator[Section]:
    certificate = envelope.certificate
    pruned = sorted(((name, count) for name, count in certificate.pruned.items() if count), key=lambda row: -row[1])
    body = f"<p>{text(certificate.claim[:1].upper() + certificate.claim[1:])}.</p>"
    if certificate.candidates and pruned:
        total = max(certificate.candidates, sum(count for _, count in pruned))
        body += waterfall("candidates that each rule leaves out", total, pruned)
    yield Section("Proof", body, "`planner check --level proof` judges every claim.")


def _sources(envelope: Envelope) -> Iterator[Section]:
    evidence = envelope.evidence
    problem = recorded_problem(envelope.inputs)
    bars = [Bar(role, _shares(step.basis, f"{role}: ")) for role, step in (evidence.steps or {}).items() if step.basis]
    whole = _shares(evidence.basis)
    bars = [Bar("the plan", whole), *bars] if whole else bars
    body = stacked("what costs rest on, in percent", bars) if bars else ""
    rows = []
    if problem is not None:
        engines = _engines(envelope)
        for pool in problem.cluster.pools:
            for key, model in problem.models.items():
                rows.append(
                    (
                        pool.gpu,
                        engines.get(pool.label, problem.engine.name),
                        model.name or model.config or key,
                        ", ".join(evidence.sources) or "–",
                    )
                )
    body += table(("GPU", "engine", "model", "sources"), rows) if rows else ""
    notes = "".join(f"<li>{text(note)}</li>" for note in (*evidence.notes, *envelope.assumptions))
    digests = envelope.digests.problem
    body += (
        f"<details><summary>Notes, assumptions and digest</summary><ul>{notes}<li>{text(digests)}</li></ul></details>"
    )
    yield Section("Sources", body)


def _engines(envelope: Envelope) -> dict[str, str]:
    """The engine of each pool's roles, as the plan has them."""
    roles: Any = envelope.decision.get("roles") or []
    return {str(role["pool"]): str((role.get("engine") or {}).get("name")) for role in roles if role.get("engine")}


def _shares(basis: Mapping[Any, float], start: str = "") -> list[tuple[str, float, str]]:
    return [(str(name), 100 * share, f"{start}{significant(100 * share)} % {name}") for name, share in basis.items()]
