"""A fixed number of clients as the stream of requests that they come to: each sends its next when it has its answer."""

from dataclasses import replace

from planner.audit.likely import case_of
from planner.costs.rates.pricer import open_store, serving_tables
from planner.documents.units import format_si, significant
from planner.errors import PlannerError
from planner.estimate.case import Refused
from planner.estimate.evaluate import Estimate, Interval, evaluate
from planner.importing.plans.question import Question
from planner.importing.plans.serving import serving_case
from planner.importing.records import Reading


def as_stream(reading: Reading, question: Question) -> tuple[Question, tuple[str, ...]]:
    """The question with the rate at which its clients are served in place of their number, and what says so.

    A question without clients comes back as it is. Raises PlannerError where the deployment cannot be estimated.
    """
    load = question.workload.get("load")
    clients = load.get("concurrency") if isinstance(load, dict) else None
    if clients is None:
        return question, ()
    if not isinstance(clients, int) or clients < 1:
        raise PlannerError(f"must be a number of clients, found `{clients}`", where="load.concurrency", hint="write 64")
    open_question = replace(question, workload={k: v for k, v in question.workload.items() if k != "load"})
    case = serving_case(reading, open_question)
    store = open_store(serving_tables(case.resolved.problem.costs.profiles))
    asked = replace(case_of(case.resolved, case.instances, 0.0), clients=clients)
    (result,) = evaluate([asked], store)
    if isinstance(result, Refused):
        raise PlannerError(result.reason, where="load.concurrency", hint="state a rate: `--workload rate=20/s`")
    rate_per_s = result.output_tokens_per_s_per_gpu * asked.gpus / asked.osl
    stream = replace(question, workload={**open_question.workload, "load": {"rate_per_s": rate_per_s}})
    return stream, (_said(clients, rate_per_s, result),)


def _said(clients: int, rate_per_s: float, result: Estimate) -> str:
    times = (("TTFT", result.ttft_s, result.ttft_s_interval), ("TPOT", result.tpot_s, result.tpot_s_interval))
    shown = ", ".join(f"{name} {format_si(value, 's')}{_ends(ends)}" for name, value, ends in times)
    return (
        f"{clients} clients, each waiting for its answer, are served {significant(rate_per_s)} requests/s ({shown}); "
        "judged as a stream of as many"
    )


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f" [{', '.join(format_si(end, 's') for end in interval)}]"
