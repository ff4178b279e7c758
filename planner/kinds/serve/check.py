"""Checks of serving plans: roles by mode, routing of requests, SLO limits, and expert-parallel ranks."""

import math
from collections.abc import Iterator

from planner.kinds.serve.legality import legality
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.proof.mix_proof import proof_findings
from planner.kinds.serve.proof.repriced_drafts import repriced_drafts
from planner.kinds.serve.proof.repriced_units import repriced
from planner.models.architecture import Architecture, MoeFfn
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope, Expected, Role
from planner.plan.sides import ffn_roles
from planner.problem.confidence import leaves_open
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.problem.schema import Problem

FUNCTIONS = {
    "colocated": {"colocated"},
    "disaggregated": {"prefill", "decode"},
    "attention-ffn": {"prefill", "attention", "ffn"},
    "mixed": {"colocated", "prefill", "decode", "attention", "ffn"},
}
HANDOVERS = {
    (None, "colocated"),
    (None, "prefill"),
    ("prefill", "decode"),
    ("prefill", "attention"),
    ("attention", "ffn"),
}
PASSES_ON = {"prefill": "decode", "attention": "ffn"}  # what a role with requests needs behind it

_ROUNDING = 1e-9  # relative, of sums of floats


def check(envelope: Envelope, decision: ServeDecision) -> list[Finding]:
    """One finding a rule and role or workload."""
    findings = [_mode(decision), *_handover(decision), *_limits(decision), *_sides(decision)]
    if envelope.certificate.expected is not None:
        findings.append(_expected(envelope.certificate, envelope.certificate.expected))
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        return findings
    if envelope.certificate.confidence is not None:
        findings.append(_confidence(envelope.certificate.confidence, problem))
    findings += [*_models(decision, problem), *_orders(decision, problem), *proof_findings(envelope, decision, problem)]
    if envelope.certificate.within is not None:
        part = envelope.model_copy(update={"certificate": envelope.certificate.within})
        findings += proof_findings(part, decision, problem)
    findings += legality(decision, problem)
    findings += repriced(envelope, decision, problem)
    findings += repriced_drafts(envelope, decision, problem)
    for role in decision.roles:
        model = recorded_model(problem, role.model)
        if model is None:
            what = f"not judged: the catalog does not know model `{role.model}`"
            findings.append(Finding("serve.experts", True, what, f"roles.{role.name}", skipped=True))
        else:
            findings += [_heads(role, model)] if role.function != "ffn" else []
            findings += [_experts(role, model)] if role.function != "attention" else []
    return findings


def _expected(stated: Certificate, expected: Expected) -> Finding:
    """What is expected is confidence times objective, the most of those searched, and within its bound."""
    worth = {each.confidence: each.confidence * (each.objective or 0.0) for each in stated.confidences}
    confidence = stated.confidence or 0.0
    right = math.isclose(worth.get(confidence, 0.0), expected.value, rel_tol=_ROUNDING)
    right = right and max(worth.values()) <= expected.value * (1.0 + _ROUNDING)
    right = right and (expected.bound is None or expected.value <= expected.bound * (1.0 + _ROUNDING))
    what = f"{expected.value:.6g} is expected at a confidence of {confidence:g}, the most of those searched"
    hint = "solve again: the confidence was not chosen by what is stated"
    return Finding("certificate.expected", right, what, "certificate.expected", hint)


def _confidence(confidence: float, problem: Problem) -> Finding:
    """A confidence is chosen only for limits whose problem states none."""
    left_open = any(leaves_open(workload.slo) for workload in problem.workloads)
    what = f"limits are kept with a confidence of {confidence:g}"
    what += ", which the problem leaves open" if left_open else ", and the problem leaves none open"
    hint = "solve again: the problem in the plan states how sure its limits are to be kept"
    return Finding("certificate.confidence", left_open, what, "certificate.confidence", hint)


def _mode(decision: ServeDecision) -> Finding:
    functions, wanted = {role.function for role in decision.roles}, FUNCTIONS[decision.mode]
    right = functions <= wanted if decision.mode in ("colocated", "mixed") else functions == wanted
    what = f"`{decision.mode}` with roles that are {', '.join(sorted(functions))}"
    return Finding("serve.mode", right, what, "mode", f"use roles that are {', '.join(sorted(wanted))}")


def _handover(decision: ServeDecision) -> Iterator[Finding]:
    """Requests enter prefill or colocated roles; prefill hands them to decode or attention roles, those to ffn ones."""
    function = {role.name: role.function for role in decision.roles}
    for route in decision.routing:
        to, source = function[route.to], function[route.source] if route.source is not None else None
        right = (source, to) in HANDOVERS
        what = f"`{route.workload}` goes from {source or 'the front door'} to {to}"
        hint = "send requests to prefill or colocated roles, from prefill to decode or attention, from attention to ffn"
        yield Finding("serve.handover", right, what, f"routing.{route.workload}.{route.to}", hint)
    for role in decision.roles:
        if role.function in PASSES_ON:
            into = {route.workload for route in decision.routing if route.to == role.name}
            lost = sorted(into - {route.workload for route in decision.routing if route.source == role.name})
            what = f"`{lost[0]}` ends in {role.function} role `{role.name}`" if lost else "all that comes goes on"
            hint = f"route it on to a role that is {PASSES_ON[role.function]}"
            yield Finding("serve.handover", not lost, what, f"roles.{role.name}", hint)


def _limits(decision: ServeDecision) -> Iterator[Finding]:
    for role in decision.roles:
        if role.function == "ffn":
            continue
        batch = role.limits.get("max_batch")
        right = isinstance(batch, int) and batch >= 1
        what = f"max_batch {batch}"
        hint = "give every role the sequences that an attention rank may run at once"
        yield Finding("serve.max_batch", right, what, f"roles.{role.name}.limits", hint)


def _sides(decision: ServeDecision) -> Iterator[Finding]:
    """Each attention role has one ffn role of as many replicas to itself, and both name the same micro-batches."""
    partners = ffn_roles(decision)
    for role in decision.roles:
        if role.function != "attention":
            continue
        ffn = partners.get(role.name)
        shared = ffn is not None and sum(other is ffn for other in partners.values()) > 1
        turns, where = role.limits.get("micro_batches"), f"roles.{role.name}"
        right = ffn is not None and not shared and ffn.replicas == role.replicas and ffn.model == role.model
        what = f"`{ffn.name}` of {ffn.replicas} replicas computes for {role.replicas}" if ffn else "no ffn role"
        hint = "route each attention role to an ffn role of its own, with its model and as many replicas"
        yield Finding("serve.sides", right, what, where, hint)
        same = isinstance(turns, int) and turns >= 1 and (ffn is None or ffn.limits.get("micro_batches") == turns)
        what = f"micro_batches {turns}"
        yield Finding("serve.micro_batches", same, what, f"{where}.limits", "state the same number in both roles")


def _orders(decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """Orders of requests and shared caches are among those that the problem allows."""
    options = recorded_options(problem, ServeOptions)
    stated = decision.queueing is not None or decision.elastic is not None
    if options is None or not (stated or options.reordered):
        return
    for name, chosen, allowed in (
        ("queueing", decision.queueing or "fcfs", options.queueing),
        ("elastic", bool(decision.elastic), options.elastic),
    ):
        what = f"{name} {chosen}, the problem allows {', '.join(map(str, allowed))}"
        yield Finding(
            f"serve.{name}", chosen in allowed, what, name, f"take one of those, or add it to `options.{name}`"
        )


def _models(decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """Every workload is routed, and to roles with its model."""
    model_of = {role.name: role.model for role in decision.roles}
    for workload in problem.workloads:
        homes = [route.to for route in decision.routing if route.workload == workload.name]
        wrong = sorted(home for home in homes if model_of[home] != problem.model_of(workload))
        what = f"goes to {', '.join(homes) or 'no role'}"
        if wrong:
            what = f"needs `{problem.model_of(workload)}` and goes to `{wrong[0]}` with `{model_of[wrong[0]]}`"
        right = bool(homes) and not wrong
        yield Finding("serve.models", right, what, f"routing.{workload.name}", "route it to roles with its model")


def _heads(role: Role, model: Architecture) -> Finding:
    tp = role.parallelism.tp
    heads = {getattr(layer.mixer, "num_heads", 0) for layer in model.layers}
    odd = sorted(count for count in heads if count % tp)
    what = f"{odd[0]} heads over tp {tp}" if odd else f"heads divide by tp {tp}"
    return Finding("serve.heads", not odd, what, f"roles.{role.name}", "use a tp that divides the heads")


def _experts(role: Role, model: Architecture) -> Finding:
    """Engines spread the experts over all ranks of an instance: moe_tp x ep equals tp x dp x cp of a stage."""
    shape = role.parallelism
    experts = {layer.ffn.num_experts for layer in model.layers if isinstance(layer.ffn, MoeFfn)}
    ranks, group = shape.tp * shape.dp * shape.cp, shape.moe_tp * shape.ep
    if not experts:
        what = f"`{model.name}` has no experts; moe_tp {shape.moe_tp}, ep {shape.ep}"
        return Finding("serve.experts", group in (1, ranks), what, f"roles.{role.name}", "set moe_tp and ep to 1")
    what = f"moe_tp {shape.moe_tp} x ep {shape.ep} over tp {shape.tp} x dp {shape.dp} x cp {shape.cp}"
    right = group == ranks and all(count % shape.ep == 0 for count in experts)
    hint = "spread the experts over all ranks of the instance, with an ep that divides them"
    return Finding("serve.experts", right, what, f"roles.{role.name}", hint)
