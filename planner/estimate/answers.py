"""Estimates cases block by block, so that memory stays bounded, and writes each prediction as a line of JSON."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice

from planner.costs.rates.pricer import open_store, serving_tables
from planner.estimate.case import Case, Refused
from planner.estimate.evaluate import Estimate, evaluate

AT_A_TIME = 50_000  # cases in memory together; larger batches share more of the pricing


def answer_lines(
    cases: Iterable[Case | Refused], profiles: tuple[str, ...], *, percentiles: bool = False
) -> Iterator[str]:
    """One line of JSON for every case, in order."""
    store = open_store(serving_tables(profiles))
    remaining = iter(cases)
    while block := list(islice(remaining, AT_A_TIME)):
        sound = [case for case in block if isinstance(case, Case)]
        results = iter(evaluate(sound, store, percentiles=percentiles))
        for case in block:
            yield _line(case.id, next(results) if isinstance(case, Case) else case)


def _line(name: str, result: Estimate | Refused) -> str:
    if isinstance(result, Refused):
        return json.dumps({"id": name, "error": result.reason})
    prediction: dict[str, object] = {
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "ttft_s_interval": result.ttft_s_interval,
        "tpot_s_interval": result.tpot_s_interval,
        "output_tokens_per_s_per_gpu": result.output_tokens_per_s_per_gpu,
        "memory_bytes": result.memory_bytes,
    }
    if result.percentiles is not None:
        prediction["percentiles"] = result.percentiles
    return json.dumps({"id": name, "prediction": prediction})
