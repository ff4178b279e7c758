"""The example of a retrieval workflow: what it costs, beside each stage at its own p95, judged by a slow reference.

    python benchmarks/workflow_rag.py            2,000 requests of each of three streams under the reference
    python benchmarks/workflow_rag.py --quick    600 of one

Sized one by one, a stage takes the cheapest option whose own p95, fed by arrivals as they come, is within its part of
the limits; parts are split so that the whole is cheapest (every split of the options at hand). The reference is the
plain simulator of `tests/oracles` for engines, one object a request, and a heap for functions, on arrivals of its own.
"""

import argparse
import heapq
import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracles"))

from ahead_simulator import AheadSimulator  # noqa: E402 - of the tests
from small_fleets import draw as drawn  # noqa: E402
from step_simulator import StepSimulator  # noqa: E402

from planner.api import solve  # noqa: E402
from planner.arrays import Floats  # noqa: E402
from planner.kinds.registry import find_kind  # noqa: E402
from planner.kinds.workflow.decision import WorkflowDecision  # noqa: E402
from planner.kinds.workflow.graph.candidates import Candidate, Engines, candidates_of, graph_on  # noqa: E402
from planner.kinds.workflow.graph.choose import chosen_stream  # noqa: E402
from planner.kinds.workflow.graph.draws import Stream, draw  # noqa: E402
from planner.kinds.workflow.graph.plan import rows_of  # noqa: E402
from planner.kinds.workflow.graph.setting import GraphSetting, read_setting  # noqa: E402
from planner.load.problems import load_problem  # noqa: E402
from planner.problem.recorded import AtHand  # noqa: E402
from planner.simulate.requests.stream import Requests  # noqa: E402
from planner.solvers.workflow.simulated_graph import SimulatedGraph, Times  # noqa: E402

EXAMPLE = ROOT / "examples" / "workflow-rag.yaml"
UNSEEN = 77_000_000  # seeds of streams that nothing was chosen on, stated of, or checked with


def alone_p95(graph: SimulatedGraph) -> list[list[tuple[float, float]]]:
    """By stage and option, the p95 to first output and to the end, fed by arrivals."""
    rows = []
    for stage in graph.stages:
        times = [option.run(graph.arrival_s_R) for option in stage.options]
        rows.append([(_p95(graph, each.first_s_R), _p95(graph, each.end_s_R)) for each in times])
    return rows


def _p95(graph: SimulatedGraph, times: Floats) -> float:
    return float(np.quantile((times - graph.arrival_s_R)[graph.judged_R], 0.95))


def one_by_one(graph: SimulatedGraph) -> tuple[float, tuple[int, ...]] | None:
    """The cheapest options of a chain whose own p95s add up to no more than each limit."""
    alone, best = alone_p95(graph), None
    for options in itertools.product(*(range(len(stage.options)) for stage in graph.stages)):
        ends = [alone[s][option][1] for s, option in enumerate(options)]
        first = sum(ends[:-1]) + alone[-1][options[-1]][0]
        if all((first if limit.of_first else sum(ends)) <= limit.bound_s for limit in graph.limits):
            cost = sum(graph.stages[s].options[option].cost for s, option in enumerate(options))
            if best is None or cost < best[0]:
                best = cost, options
    return best


def reference(setting: GraphSetting, rows: Sequence[Candidate], engines: Engines, stream: Stream) -> list[Times]:
    """Ends of every stage, by plain Python."""
    times: list[Times] = []
    for stage, row in enumerate(rows):
        parents = setting.parents[stage]
        ready = np.max([times[p].end_s_R for p in parents], axis=0) if parents else stream.arrival_s_R
        times.append(_served(engines, stage, row, stream, ready) if row.served else _called(row, stage, stream, ready))
    return times


def _called(row: Candidate, stage: int, stream: Stream, ready_s_R: Floats) -> Times:
    assert row.function is not None
    calls, end = stream.calls_s(stage, row.function.latency), np.empty(len(ready_s_R))
    free = [0.0] * ((row.servers or len(ready_s_R)) * row.function.slots)
    for r in sorted(range(len(ready_s_R)), key=lambda r: (ready_s_R[r], r)):
        end[r] = max(heapq.heappop(free), float(ready_s_R[r])) + calls[r]
        heapq.heappush(free, float(end[r]))
    return Times(end, end)


def _served(engines: Engines, stage: int, row: Candidate, stream: Stream, ready_s_R: Floats) -> Times:
    assert row.served is not None
    fleet, order = engines.fleet(stage, row.served), np.argsort(ready_s_R, kind="stable")
    inputs, outputs = stream.tokens[stage]
    requests = Requests.open_stream(ready_s_R[order], inputs[order], outputs[order])
    ahead = any(instance.asynchronous for instance in fleet.instances)
    simulator = (AheadSimulator if ahead else StepSimulator)(fleet, requests, drawn)
    simulator.run()
    first, end = np.empty(len(order)), np.empty(len(order))
    first[order] = [request.first_s for request in simulator.requests]
    end[order] = [request.finished_s for request in simulator.requests]
    return Times(first, end)


def own_arrivals(stream: Stream, rate_per_s: float, seed: int) -> Stream:
    """The stream with Poisson arrivals of another generator."""
    other, now, times = random.Random(seed), 0.0, []
    for _ in range(len(stream.arrival_s_R)):
        now += other.expovariate(rate_per_s)
        times.append(now)
    return replace(stream, arrival_s_R=np.array(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    count, streams = (600, 1) if quick else (2000, 3)
    resolved = load_problem(EXAMPLE)
    setting, began = read_setting(resolved), time.process_time()
    plan = solve(resolved)
    solved_s = time.process_time() - began
    decision = find_kind("workflow").decision.model_validate(plan.decision)
    assert isinstance(decision, WorkflowDecision)
    candidates, chosen = candidates_of(setting), chosen_stream(setting)
    apart = one_by_one(graph_on(setting, candidates, Engines(setting, (chosen,)), chosen))
    certificate = plan.certificate
    whole = f"{certificate.objective.value:.2f} USD/h, bound {certificate.bound:.2f}"
    print(f"whole       {whole}, {solved_s:.1f} CPU-s")
    print("one by one  " + (f"{apart[0]:.2f} USD/h" if apart else "no options at hand keep the limits so"))
    rows = rows_of(setting, decision, AtHand())
    short = replace(setting, options=setting.options.model_copy(update={"simulated_requests": count}))
    for number in range(streams):
        stream = own_arrivals(draw(short, UNSEEN + number, fresh=True), setting.rate_per_s, number)
        began = time.process_time()
        times = reference(short, rows, Engines(short, (chosen, stream)), stream)
        for limit in setting.limits:
            taken = (times[-1].first_s_R if limit.of_first else times[-1].end_s_R) - stream.arrival_s_R
            share = float(np.mean((taken <= limit.bound_s)[stream.judged_R]))
            name = "ttft" if limit.of_first else "latency"
            print(
                f"reference {number}: {share:.2%} within {name} {limit.bound_s:g} s (wanted {limit.share:.0%})",
                end="; ",
            )
        print(f"{time.process_time() - began:.1f} CPU-s")


if __name__ == "__main__":
    main()
