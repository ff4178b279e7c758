"""Facts on RL plans: what an iteration waits for, what it hands over, and what each of its ways saves."""

import math
from collections.abc import Iterator
from typing import Any

from planner.documents.units import format_si
from planner.explain.facts import NEAR, Fact
from planner.plan.schema import Decision, Envelope

EVEN = 0.02  # by which one side may be longer and the two still be called even

_SAVINGS = {  # field: (what it does, seconds with it, seconds without)
    "late_rollout": ("other replicas end the rollout", "generated_s", "unchanged_s"),
    "fused_scoring": ("scoring begins on replicas that generation sets free", "scored_s", "unfused_s"),
    "fused_training": ("actor and critic train at the same time", "makespan_s", "in_turn_s"),
}


def post_training_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """Nothing of other kinds."""
    if envelope.kind != "rl":
        return
    data: dict[str, Any] = decision.model_dump(mode="json")
    yield from _sides(envelope, data)
    yield from _split(envelope, data)
    yield from _phases(envelope, data)
    yield from _critic(data)
    yield from _sync(envelope, data)
    yield from _turns(data)
    yield from _savings(data)
    yield from _periods(data)
    for role, held in (data.get("resident_bytes") or {}).items():
        if not held:
            continue
        what = f"`{role}` keeps {format_si(held, 'B')} of a GPU while it is not in turn"
        yield Fact("memory", what, ("resident_bytes", role, "memory"), figures={"bytes": float(held)})


def _predicted(envelope: Envelope, metric: str) -> float | None:
    return next((row.value for row in envelope.predictions if row.metric == metric), None)


def _sides(envelope: Envelope, data: dict[str, Any]) -> Iterator[Fact]:
    """Generation and training of an iteration, and which of them it waits for."""
    whole, stopped = _predicted(envelope, "iteration_time_s"), _stopped_s(data)
    for name in ("generation", "training"):
        part = _predicted(envelope, f"{name}_s")
        if whole and part is not None:
            share = (part + stopped) / whole
            state = f"{format_si(whole - part - stopped, 's')} to spare"
            if share >= 0.999:
                state = "the iteration waits for it" + (" and for new weights" if stopped else "")
            if data.get("arrangement") == "colocated":
                state = f"{100 * share:.0f} % of it, in turn with the rest"
            what = f"{name} takes {format_si(part, 's')} of the {format_si(whole, 's')} of an iteration: {state}"
            about: tuple[str, ...] = (
                "objective",
                "iteration_time_s",
                name,
                f"{name}_s",
                "arrangement",
                "synchrony",
                "phases",
                "step",
            )
            yield Fact("binding" if share >= NEAR else "time", what, about, figures={"share": share})
    ahead = data.get("staleness")
    what = f"{data.get('arrangement')}, {data.get('synchrony')}: generation runs {ahead} iterations ahead of training"
    about = ("arrangement", "synchrony", "staleness", "partial_rollouts", "in_flight_updates")
    yield Fact("limit", what if ahead else f"{data.get('arrangement')}, {data.get('synchrony')}", about)


def _split(envelope: Envelope, data: dict[str, Any]) -> Iterator[Fact]:
    """Why so many GPUs generate and so many train, and what of either side would move it."""
    whole, generation, training = (
        _predicted(envelope, name) for name in ("iteration_time_s", "generation_s", "training_s")
    )
    if data.get("arrangement") != "disaggregated" or not whole or not generation or not training:
        return
    about = ("arrangement", "roles", "replicas", "rollout", "actor", "split", "gpus")
    scoring = data.get("served_scoring") or {}
    served = scoring.get("busy_s", {})
    serving = sum(_devices(role) for role in data["roles"] if role["name"] in served)
    handed_parts = {role["name"] for role in data["roles"] if role["limits"].get("takes") == "batches"}
    what = f"{_gpus(data, 'rollout')} GPUs generate and {_gpus(data, 'actor')} train"
    own = [role for role in data["roles"] if role["limits"].get("gpus") == "own"]
    what += "".join(f" the actor, {_devices(role)} the {role['name']}" for role in own)
    what += f" beside {serving} that serve" if serving else ""
    if data.get("synchrony") != "asynchronous":
        yield Fact("limit", f"{what}, each waiting while the other works", about)
        return
    handed, flow = _handed_s(data), data.get("in_flight_updates")
    trains = " and ".join(["training", *(f"scoring by {part}" for part in sorted(handed_parts & set(served)))])
    seconds = {
        "generation": generation + _stopped_s(data),
        trains: training + handed + float(scoring.get("handed_s", 0.0)),
    }
    seconds |= {f"scoring by {part}": float(busy) for part, busy in served.items() if part not in handed_parts}
    binds, spare, *_ = sorted(seconds, key=lambda side: seconds[side], reverse=True)
    if flow and whole > (1.0 + EVEN) * seconds[binds] + handed:
        yield from _staleness(flow, what, 1.0 - seconds[binds] / whole, about)
        return
    if flow:  # as many batches are under way as staleness allows, and one that is trained on
        seconds["generation"] = max(generation, float(flow["residence_s"]) / (int(data["staleness"]) + 1))
        binds, spare, *_ = sorted(seconds, key=lambda side: seconds[side], reverse=True)
    longer = seconds[binds] / seconds[spare] - 1.0
    state = f"{binds} binds; {spare} may take {100 * longer:.0f} % longer before the iteration waits for it"
    state = state if longer >= EVEN else "both sides take about as long, so that neither wants GPUs of the other"
    yield Fact("limit", f"{what}: {state}", about, figures={"longer": longer})
    if longer >= EVEN:
        saved = 1.0 - seconds[spare] / seconds[binds]
        what = f"shorter {binds} makes iterations shorter by {100 * saved:.0f} % at most, where {spare} binds"
        yield Fact("change", what, about, figures={"saved": saved})


def _handed_s(data: dict[str, Any]) -> float:
    """What handing over new weights keeps a trainer from."""
    return 0.0 if data["weight_sync"]["overlapped"] else float(data["weight_sync"]["duration_s"])


def _stopped_s(data: dict[str, Any]) -> float:
    """What handing over keeps generators that run ahead from too; those in flight have it in how samples flow."""
    ahead = data.get("synchrony") == "asynchronous" and not data.get("in_flight_updates")
    return _handed_s(data) if ahead else 0.0


def _staleness(flow: dict[str, Any], what: str, saved: float, about: tuple[str, ...]) -> Iterator[Fact]:
    """Samples that flow are trained on too late for either side to be busy; `saved` were it not for that."""
    residence = format_si(float(flow["residence_s"]), "s")
    state = f"neither side binds, but staleness: a batch is under way for {residence} before it is trained on"
    about = (*about, "staleness", "in_flight_updates")
    yield Fact("limit", f"{what}: {state}", about)
    change = f"a larger `max_staleness` makes iterations shorter by {100 * saved:.0f} % at most"
    yield Fact("change", change, about, figures={"saved": saved})


def _gpus(data: dict[str, Any], function: str) -> int:
    return sum(_devices(role) for role in data["roles"] if role["function"] == function)


def _devices(role: dict[str, Any]) -> int:
    cut: dict[str, int] = role["parallelism"]
    return int(role["replicas"]) * math.prod(cut.get(name, 1) for name in ("tp", "pp", "cp", "dp"))


def _phases(envelope: Envelope, data: dict[str, Any]) -> Iterator[Fact]:
    whole = _predicted(envelope, "iteration_time_s") or 0.0
    for phase in data.get("phases") or ():
        seconds = phase.get("duration_s")
        if seconds:
            share = f" ({100 * seconds / whole:.0f} % of an iteration)" if whole else ""
            what = f"{phase['name']}: {format_si(seconds, 's')}{share} on {', '.join(phase['roles']) or 'no role'}"
            yield Fact("time", what, ("phases", "step", *phase["roles"]), figures={"duration_s": seconds})


def _critic(data: dict[str, Any]) -> Iterator[Fact]:
    """Which of actor and critic the other waits for, where both train at the same time on GPUs of their own."""
    if not any(role["name"] == "critic" and role["limits"].get("gpus") == "own" for role in data["roles"]):
        return
    seconds = dict.fromkeys(("actor", "critic"), 0.0)
    for phase in data.get("phases") or ():
        for role in set(phase["roles"]) & set(seconds):
            seconds[role] += phase["duration_s"] or 0.0
    first, last = sorted(seconds, key=lambda role: seconds[role])
    spare_s = seconds[last] - seconds[first]
    what = f"actor and critic train at the same time: the {first} is done {format_si(spare_s, 's')} before the {last}"
    what = what if spare_s > EVEN * seconds[last] else "actor and critic train at the same time, and take about as long"
    yield Fact("time", what, ("actor", "critic", "roles", "critic_gpus", "phases"), figures={"waits_s": spare_s})


def _sync(envelope: Envelope, data: dict[str, Any]) -> Iterator[Fact]:
    sync = data["weight_sync"]
    whole = _predicted(envelope, "iteration_time_s") or 0.0
    share = f", {100 * sync['duration_s'] / whole:.1f} % of an iteration" if whole else ""
    shown = "behind generation" if sync["overlapped"] else "in the way of both"
    what = (
        f"new weights reach the generators by {sync['method']} in {format_si(sync['duration_s'], 's')}{share}, {shown}"
    )
    yield Fact("time", what, ("weight_sync", "objective"), figures={"duration_s": sync["duration_s"]})


def _turns(data: dict[str, Any]) -> Iterator[Fact]:
    """What moves between GPUs and their hosts, where a plan says so."""
    taken = data.get("turns")
    if not taken:
        return
    kept = "on the host" if taken["engine_weights"] == "host" else "dropped"
    what = (
        f"weights of engines are {kept} while training is in turn; moves to the host and back take"
        f" {format_si(taken['moved_s'], 's')} an iteration, and it holds {format_si(taken['host_bytes'], 'B')} for each"
        f" GPU of {format_si(taken['host_capacity_bytes'], 'B')}"
    )
    about = ("turns", "engine_sleep", "memory", "objective")
    yield Fact("time", what, about, figures={"moved_s": float(taken["moved_s"])})


def _savings(data: dict[str, Any]) -> Iterator[Fact]:
    for field, (words, with_it, without) in _SAVINGS.items():
        part = data.get(field)
        if part and part.get(without):
            saved = 1.0 - part[with_it] / part[without]
            what = f"{words}: {format_si(part[with_it], 's')} in place of {format_si(part[without], 's')}"
            yield Fact("worth", f"{what} ({100 * saved:.1f} % less)", (field, "objective"), figures={"saved": saved})
    served = data.get("served_scoring")
    if served:
        yield from _served(data, served)
    partial = data.get("partial_rollouts")
    if partial:
        what = (
            f"{partial['carried']:.4g} samples go on in the next iteration, at most {partial['oldest']} iterations old"
        )
        yield Fact("worth", what, ("partial_rollouts", "staleness"))
    for name, scale in (data.get("rollout_scales") or {}).items():
        what = f"{name}: engines take {scale:.3g} times the fitted curve in simulation, and are priced so"
        yield Fact("time", what, ("rollout_scales", "objective"), figures={"scale": scale})
    flow = data.get("in_flight_updates")
    if flow:
        what = (
            f"at most {flow['samples']} samples are under way and no rollout is ended: a batch is done every "
            f"{format_si(flow['period_s'], 's')}, {format_si(flow['residence_s'], 's')} after it may begin"
        )
        yield Fact(
            "worth", what, ("in_flight_updates", "staleness", "objective"), figures={"period_s": flow["period_s"]}
        )


def _served(data: dict[str, Any], served: dict[str, Any]) -> Iterator[Fact]:
    """What servers that score take, and what the iteration waits for them."""
    wait_s, flow = served["scored_s"] - served["generated_s"], data.get("in_flight_updates")
    what = f"the last sample is scored {format_si(wait_s, 's')} after it is generated"
    if wait_s:
        yield Fact("time", what, ("served_scoring", "objective", *served["busy_s"]), figures={"waits_s": wait_s})
    rollout_s, rollout = (flow["period_s"], "each batch") if flow else (served["scored_s"], "a rollout")
    for part, busy_s in served["busy_s"].items():
        engines = next((role for role in data["roles"] if role["name"] == part), None)
        who = f"{engines['replicas']} engines of the {part}" if engines else f"workers of the {part}"
        if engines and engines["limits"].get("takes") == "batches":
            what = f"training waits for {who}, which it hands its batch: {format_si(served['handed_s'], 's')} with all"
            about = ("served_scoring", "roles", part, "replicas")
            yield Fact("time", f"{what} such parts", about, figures={"waits_s": served["handed_s"]})
            continue
        share = busy_s / rollout_s
        what = f"{who} work {format_si(busy_s, 's')} of the {format_si(rollout_s, 's')} of {rollout}"
        what += f"; a sample waits {format_si(served['waited_s'][part], 's')} for its score"
        about = ("served_scoring", "roles", part, "replicas")
        yield Fact("binding" if share >= NEAR else "worth", what, about, figures={"share": share})


def _periods(data: dict[str, Any]) -> Iterator[Fact]:
    for place, step in enumerate(data.get("horizon") or ()):
        changed = ", ".join(step["changed"]) or "nothing"
        what = f"period {place + 1}: {step['iterations']} iterations of {format_si(step['iteration_s'], 's')}"
        yield Fact("change", f"{what}; changes on entering: {changed}", ("horizon", "running"))
