"""`planner rl circuits`: links between pods that follow the phases of an RL plan."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Json, Output, RlPlanFile, seconds
from planner.cli.output import EXIT_NO, write_result
from planner.cli.render.columns import table
from planner.documents.units import BYTES_PER_S, format_si, parse_quantity
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.hardware.cluster import Pool
    from planner.plan.schema import Decision, Envelope
    from planner.solvers.topology.circuits import Circuits


def circuits(
    plan: RlPlanFile,
    nodes_per_pod: Annotated[
        int | None, typer.Option("--nodes-per-pod", min=1, help="Successive nodes in a pod; racks of the cluster.")
    ] = None,
    ports: Annotated[int | None, typer.Option("--ports", min=1, help="Links of a pod; those of the cluster.")] = None,
    link: Annotated[
        str | None, typer.Option("--link", metavar="RATE", help="Of a link and direction; the cluster's, or 50GB/s.")
    ] = None,
    switching: Annotated[
        str | None, typer.Option("--switching", metavar="TIME", help="Of a change; the cluster's, or 20ms.")
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Find the circuits between pods for training and weight sync whose round is shortest, changes included.

    Pods and circuits are those of `cluster.pools[].topology` where the options do not say others. Exits 1 where a pod
    exchanges with more pods in one phase than it has ports.

    Examples:

      planner rl circuits plan.json

      planner rl circuits plan.json --nodes-per-pod 4 --ports 16

      planner rl circuits plan.json --nodes-per-pod 2 --ports 8 --link 100GB/s --switching 1ms --json
    """
    from planner.load.problems import load_plan
    from planner.solvers.topology.circuits import circuits as solved

    envelope, decision = load_plan(plan)
    problem, phases = _problem_of(envelope, decision, nodes_per_pod, ports, link, switching)
    result = solved(problem)
    if result.solution is None:
        document: dict[str, Any] = {
            "schema": "planner.infeasible/1", "conflict": [{"limit": f"ports = {problem.ports}"}]
        }  # fmt: skip
        needed = max(sum(pod in pair for pair in phase) for phase in problem.phases for pod in range(problem.pods))
        text = f"no circuits: a pod exchanges with {needed} others in one phase and has {problem.ports} ports"
        write_result(document, lambda: text, output, as_json=as_json)
        return EXIT_NO
    rows = [
        {"phase": name, "links": [[*pair, count] for pair, count in sorted(links.items())]}
        for name, links in zip(phases, result.solution.links, strict=True)
    ]
    document = {
        "schema": "planner.rl_circuits/1",
        "status": result.status,
        "round_s": result.objective,
        "bound_s": result.bound,
        "changes": result.solution.changes,
        "phases": rows,
    }
    write_result(document, lambda: _text(problem, phases, document), output, as_json=as_json)
    return 0


def _problem_of(
    envelope: "Envelope",
    decision: "Decision",
    nodes_per_pod: int | None,
    ports: int | None,
    link: str | None,
    switching: str | None,
) -> "tuple[Circuits, tuple[str, ...]]":
    """What phases of a plan exchange between pods, and their names; what is not given is the cluster's."""
    from planner.hardware.topology import CircuitSwitch
    from planner.reliability.lost_nodes import pools_of
    from planner.rl.circuits import Pods, circuits_of_plan

    if envelope.kind != "rl":
        hint = "give a plan of kind `rl`"
        raise PlannerError(f"a plan of kind `{envelope.kind}` has no phases of RL", where="kind", hint=hint)
    optimizer_steps = envelope.decision.get("minibatches", 1)
    assert isinstance(optimizer_steps, int)
    pools = pools_of(envelope).values()
    wired = next((pool.wiring.circuits for pool in pools if pool.wiring.circuits is not None), None)
    wired = wired or CircuitSwitch(ports or 0, 50e9, 20e-3)
    ports = ports or wired.ports
    if not ports:
        raise PlannerError("nobody says how many links a pod has room for", where="--ports", hint="write `--ports 16`")
    pods = Pods(
        {pool.name: pool.node.num_gpus for pool in pools},
        {pool.name: _pods_of(pool, nodes_per_pod) for pool in pools},
    )
    return circuits_of_plan(
        decision,
        pods,
        optimizer_steps=optimizer_steps,
        ports=ports,
        link_bytes_per_s=wired.link_bytes_per_s if link is None else parse_quantity(link, BYTES_PER_S, where="--link"),
        switching_s=wired.switching_s if switching is None else seconds(switching, "--switching") or 0.0,
    )


def _pods_of(pool: "Pool", nodes_per_pod: int | None) -> tuple[int, ...]:
    """The pod of every node: so many successive ones, or the racks of the cluster."""
    if nodes_per_pod is not None:
        return tuple(node // nodes_per_pod for node in range(pool.num_nodes))
    if not pool.wiring.racks:
        what = f"pool `{pool.name}` lists no racks"
        raise PlannerError(what, where="--nodes-per-pod", hint="write `--nodes-per-pod 4`, or `topology.racks`")
    return tuple(pool.rack_of_node.tolist())


def _text(problem: "Circuits", phases: tuple[str, ...], document: dict[str, Any]) -> str:
    rows = []
    for name, demand, row in zip(phases, problem.phases, document["phases"], strict=True):
        for a, b, count in row["links"]:
            rows.append((name, f"{a} - {b}", format_si(demand.get((a, b), 0.0), "B"), str(count)))
    lines = [table(("phase", "pods", "exchanged", "links"), rows), ""]
    lines.append(
        f"  {format_si(document['round_s'], 's')} a round between pods, {document['changes']} changes of circuits, "
        f"{document['status']} (bound {format_si(document['bound_s'], 's')})"
    )
    return "\n".join(lines)
