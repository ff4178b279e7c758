"""Audits of deployments under a load, beside one rule for all: 2,048 tokens a step.

Every deployment is judged as it runs, as the audit changes it, and with the rule in place of its own budget, all on
streams that nothing was chosen on. CPU seconds are of the audit alone, user and system, after compilation.

    python benchmarks/audits.py [--quick]
"""

import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from planner.audit.serving import audit_serving
from planner.importing.files import read_files
from planner.importing.plans.question import Question
from planner.importing.plans.serving import ServingCase, serving_case
from planner.kinds.serve.deployed.bench import Bench
from planner.kinds.serve.deployed.instances import Instances, outcome_of, setting_around
from planner.progress import Limits

RULE = 2048
FRESH_SEED = 7_000
SCRIPT = "#!/bin/bash\nvllm serve {model} --tensor-parallel-size {tp} --max-num-seqs {seqs} {more}\n"
QUESTIONS = (
    ("four nodes of 8 H100, Llama-3.3-70B TP8 x 4", "meta-llama/Llama-3.3-70B-Instruct", 8, 4, 256, "",
     "input=1500,output=300,rate=20/s", "ttft.p99=2s,itl.p99=50ms", "gpu=h100,nodes=4"),
    ("one node of 8 H100, Qwen3-32B TP2 x 4", "Qwen/Qwen3-32B", 2, 4, 64, "--max-num-batched-tokens 16384",
     "input=3000,output=200,rate=8/s", "ttft.p95=2s,itl.p95=60ms", "gpu=h100,nodes=1"),
    ("one node of 8 H200, Qwen3-30B-A3B TP4 x 2", "Qwen/Qwen3-30B-A3B", 4, 2, 32, "",
     "input=800,output=400,rate=40/s", "ttft.p95=1s,tpot.p95=25ms", "gpu=h200,nodes=1"),
    ("one node of 8 H100, Llama-3.1-8B TP1 x 8", "meta-llama/Llama-3.1-8B-Instruct", 1, 8, 16, "",
     "input=500,output=250,rate=60/s", "ttft.p95=1s,tpot.p95=30ms", "gpu=h100,nodes=1"),
)  # fmt: skip


def cpu_s() -> float:
    """User and system seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def kept_per_s(case: ServingCase, instances: Sequence[Instances], rate_per_s: float) -> float:
    """The rate within the limits, on streams of another seed than those that the audit chose on."""
    problem = case.resolved.problem.model_copy(update={"seed": FRESH_SEED})
    setting = setting_around(replace(case.resolved, problem=problem), instances)
    bench = Bench.of(setting, Limits())
    variants = bench.variants(outcome_of(setting, instances, rate_per_s))
    load = bench.load(variants)
    while load.scale >= 1.59:
        wider = bench.load(variants, needed=load.scale)
        if wider.scale <= load.scale * 1.001:
            break
        load = wider
    return load.scale * rate_per_s


def rows(questions: Sequence[tuple[object, ...]]) -> Iterator[tuple[str, float, float, float, float, bool, float]]:
    """Name, rates as it runs, changed and by the rule, the rate asked for, whether the change keeps it, CPU seconds."""
    for name, model, tp, replicas, seqs, more, workload, slo, cluster in questions:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "serve.sh"
            file.write_text(SCRIPT.format(model=model, tp=tp, seqs=seqs, more=more))
            reading = read_files([str(file)], {})
        fields = {**reading.fields, "roles": [{**reading.fields["roles"][0], "replicas": replicas}]}
        reading = replace(reading, fields=fields)
        question = Question.of(str(workload), str(slo), str(cluster))
        started = cpu_s()
        answers = audit_serving(reading, question, Limits())
        taken = cpu_s() - started
        case = serving_case(reading, question)
        rate = case.rate_per_s or 0.0
        changed = answers.instances or case.instances
        ruled = [replace(part, chunk_tokens=RULE) for part in case.instances]
        now, after, by_rule = (kept_per_s(case, each, rate) for each in (case.instances, changed, ruled))
        yield str(name), now, after, by_rule, rate, after >= rate, taken


def main() -> None:
    """Prints a row a question."""
    print(f"{'deployment':<46} {'asked':>7} {'runs':>7} {'changed':>8} {'rule':>7}  keeps  CPU-s")
    for name, runs, changed, ruled, rate, keeps, taken in rows(QUESTIONS[:1] if "--quick" in sys.argv else QUESTIONS):
        told = "yes" if keeps else "no"
        print(f"{name:<46} {rate:7.1f} {runs:7.2f} {changed:8.2f} {ruled:7.2f}  {told:>5}  {taken:5.1f}", flush=True)


if __name__ == "__main__":
    main()
