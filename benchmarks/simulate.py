"""Speed of `planner simulate`: the compiled loop, a whole process, the first compilation, and a large fleet.

The trace is Azure's conversations (../shared/data/traces), the model Llama 3.1 8B on H100. CPU seconds of one core.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from inputs import trace_file

from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.operation import ElasticEngines
from planner.simulate.fleet.step_grid import StepGrid, step_grid
from planner.simulate.loop.fields import NUM_COMPLETE, STEP_COUNT
from planner.simulate.loop.state import RunState
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.trace_facts import sample
from planner.simulate.requests.traces import Trace, read_trace
from planner.simulate.run.engine import initial_state, run_to_end, simulate

TRACE = ("azure_llm_2023_conv.csv.gz", "azure-conversation")
REQUESTS = 10_000
FLEET, FLEET_REQUESTS = 128, 1_000_000
HALF, HALF_REQUESTS = 64, 200_000
KV_TOKENS = 400_000
CASES = ((1, 1024, 1024), (16, 1024, 1024), (64, 1024, 1024), (256, 8192, 1024))  # concurrency, isl, osl
PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 1}]}
workloads:
  - {input_tokens: {mean: 1155, cv: 0.96}, output_tokens: {mean: 211, cv: 0.77}}
objective: {maximize: tokens_per_s_per_gpu}
options: {modes: [colocated], max_batch: [128], chunk_tokens: [2048]}
"""


def grid(longest_tokens: int, chunk_tokens: int = 2048) -> StepGrid:
    """Step times of one H100."""
    node, arch, calibration = find_node("h100"), find_model("meta-llama/Llama-3.1-8B-Instruct"), load_calibration()
    pool = Pool("h100", node, 1)
    pricer = make_pricer(pool, arch, engine="vllm", version=None, calibration=calibration, store=None)
    engine = calibration.engine("vllm")
    return step_grid(
        arch, pricer, Shards.of(1), engine, most_sequences=256, longest_tokens=longest_tokens, chunk_tokens=chunk_tokens
    )


def loop(fleet: Fleet, requests: Requests) -> tuple[float, RunState]:
    """CPU seconds of the compiled loop alone, and what it left."""
    arrays = initial_state(fleet, requests, 0, float("inf"), 2**62)
    begin = time.process_time()
    run_to_end(fleet, requests, arrays)
    return time.process_time() - begin, arrays


def report(what: str, fleet: Fleet, requests: Requests) -> None:
    """One line on the loop."""
    seconds, arrays = loop(fleet, requests)
    steps, done = int(arrays.instance[:, STEP_COUNT].sum()), int(arrays.run[NUM_COMPLETE])
    rates = f"{done / seconds:12,.0f} requests/s {steps / seconds:14,.0f} steps/s"
    print(f"{what:52} {seconds:7.3f} CPU-s {rates}   {done:,} of {len(requests):,} requests, {steps:,} steps")


def closed_loops(step_times: StepGrid) -> None:
    """Milliseconds of one closed loop of equal requests, set-up and mean times included."""
    for concurrency, isl, osl in CASES:
        runs, count, begin = 50, 5 * concurrency, time.process_time()
        fleet = Fleet((Instance(step_times, 2**50, token_budget=2048, most_sequences=concurrency),))
        for _ in range(runs):
            requests = Requests.closed_loop(np.full(count, isl), np.full(count, osl), clients=concurrency)
            result = simulate(fleet, requests)
            result.ttft_s.mean(), result.tpot_s.mean()
        spent = (time.process_time() - begin) / runs * 1e3
        print(f"closed loop, {concurrency} clients, {isl} in, {osl} out: {spent:.2f} ms for {count} requests")


def process(cache: str) -> tuple[float, float]:
    """CPU seconds and MB of a whole `planner simulate`."""
    with tempfile.TemporaryDirectory() as folder:
        problem, plan = Path(folder) / "problem.yaml", Path(folder) / "plan.json"
        problem.write_text(PROBLEM)
        environment = {**os.environ, "PLANNER_NO_PROGRESS": "1", "PLANNER_CACHE_DIR": cache}
        run = [sys.executable, "-m", "planner"]
        solve = [*run, "solve", str(problem), "--level", "static", "-o", str(plan)]
        subprocess.run(solve, check=True, capture_output=True, env=environment)
        plan.write_text(plan.read_text().replace('"max_batch": 128', '"max_batch": 256'))  # more than fit at their mean
        command = [*run, "simulate", str(plan), "--trace", str(trace_file(*TRACE)), "--first", str(REQUESTS)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"planner simulate exited {child.returncode}")
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def main() -> None:
    """Prints all figures."""
    with (
        tempfile.TemporaryDirectory() as cache
    ):  # first, since a child is charged with the memory that it was born with
        first_s, _ = process(cache)
        warm_s, megabytes = process(cache)
    print(f"whole process: {warm_s:.2f} CPU-s, {megabytes:.0f} MB; first run of a machine {first_s:.1f} CPU-s")
    trace = read_trace(trace_file(*TRACE))
    azure = trace.first(REQUESTS)
    step_times = grid(int((trace.input_tokens + trace.output_tokens).max()))
    instance = Instance(step_times, KV_TOKENS, token_budget=2048, most_sequences=256)
    loop(Fleet((instance,)), azure.requests())
    report("Azure conversations, one H100, 5.5 requests/s", Fleet((instance,)), azure.requests())
    report("the same at three times the rate", Fleet((instance,)), azure.at_rate(3.0).requests())
    whole = Instance(grid(int(step_times.contexts[-1]), 8 * 2048), KV_TOKENS, token_budget=2048, most_sequences=256)
    report(
        "8 elastic instances at eight times the rate",
        Fleet((whole,) * 8, elastic=ElasticEngines()),
        azure.at_rate(8.0).requests(),
    )
    report(
        f"{HALF} instances, least loaded",
        Fleet((instance,) * HALF),
        sample(trace, HALF_REQUESTS, rate_per_s=HALF * 8.0).requests(),
    )
    large: Trace = sample(trace, FLEET_REQUESTS, rate_per_s=FLEET * 8.0)
    report(f"{FLEET} instances, least loaded", Fleet((instance,) * FLEET), large.requests())
    closed_loops(step_times)
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB at most")


if __name__ == "__main__":
    main()
