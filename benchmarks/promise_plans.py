"""Verified plans of small problems beside all plans of the unpruned space: is there any that is more than 2 % better?

python benchmarks/promise_plans.py                20 problems of at most 8 GPUs
python benchmarks/promise_plans.py --quick        2 of them
python benchmarks/promise_plans.py --problems 5 --seed 7

Problems are those of `benchmarks/promises.py`, of one seed, that are small enough. Plans are every shape, batch, chunk
and router policy of colocated instances, as many as there is room for, and every pair of a prefill and a decode type
with every number of each; mixes of more types are left out. A plan that is better has 1.02 times the goodput of the
verified one, or keeps the same load on fewer GPUs. It must pass what verified plans pass: the judge of
`check --level simulate`, on streams that nothing was chosen on, says that it keeps every limit.

Before that, plans are left out that miss by far on short streams: by `FAR` of a limit on 6,000 requests, by `NEAR` on
40,000. Of pairs, prefill is tried alone first (answers of one token), then decode (prompts that are cached), and pairs
are those of what is left. The best `MOST_LONG` of each mode go to long streams, the best `MOST_JUDGED` of them to the
judge. Beside ours stands the answer of steady state, judged alike.
"""

import argparse
import dataclasses
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from promise_bounds import resolved
from promises import described, problem

from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.bounds.bound import bound_of_types
from planner.kinds.serve.bounds.demands import workloads_of
from planner.kinds.serve.bounds.engines import engine_types
from planner.kinds.serve.bounds.types import type_bound
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.simulated.load_streams import drawn
from planner.kinds.serve.steady.engine_rules import handover_rule, side_of
from planner.kinds.serve.steady.points import Tally, make_points
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.plan.schema import Envelope, Memory, Parallelism, Role, Route
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet
from planner.simulate.judge.judging import PILOT_SEED, judge, warmed
from planner.simulate.judge.limits import STREAMS, Judgement, Verdict, judge_runs
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan
from planner.simulate.requests.stream import Requests, all_requests
from planner.simulate.run.engine import simulate

BETTER = 1.02
ROUTERS = ("power-of-two", "round-robin")
SHORT, LONG = (2, 3_000), (5, 8_000)  # streams and requests of each
FAR, NEAR = 0.25, 0.04
MOST_LONG = 40
MOST_JUDGED = 6  # of those that short streams leave, the best
FRESH_SEED, SHORT_SEED = 900_000, 40_000
STREAM_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Config:
    """An instance type: a point of a role, and how many."""

    function: str
    shape: InstanceShape
    batch: int
    chunk: int
    weights_bytes: float
    activations_bytes: float
    count: int

    @property
    def devices(self) -> int:
        return self.shape.devices * self.count

    def __str__(self) -> str:
        return f"{self.count} x {self.function} {self.shape.label}, batch {self.batch}, chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class Space:
    """The plans of a problem, simulated as roles of the verified plan with other types."""

    setting: ServeSetting
    plan: Envelope

    @property
    def slo(self) -> SloSpec:
        (workload,) = self.setting.resolved.workloads
        return workload.spec.slo

    def configs(self, function: str, gpus: int) -> Iterator[list[Config]]:
        """Every shape with all its batches and chunks, as many as there is room for."""
        ((key, pool_costs),) = self.setting.costs_of_pool.items()
        arch, release = pool_costs.costs.arch, self.setting.release
        shapes = [
            shape
            for shape in self.setting.spaces[key].shapes
            if shape.devices <= gpus and handover_rule(function, shape, arch, release) is None
        ]
        for shape in shapes:
            points = make_points(
                function,
                pool_costs,
                [shape],
                self.setting.options,
                self.setting.targets,
                Tally(),
                copies=1,
                release=release,
            )
            rows = zip(points.batch, points.chunk, points.weight_bytes, points.activation_bytes, strict=True)
            yield [
                Config(function, shape, int(b), int(c), float(w), float(a), gpus // shape.devices)
                for b, c, w, a in rows
            ]

    def decision(self, configs: Sequence[Config], router: str) -> ServeDecision:
        """The verified plan's decision with these instances in place of its own."""
        own = ServeDecision.model_validate(self.plan.decision)
        roles = [self._role(own.roles[0], config) for config in configs]
        (target,) = self.setting.targets
        routes = [Route(workload=target.name, to=roles[0].name, share=1.0)]
        if len(roles) > 1:
            routes.append(Route(workload=target.name, source=roles[0].name, to=roles[1].name, share=1.0))
        changed = {"roles": tuple(roles), "routing": tuple(routes), "placement": (), "router_policy": router}
        return own.model_copy(update=changed)

    def _role(self, like: Role, config: Config) -> Role:
        ((_, pool_costs),) = self.setting.costs_of_pool.items()
        shape = config.shape
        limits = {"max_context_tokens": like.limits["max_context_tokens"], "max_batch": config.batch}
        memory = Memory(
            weights_bytes=config.weights_bytes,
            activations_bytes=config.activations_bytes,
            workspace_bytes=pool_costs.costs.engine.workspace_bytes,
            capacity_bytes=pool_costs.memory_bytes,
        )
        return like.model_copy(
            update={
                "name": config.function,
                "function": config.function,
                "replicas": config.count,
                "parallelism": Parallelism(tp=shape.tp, pp=shape.pp, dp=shape.dp, moe_tp=shape.moe_tp, ep=shape.ep),
                "limits": limits | ({"chunk_tokens": config.chunk} if config.chunk else {}),
                "memory": memory,
            }
        )

    def streams(self, rate_per_s: float, sizes: tuple[int, int], seed: int) -> list[Requests]:
        """Independent streams at a rate."""
        number, count = sizes
        mixtures = (drawn(self.setting, (1.0,), count, 0, seed + STREAM_SEEDS * each) for each in range(number))
        return [mixture.requests(rate_per_s) for mixture in mixtures]

    def fleet(self, configs: Sequence[Config], router: str, streams: Sequence[Requests]) -> Fleet:
        return fleet_of_plan(self.plan, self.decision(configs, router), all_requests(streams), Policies()).fleet

    def missed(self, fleet: Fleet, streams: Sequence[Requests], slo: SloSpec | None = None) -> float:
        """How far the worst statistic is beyond its limit on streams, as a share of it; below 0 where it is kept."""
        slos = (slo or self.slo,)
        judgement = warmed(judge_runs([simulate(fleet, requests) for requests in streams], slos), slos)
        if judgement.saturated:
            return np.inf
        return max((-limit.margin for limit in judgement.limits), default=-1.0)

    def judged(self, configs: Sequence[Config], router: str, rate_per_s: float) -> Judgement:
        """What `check` says of a plan at a rate."""

        def simulated(count: int, *, pilot: bool) -> list[Any]:
            seed = FRESH_SEED + PILOT_SEED * pilot
            streams = self.streams(rate_per_s, (STREAMS, -(-count // STREAMS)), seed)
            fleet = self.fleet(configs, router, streams)
            return [simulate(fleet, requests) for requests in streams]

        return judge(simulated, (self.slo,))

    def colocated(self, gpus: int, streams: Sequence[Requests], most_per_s: float) -> Iterator[list[Config]]:
        """Plans of one colocated type that do not miss by far; shapes whose proven bound is less are left out."""
        workloads = workloads_of(self.setting, (1.0,))
        bounds = {
            engine.shape: type_bound(engine, workloads, (0,), self.setting.targets[0].context_tokens, 0.0)
            for engine in engine_types(self.setting, workloads)
            if engine.function == "colocated"
        }
        whole = self.setting.resolved.pools[0].num_gpus
        kept: list[tuple[float, Config]] = []
        for rows in self.configs("colocated", gpus):
            shape = rows[0].shape if rows else None
            most = bound_of_types(self.setting, [bounds[shape]], workloads).value if shape in bounds else None
            if most is not None and self.setting.resolved.problem.objective.maximize and most * whole <= most_per_s:
                continue
            kept += ((missed, config) for missed, config in self._missed(rows, streams, None) if missed <= FAR)
        yield from ([config] for _, config in sorted(kept, key=lambda row: row[0])[:MOST_LONG])

    def pairs(self, gpus: int, streams: Sequence[Requests]) -> Iterator[list[Config]]:
        """Prefill and decode types that do not miss by far alone, those that do so on fewest GPUs first."""
        prompts = [
            Requests.open_stream(each.arrival_s, each.input_tokens, np.ones_like(each.output_tokens))
            for each in streams
        ]
        cached = [each.with_hits(1.0) for each in streams]
        ttft = self.slo.model_copy(update={"tpot": None, "latency": None, "attainment": None})
        tpot = self.slo.model_copy(update={"ttft": None, "latency": None, "attainment": None})
        first = list(self._counted("prefill", gpus, prompts, ttft))
        last = list(self._counted("decode", gpus, cached, tpot))
        ways = next(iter(self.setting.ways.values()))

        def joins(a: Config, b: Config) -> bool:
            sides = side_of(a.shape), side_of(b.shape)
            return not ways or any(way.takes("prefill", sides[0]) and way.takes("decode", sides[1]) for way in ways)

        joined = [
            (missed_a + missed_b, [a, b])
            for (missed_a, a), (missed_b, b) in itertools.product(first, last)
            if a.devices + b.devices <= gpus
            and (
                not ways
                or any(w.takes("prefill", side_of(a.shape)) and w.takes("decode", side_of(b.shape)) for w in ways)
            )
        ]
        yield from (pair for _, pair in sorted(joined, key=lambda row: row[0])[:MOST_LONG])

    def _counted(
        self, function: str, gpus: int, streams: Sequence[Requests], slo: SloSpec
    ) -> Iterator[tuple[float, Config]]:
        """Every number of instances of every type, with how far it misses."""
        for rows in self.configs(function, gpus - 1):
            for count in range(1, rows[0].count + 1 if rows else 1):
                counted = [dataclasses.replace(config, count=count) for config in rows]
                yield from ((m, config) for m, config in self._missed(counted, streams, slo) if m <= FAR)

    def _missed(
        self, rows: Sequence[Config], streams: Sequence[Requests], slo: SloSpec | None
    ) -> Iterator[tuple[float, Config]]:
        """How far types of one shape miss, with the step times of the largest of them."""
        if not rows:
            return
        top = dataclasses.replace(rows[0], batch=max(r.batch for r in rows), chunk=max(r.chunk for r in rows))
        most = max(top.chunk, 2 * top.batch) if top.function == "decode" else max(top.chunk, 1)
        as_role = dataclasses.replace(top, function="colocated", chunk=most)
        like = self.fleet([as_role], ROUTERS[0], streams)
        token_bytes = self.room_bytes(rows[0]) / like.instances[0].kv_tokens
        for config in rows:
            tokens = int(self.room_bytes(config) / token_bytes)
            engine = dataclasses.replace(
                like.instances[0], most_sequences=config.batch, token_budget=max(config.chunk, 1), kv_tokens=tokens
            )
            if config.function == "decode":
                engine = dataclasses.replace(engine, token_budget=max(top.chunk, 2 * config.batch))
            fleet = dataclasses.replace(like, instances=(engine,) * len(like.instances))
            yield self.missed(fleet, streams, slo), config

    def room_bytes(self, config: Config) -> float:
        """Bytes of a device for caches."""
        ((_, pool_costs),) = self.setting.costs_of_pool.items()
        held = config.weights_bytes + config.activations_bytes + pool_costs.costs.engine.workspace_bytes
        return pool_costs.memory_bytes - held


@dataclass(frozen=True, slots=True)
class Better:
    """The plan that passes at more than the verified one has, and by how much; `share` is 1 where there is none."""

    share: float
    words: str
    screened: int


def better(raw: dict[str, Any], plan: Envelope) -> Better:
    """The best of the plans that pass at `BETTER` times the objective of the verified one."""
    space = Space(prepare(resolved(raw, "queueing")), plan)
    value, gpus = plan.certificate.objective.value, space.setting.resolved.pools[0].num_gpus
    assert value is not None
    asked, maximising = raw["workloads"][0].get("load", {}), "maximize" in raw["objective"]
    rate = value * gpus * BETTER if maximising else float(asked["rate"].removesuffix("/s"))
    room = gpus if maximising else round(value) - 1
    short, long = (space.streams(rate, sizes, SHORT_SEED) for sizes in (SHORT, LONG))
    near, screened = [], 0
    for configs, router in plans(space, raw, room, short, rate):
        screened += 1
        fleet = space.fleet(configs, router, long)
        if space.missed(fleet, short) <= FAR and (missed := space.missed(fleet, long)) <= NEAR:
            near.append((missed, str(configs), configs, router))
    for _, _, configs, router in sorted(near, key=lambda row: row[:2])[:MOST_JUDGED]:
        if space.judged(configs, router, rate).verdict is not Verdict.KEPT:
            continue
        words = f"{' + '.join(map(str, configs))}, {router}"
        if not maximising:
            return Better(value / sum(config.devices for config in configs), words, screened)
        share = BETTER
        while space.judged(configs, router, rate * (share + 0.02) / BETTER).verdict is Verdict.KEPT:
            share += 0.02
        return Better(share, words, screened)
    return Better(1.0, f"{len(near)} of {screened} plans judged", screened)


def plans(
    space: Space, raw: dict[str, Any], gpus: int, streams: Sequence[Requests], rate_per_s: float
) -> Iterator[tuple[list[Config], str]]:
    """Plans of the space that do not miss by far, with each policy of routers."""
    modes = raw["options"]["modes"]
    if gpus < 1:
        return
    configs = list(space.colocated(gpus, streams, rate_per_s)) if "colocated" in modes else []
    configs += list(space.pairs(gpus, streams)) if "disaggregated" in modes and gpus > 1 else []
    yield from itertools.product(configs, ROUTERS)


def problems(seed: int) -> Iterator[dict[str, Any]]:
    """Problems of at most 8 GPUs that steady state has a plan for."""
    rng = random.Random(seed)
    while True:
        raw = problem(rng)
        if raw["cluster"]["pools"][0]["gpus"] <= 8:
            yield raw


def solved(raw: dict[str, Any], level: str) -> Envelope | None:
    """The plan of a level; None where it has none."""
    try:
        return solve(resolved(raw, level))
    except (Infeasible, PlannerError):
        return None


def main() -> int:
    """A row for each problem, then how many verified plans are more than 2 % behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 problems")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="problems of the seed to leave out")
    given = parser.parse_args()
    count = 2 if given.quick else given.problems
    behind, static_broken = 0, 0
    rows: Iterable[dict[str, Any]] = itertools.islice(problems(given.seed), given.skip, None)
    done = 0
    for raw in rows:
        if done == count:
            break
        started_s = time.process_time()
        verified, static = solved(raw, "verification"), solved(raw, "queueing")
        if verified is None or static is None:
            continue
        solved_s, done = time.process_time() - started_s, done + 1
        best = better(raw, verified)
        behind += best.share > 1.0
        broken = judge_plan(static, ServeDecision.model_validate(static.decision), Policies(), seed=FRESH_SEED)
        static_broken += broken.judgement.verdict is not Verdict.KEPT
        (workload,) = raw["workloads"]
        print(
            f"{done:2d} {raw['models']['m']['name'].split('/')[1]:24s} {described(raw, workload)}  "
            f"verified {verified.certificate.objective.value:.4g} ({solved_s:.0f} CPU-s), "
            f"best {best.share - 1.0:+.1%}: {best.words}; steady state {static.certificate.objective.value:.4g} "
            f"{broken.judgement.verdict.value}; {time.process_time() - started_s:.0f} CPU-s",
            flush=True,
        )
    print(
        f"{behind} of {count} verified plans are more than 2 % behind a plan that passes; "
        f"{static_broken} plans of steady state do not pass"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
