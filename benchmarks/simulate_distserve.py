"""The simulator against DistServe: real runs, the search over all placements, and reversals of a steady-state order.

Costs are DistServe's own fits to A100-80GB (simdistserve/estimators/profile_data of LLMServe/DistServe, commit 20a1633,
Apache-2.0). `--requests FILE` names the requests of its runs on ShareGPT (simdistserve/benchmarks/alignment) as a
CSV: gap (of mean 1), input_tokens, output_tokens. Without it, its real runs are left out, and lengths of ShareGPT in
../shared with Poisson arrivals stand in for the rest. Table 2, limits and placements: Zhong et al., OSDI 2024
(arXiv:2401.09670). What its authors left out: costs of degrees that were not profiled lie on the line through the
nearest ones in logarithms; those of OPT-175B are OPT-66B's times the ratio of parameters (pairs of tokens: of layers
times width). CPU seconds of one core. `--reversals FILE` writes every pair of placements that steady state orders the
other way.
"""

import csv
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from distserve_placement import Phase, Segment, Unit, high_affinity, low_affinity_units
from inputs import trace_file
from scipy.optimize import brentq

from planner.arrays import Floats, Ints
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.placements import Placement, PlacementSearch, reversals, search_placements
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.traces import read_trace
from planner.simulate.run.attainment import Draws, attainment
from planner.simulate.run.engine import simulate
from planner.solvers.stochastic.queueing import wait_quantile_s

DATA = Path(__file__).parent / "data"
STAND_INS = {  # a trace, and the built-in shape where it is absent
    "short": ("sharegpt_lengths_helix.csv.gz", "sharegpt"),
    "long": ("arxiv_summarization_lengths_vidur.csv.gz", "azure-code"),
}
LAYERS_WIDTH = {"opt-13b": 40 * 5120, "opt-66b": 64 * 9216, "opt-175b": 96 * 12288}
PARAMETERS = {"opt-13b": 13e9, "opt-66b": 66e9, "opt-175b": 175e9}
DISPATCH_S, DISPATCH_TOKEN_S = 2e-3, 1e-7  # of a step: Ray (simdistserve/base/worker.py)
STAGE_S = 1e-3  # of a prefill step, times the stages squared: what simdistserve adds for pipelines
MOST_SEQUENCES = 1024
SEARCH_REQUESTS = 1000
TABLE_2 = ((1.0, 97.0, 100.0), (1.5, 65.5, 100.0), (2.0, 52.8, 99.3), (2.5, 44.9, 87.3), (3.0, 36.7, 83.0),
           (3.5, 27.8, 77.3), (4.0, 23.6, 70.0))  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One of DistServe's workloads with its limits and the placement that was published."""

    name: str
    model: str
    lengths: str
    ttft_s: float
    tpot_s: float
    published: Unit
    nodes: int = 1

    @property
    def slo(self) -> SloSpec:
        """Nine of ten requests keep both limits."""
        return SloSpec.model_validate(
            {"ttft": {"p90_s": self.ttft_s}, "tpot": {"p90_s": self.tpot_s}, "attainment": 0.9}
        )


CASES = (
    Case("OPT-13B, ShareGPT", "opt-13b", "sharegpt", 0.2, 0.1, Unit(Segment(2, 1), Segment(1, 1))),
    Case("OPT-66B, ShareGPT", "opt-66b", "sharegpt", 0.4, 0.1, Unit(Segment(4, 1), Segment(2, 2))),
    Case("OPT-175B, ShareGPT", "opt-175b", "sharegpt", 4.0, 0.2, Unit(Segment(3, 1), Segment(4, 1), 3), nodes=3),
    Case("OPT-66B, short prompts (HumanEval)", "opt-66b", "short", 0.125, 0.2, Unit(Segment(4, 1), Segment(2, 2))),
    Case("OPT-66B, long prompts (LongBench)", "opt-66b", "long", 15.0, 0.15, Unit(Segment(4, 1), Segment(2, 2))),
)


@cache
def rows(name: str) -> list[dict[str, str]]:
    """A file of facts."""
    with open(DATA / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def coefficients(engine: str, model: str, tp: int) -> tuple[float, ...]:
    """Milliseconds: prefill base, token, square; decode base, context, sequence, below 95 sequences and above."""
    if model == "opt-175b":
        scale = PARAMETERS[model] / PARAMETERS["opt-66b"]
        square = LAYERS_WIDTH[model] / LAYERS_WIDTH["opt-66b"]
        factors = (scale, scale, square, scale, square, scale, scale, square, scale)
        return tuple(a * b for a, b in zip(coefficients(engine, "opt-66b", tp), factors, strict=True))
    known = {
        int(row["tp"]): [float(value) for value in list(row.values())[3:]]
        for row in rows("distserve_costs.csv")
        if (row["engine"], row["model"]) == (engine, model)
    }
    if tp in known:
        return tuple(known[tp])
    below, above = sorted(sorted(known, key=lambda other: abs(math.log(other / tp)))[:2])
    power = math.log(tp / below) / math.log(above / below)
    pairs = zip(known[below], known[above], strict=True)
    return tuple(a * (b / a) ** power if a > 0 and b > 0 else a + (b - a) * power for a, b in pairs)


@cache
def kv_tokens(model: str) -> dict[tuple[int, int], int]:
    """Tokens of the KV cache by tp and pp: the shapes that the model fits."""
    return {
        (int(row["tp"]), int(row["pp"])): int(row["kv_tokens"])
        for row in rows("distserve_kv_tokens.csv")
        if row["model"] == model
    }


@cache
def grid(engine: str, model: str, tp: int, pp: int) -> StepGrid:
    """Step times of a whole pass through all stages."""
    base, token, square, *decode = coefficients(engine, model, tp)
    counts, contexts = np.arange(MOST_SEQUENCES + 1.0), np.array([0.0, 4096.0])
    fit = np.where((counts < 95)[:, None], np.array(decode[:3]), np.array(decode[3:]))
    total = counts[:, None] * contexts
    decode_s = (fit[:, :1] + fit[:, 1:2] * (total + counts[:, None]) + fit[:, 2:] * counts[:, None]) / 1e3
    tokens, attended = np.array([0.0, 65536.0]), np.array([0.0, 65536.0])
    t, m = np.meshgrid(tokens, attended, indexing="ij")
    prefill_s = (base + token * t + square * (2.0 * t * m - t)) / 1e3 + STAGE_S * pp**2 + DISPATCH_S
    mixed_s = np.broadcast_to(np.maximum(prefill_s + DISPATCH_TOKEN_S * t, 0.0), (2, 2, 2, 2)).copy()
    batches = np.array([0.0, float(MOST_SEQUENCES)])
    return StepGrid(decode_s + DISPATCH_S + DISPATCH_TOKEN_S * total, mixed_s, batches, contexts, tokens, attended)


@cache
def engine(role: str, model: str, tp: int, pp: int) -> Instance:
    """One of the pp micro-batches of an instance; vLLM of that time prefilled whole prompts before it decoded."""
    cache_tokens = max(kv_tokens(model)[tp, pp] // pp, 1)
    if role == "prefill":
        step = grid("distserve", model, tp, pp)
        return Instance(step, cache_tokens, role=role, token_budget=8192, most_sequences=128, chunked=False)
    if role == "decode":
        return Instance(grid("distserve", model, tp, pp), cache_tokens, role=role, most_sequences=MOST_SEQUENCES)
    return Instance(
        grid("vllm", model, tp, pp), cache_tokens, policy="prefill-first", token_budget=16384,
        most_sequences=MOST_SEQUENCES, chunked=False,
    )  # fmt: skip


def apart(model: str, unit: Unit) -> Fleet:
    """A unit of DistServe; clients see the first token when the prefill ends."""
    prefill, decode = ((part.tp, part.pp * unit.cross) for part in (unit.prefill, unit.decode))
    engines = (engine("prefill", model, *prefill),) * prefill[1] + (engine("decode", model, *decode),) * decode[1]
    return Fleet(engines, first_token_from="prefill")


def vllm(model: str, tp: int, pp: int = 1) -> Fleet:
    """One instance of vLLM."""
    return Fleet((engine("colocated", model, tp, pp),) * pp)


def recorded() -> str | None:
    """The file of DistServe's own requests, where one is named."""
    return sys.argv[sys.argv.index("--requests") + 1] if "--requests" in sys.argv[1:-1] else None


@cache
def own_requests() -> tuple[Floats, Ints, Ints]:
    """Gaps (of mean 1), prompts and outputs of DistServe's runs, or of what stands in for them."""
    path = recorded()
    if path is None:
        inputs, outputs = lengths("short")
        return np.random.default_rng(0).exponential(1.0, len(inputs)), inputs, outputs
    with open(path, newline="", encoding="utf-8") as file:
        table = np.array([[float(value) for value in row.values()] for row in csv.DictReader(file)])
    return table[:, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64)


def own_run(count: int, rate_per_s: float) -> Requests:
    """The first requests at a rate, as DistServe draws them: gaps scaled so that they end on time."""
    gaps, inputs, outputs = own_requests()
    times = np.cumsum(gaps[:count])
    return Requests.open_stream(times * (count / times[-1] / rate_per_s), inputs[:count], outputs[:count])


@cache
def lengths(name: str) -> tuple[Ints, Ints]:
    """Lengths of a workload: of DistServe's own runs, or of the stand-ins in ../shared/data/traces."""
    if name == "sharegpt":
        return own_requests()[1:]
    file, shape = STAND_INS[name]
    trace = read_trace(trace_file(file, shape))
    fits = (trace.input_tokens + trace.output_tokens < 2048) & (trace.input_tokens >= (1 if name == "short" else 1024))
    return trace.input_tokens[fits], trace.output_tokens[fits]


def draws_of(case: Case, count: int = SEARCH_REQUESTS, seed: int = 0) -> Draws:
    """Poisson arrivals with lengths of the case."""
    inputs, outputs = lengths(case.lengths)
    chosen = np.random.default_rng(seed).integers(0, len(inputs), count)
    return Draws.renewal(inputs[chosen], outputs[chosen], seed=seed + 1)


def steady_rate(case: Case, unit: Unit) -> float:
    """Goodput of a unit by M/D/1 at mean lengths: what a formula in place of the simulator would say."""
    inputs, outputs = lengths(case.lengths)
    isl, osl = float(inputs.mean()), float(outputs.mean())
    prefill, decode = ((part.tp, part.pp * unit.cross) for part in (unit.prefill, unit.decode))
    base, token, square, *_ = coefficients("distserve", case.model, prefill[0])
    service_s = (base + token * isl + square * float(np.mean(inputs.astype(float) ** 2))) / 1e3
    service_s += STAGE_S * prefill[1] ** 2 + DISPATCH_S
    if service_s >= case.ttft_s:
        return 0.0
    busy = busy_within(case.ttft_s - service_s, service_s / prefill[1])
    times = grid("distserve", case.model, *decode)
    context = isl + osl / 2.0
    step_s = times.decode_s[:, 0] + (times.decode_s[:, 1] - times.decode_s[:, 0]) * context / times.contexts[1]
    fits = kv_tokens(case.model)[decode] // decode[1] // (isl + osl)
    batch = min(int(np.searchsorted(step_s, case.tpot_s, side="right")) - 1, int(fits))
    if batch < 1:
        return 0.0
    return float(min(busy * prefill[1] / service_s, decode[1] * batch / (osl * step_s[batch])))


def busy_within(wait_s: float, service_s: float) -> float:
    """The utilisation of M/D/1 at which nine waits of ten end within `wait_s`."""
    return float(
        brentq(lambda rho: float(wait_quantile_s(rho, 1.0, service_s, 0.9, cv2_service=0.0)) - wait_s, 0.0, 1.0 - 1e-9)
    )


def placements(case: Case) -> list[tuple[Unit, Placement]]:
    """All units of low affinity whose instances fit, worth their rate per GPU."""
    known = kv_tokens(case.model)
    degrees = {tp for tp, _ in known}, {pp for _, pp in known} | {1}
    segments = [Segment(tp, pp) for tp in sorted(degrees[0]) for pp in sorted(degrees[1]) if tp * pp < 8]
    candidates = []
    for unit in low_affinity_units(segments, nodes=case.nodes, gpus_per_node=8):
        shapes = [(part.tp, part.pp * unit.cross) for part in (unit.prefill, unit.decode)]
        if all(shape in known for shape in shapes):
            name = " ".join(f"tp{tp} pp{pp}" for tp, pp in shapes)
            rate = steady_rate(case, unit)
            candidates.append((unit, Placement(name, partial(apart, case.model, unit), 1.0 / unit.gpus, rate)))
    return candidates


def real_runs() -> Iterator[tuple[str, float, float, float]]:
    """Attainment of OPT-13B's real runs and of simulations of the very same requests."""
    slo = SloSpec.model_validate({"ttft": {"p90_s": 0.2}, "tpot": {"p90_s": 0.1}})
    for row in sorted(rows("distserve_runs.csv"), key=lambda row: (row["engine"], float(row["rate_per_s"]))):
        fleet = apart("opt-13b", CASES[0].published) if row["engine"] == "distserve" else vllm("opt-13b", 1)
        rate, count = float(row["rate_per_s"]), int(row["requests"])
        simulated = 100.0 * attainment(simulate(fleet, own_run(count, rate)), slo)
        yield f"{row['engine']}, {rate:g}/s, {count} requests", float(row["attained_percent"]), simulated, rate


def report_errors(name: str, pairs: list[tuple[float, float]]) -> None:
    """Mean and largest error, and that of saying the mean of what was measured every time."""
    real, simulated = np.array(pairs).T
    trivial = np.abs(real - real.mean())
    error = np.abs(real - simulated)
    print(
        f"  {name}: mean error {error.mean():.1f} points, largest {error.max():.1f}, {int(np.sum(error <= 5.0))} of "
        f"{len(real)} within 5 (the mean of all: {trivial.mean():.1f}, {trivial.max():.1f}, "
        f"{int(np.sum(trivial <= 5.0))} of {len(real)})"
    )


def replay() -> None:
    """Real runs of OPT-13B beside simulations of their requests."""
    print("OPT-13B on A100, the very requests of real runs (200 ms, 100 ms): attainment, real and simulated")
    known: dict[str, list[tuple[float, float]]] = {}
    for name, real, simulated, _ in real_runs():
        print(f"  {name:34} {real:6.1f} {simulated:6.1f}")
        known.setdefault(name.partition(",")[0], []).append((real, simulated))
    for engine_name, pairs in known.items():
        report_errors(engine_name, pairs)


def fidelity() -> None:
    """Real against simulated attainment."""
    if recorded() is not None:
        replay()
    print("Table 2, OPT-66B (400 ms, 100 ms), 300 requests: real and simulated, of DistServe and of vLLM on 4 GPUs")
    slo, table = CASES[1].slo, []
    for rate, real_vllm, real_apart in TABLE_2:
        requests = own_run(300, rate)
        fleets = apart("opt-66b", CASES[1].published), vllm("opt-66b", 4)
        both = [100.0 * attainment(simulate(fleet, requests), slo) for fleet in fleets]
        spread = np.std([100.0 * attainment(simulate(fleets[0], other_run(rate, seed)), slo) for seed in range(10)])
        table.append((real_apart, both[0], real_vllm, both[1]))
        print(
            f"  {rate:.1f}/s  DistServe {real_apart:6.1f} {both[0]:6.1f} (other draws: +-{spread:.1f})"
            f"   vLLM {real_vllm:6.1f} {both[1]:6.1f}"
        )
    report_errors("DistServe", [(row[0], row[1]) for row in table])
    report_errors("vLLM", [(row[2], row[3]) for row in table])


def other_run(rate_per_s: float, seed: int) -> Requests:
    """300 other requests of the same lengths."""
    _, inputs, outputs = own_requests()
    chosen = np.random.default_rng(seed).integers(0, len(inputs), 300)
    return Requests.open_stream(arrivals("poisson", rate_per_s, 300, seed=seed), inputs[chosen], outputs[chosen])


def search_all() -> None:
    """The speed of the search for OPT-66B on 8 GPUs, pruned and not."""
    case, draws = CASES[1], draws_of(CASES[1])
    units = placements(case)
    for everything in (True, False):
        begin = time.process_time()
        search = search_placements([placement for _, placement in units], draws, case.slo, everything=everything)
        seconds = time.process_time() - begin
        how = "every goodput" if everything else "the best alone"
        assert search.best is not None
        print(f"OPT-66B on 8 GPUs, {len(units)} placements, {how}: {seconds:.2f} CPU-s, {search.runs} runs", end="; ")
        print(f"best {units[search.best][1].name}, {search.worth:.3f} requests/s/GPU, bound {search.bound:.3f}")
    print("  (simdistserve: 12.2 CPU-s for 44 of 61 placements at 100 requests; best tp4 pp1 tp3 pp1)")


def five_cases(file: str | None) -> None:
    """The plan found, the published one and vLLM, and what a steady-state order would have chosen."""
    all_reversals: list[tuple[object, ...]] = []
    for case in CASES:
        units, draws = placements(case), draws_of(case)
        search = search_placements([placement for _, placement in units], draws, case.slo, everything=True)
        best, incumbent = search.best, search.steady_best
        assert best is not None
        assert incumbent is not None
        worth = [(trial.goodput_per_s or 0.0) * units[index][1].weight for index, trial in enumerate(search.tried)]
        published = next(index for index, (unit, _) in enumerate(units) if unit == case.published)
        print(f"{case.name}: {len(units)} placements, requests/s/GPU")
        for label, index in (("found", best), ("published", published), ("steady-state incumbent", incumbent)):
            steady = (units[index][1].steady_per_s or 0.0) * units[index][1].weight
            print(f"  {label:24} {units[index][1].name:20} {worth[index]:.3f}   (steady state: {steady:.3f})")
        tp = {"opt-13b": 1, "opt-66b": 4, "opt-175b": 8}[case.model]
        lone = [Placement("vLLM", partial(vllm, case.model, tp), 1.0 / tp)]
        alone = search_placements(lone, draws, case.slo, everything=True)
        print(f"  {'vLLM':24} {'tp' + str(tp):20} {alone.worth:.3f}   bound over all placements {search.bound:.3f}")
        report_reversals(search)
        all_reversals += [(case.name, *pair) for pair in named_reversals(search)]
        report_high_affinity(case, draws_of(case, 4 * SEARCH_REQUESTS))
    if file is not None:
        header = ["case", "better", "simulated", "steady_state", "than", "simulated", "steady_state"]
        with open(file, "w", newline="", encoding="utf-8") as written:
            csv.writer(written).writerows([header, *all_reversals])


def named_reversals(search: PlacementSearch) -> list[tuple[object, ...]]:
    """Names and requests/s/GPU, simulated and by steady state, of both placements of every reversal."""

    def facts(index: int) -> tuple[object, ...]:
        placement, rate = search.placements[index], search.tried[index].goodput_per_s or 0.0
        return placement.name, rate * placement.weight, (placement.steady_per_s or 0.0) * placement.weight

    return [(*facts(a), *facts(b)) for a, b in reversals(search)]


def report_reversals(search: PlacementSearch) -> None:
    """Pairs that steady state orders the other way, the five with the largest loss by name."""
    pairs = reversals(search)
    known = [index for index, trial in enumerate(search.tried) if trial.goodput_per_s is not None]
    total = len(known) * (len(known) - 1) // 2
    loses = search.best != search.steady_best
    worth = {index: (search.tried[index].goodput_per_s or 0.0) * search.placements[index].weight for index in known}
    print(f"  {len(pairs)} reversals of {total} pairs; the steady-state incumbent {'loses' if loses else 'wins'}")
    for a, b in sorted(pairs, key=lambda pair: worth[pair[1]] - worth[pair[0]])[:5]:
        print(f"    {search.placements[a].name} ({worth[a]:.3f}) over {search.placements[b].name} ({worth[b]:.3f})")


def report_high_affinity(case: Case, draws: Draws) -> None:
    """Algorithm 1: each phase by itself."""
    shapes = [shape for shape in kv_tokens(case.model) if shape[0] * shape[1] <= 8 * case.nodes]
    phases = [
        [
            Phase(f"tp{tp} pp{pp}", tp * pp, (engine(role, case.model, tp, pp),) * pp)
            for tp, pp in shapes
        ]
        for role in ("prefill", "decode")
    ]  # fmt: skip
    chosen = high_affinity(phases[0], phases[1], draws, case.slo)
    if chosen is None:
        print("  high affinity: no instance keeps the limits")
        return
    rate = 10.0 * max(chosen.prefill_per_s, chosen.decode_per_s)
    counts = chosen.counts(rate)
    gpus = counts[0] * chosen.prefill.gpus + counts[1] * chosen.decode.gpus
    print(
        f"  high affinity: prefill {chosen.prefill.name} ({chosen.prefill_per_s:.2f}/s), decode {chosen.decode.name} "
        f"({chosen.decode_per_s:.2f}/s); {counts[0]} + {counts[1]} for {rate:.1f}/s: {rate / gpus:.3f} requests/s/GPU"
    )


def main() -> None:
    """Prints all figures."""
    simulate(vllm("opt-13b", 1), own_run(10, 1.0))  # compiled before anything is timed
    fidelity()
    search_all()
    five_cases(sys.argv[sys.argv.index("--reversals") + 1] if "--reversals" in sys.argv[1:-1] else None)


if __name__ == "__main__":
    main()
