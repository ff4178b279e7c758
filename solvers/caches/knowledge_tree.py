"""Which nodes of a knowledge tree stay on the GPU, which in host memory: the least seconds of prefill.

Source      RAGCache (arXiv:2404.12457): documents in the order of a prompt are paths of a tree, a node is of use where
            all above it are held; its policy evicts leaves, this is the best fixed choice.
Sets        v in V nodes, p(v) the one above, if any
Parameters  f_v uses, c_v [s] to prefill, t_v [s] to fetch from host memory, s_v [tokens] size, G and H [tokens] room
Variables   g_v, h_v in {0, 1} on the GPU, on the host
Minimise    sum_v f_v (c_v - c_v g_v - max(c_v - t_v, 0) h_v)
(C1) g_v + h_v <= 1
(C2) g_v <= g_p(v);  g_v + h_v <= g_p(v) + h_p(v)    a node lies no higher than the one above it
(C3) sum_v s_v g_v <= G;  sum_v s_v h_v <= H
V node.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult
from planner.solvers.stochastic.poisson_mixture import RateMixture, fit_mixture

WHERE = "knowledge tree"
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class KnowledgeTree:
    """Nodes, each after the one above it; raises PlannerError for figures that cannot be."""

    parent_V: Ints  # -1 where nothing is above
    uses_V: Floats
    compute_s_V: Floats
    fetch_s_V: Floats
    tokens_V: Floats
    gpu_tokens: float
    host_tokens: float

    def __post_init__(self) -> None:
        if (self.parent_V >= np.arange(len(self.parent_V))).any():
            raise PlannerError("a node comes before the one above it", where=WHERE, hint="list parents first")
        figures = (self.uses_V, self.compute_s_V, self.fetch_s_V, self.tokens_V)
        if not all(np.isfinite(each).all() and (each >= 0.0).all() for each in figures):
            raise PlannerError("a figure of a node is negative or not finite", where=WHERE, hint="give 0 or more")
        if self.gpu_tokens < 0.0 or self.host_tokens < 0.0:
            what = f"room for {self.gpu_tokens:g} and {self.host_tokens:g} tokens"
            raise PlannerError(what, where=WHERE, hint="give 0 or more")


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Nodes on the GPU, and those in host memory."""

    gpu_V: Bools
    host_V: Bools


def seconds_of(tree: KnowledgeTree, kept: Kept) -> float:
    """Of all uses, with what is kept; a fetch that takes longer than prefill is not waited for."""
    saved_V = np.where(kept.gpu_V, tree.compute_s_V, 0.0)
    saved_V = saved_V + np.where(kept.host_V, np.maximum(tree.compute_s_V - tree.fetch_s_V, 0.0), 0.0)
    return float(tree.uses_V @ (tree.compute_s_V - saved_V))


def best_kept(tree: KnowledgeTree, *, gap: float = 0.0, time_limit_s: float | None = None) -> SolveResult[Kept]:
    """The nodes that save the most, with a proven bound on the seconds that are left."""
    started_s = time.perf_counter()
    model = LinearModel(maximising=True)
    nodes = [v for v in range(len(tree.parent_V)) if tree.tokens_V[v] <= max(tree.gpu_tokens, tree.host_tokens)]
    gpu = {v: model.integer_variable(f"g[{v}]", 0.0, 1.0) for v in nodes}
    host = {v: model.integer_variable(f"h[{v}]", 0.0, 1.0) for v in nodes}
    for v in nodes:
        model.add(gpu[v] + host[v] <= 1.0, f"C1[{v}]")
        above = int(tree.parent_V[v])
        if above >= 0:
            higher_gpu, higher_host = gpu.get(above, Expr({})), host.get(above, Expr({}))
            model.add(gpu[v] - higher_gpu <= 0.0, f"C2g[{v}]")
            model.add(gpu[v] + host[v] - higher_gpu - higher_host <= 0.0, f"C2h[{v}]")
    model.add(total(float(tree.tokens_V[v]) * gpu[v] for v in nodes) <= tree.gpu_tokens, "C3g")
    model.add(total(float(tree.tokens_V[v]) * host[v] for v in nodes) <= tree.host_tokens, "C3h")
    saved_V = tree.uses_V * tree.compute_s_V
    saved_host_V = tree.uses_V * np.maximum(tree.compute_s_V - tree.fetch_s_V, 0.0)
    parts = [float(saved_V[v]) * gpu[v] + float(saved_host_V[v]) * host[v] for v in nodes]
    model.objective = total(parts).terms
    result = solve(model, gap=gap, time_limit_s=time_limit_s)
    whole = float(saved_V.sum())
    kept = None if result.solution is None else _kept(tree, result.solution.value, gpu, host)
    return SolveResult(
        result.status,
        result.stop_reason,
        kept,
        None if kept is None else seconds_of(tree, kept),
        None if result.bound is None else whole - result.bound,
        time.perf_counter() - started_s,
        result.solver,
    )


def _kept(tree: KnowledgeTree, value: Callable[[Expr], float], gpu: dict[int, Expr], host: dict[int, Expr]) -> Kept:
    gpu_V, host_V = (np.zeros(len(tree.parent_V), np.bool_) for _ in range(2))
    for v in gpu:
        gpu_V[v], host_V[v] = value(gpu[v]) > 0.5, value(host[v]) > 0.5
    return Kept(gpu_V, host_V)


def counted_uses(requests: Sequence[Sequence[int]]) -> dict[Path, float]:
    """How often each path was asked for, as it begins or ends a prompt; paths after those that they go on from."""
    counts = Counter(tuple(request[:depth]) for request in requests for depth in range(1, len(request) + 1))
    return {path: float(counts[path]) for path in sorted(counts, key=lambda path: (len(path), path))}


def expected_uses(requests: Sequence[Sequence[int]], documents: int) -> dict[Path, float]:
    """How often to expect each path in as many further requests, by depth (`poisson_mixture`).

    Any of the documents may follow any path, at rates that are draws of one distribution for all paths of a depth.
    Paths that were never asked for are told of the first document alone.
    """
    counts = counted_uses(requests)
    expected: dict[Path, float] = {(): float(len(requests))}
    asked = counts | expected
    for depth in range(1, max(map(len, requests), default=0) + 1):
        paths = [path for path in counts if len(path) == depth]
        mixture = _mixture(paths, asked, documents)
        count_C, exposure_C = (np.array([asked[p] for p in each]) for each in (paths, [p[:-1] for p in paths]))
        for path, rate in zip(paths, mixture.expected(count_C, exposure_C), strict=True):
            expected[path] = expected[path[:-1]] * float(rate)
        if depth == 1:
            unasked = float(mixture.expected(np.zeros(1), np.array([asked[()]]))[0]) * asked[()]
            expected |= {(d,): unasked for d in range(documents) if (d,) not in counts}
    del expected[()]
    return expected


def _mixture(paths: Sequence[Path], asked: Mapping[Path, float], documents: int) -> RateMixture:
    """Of the rates at which documents follow the paths one shorter, with those that never did."""
    cells: Counter[tuple[float, float]] = Counter()
    followed: Counter[Path] = Counter()
    for path in paths:
        cells[asked[path], asked[path[:-1]]] += 1
        followed[path[:-1]] += 1
    for above, seen in followed.items():
        cells[0.0, asked[above]] += max(documents - seen, 0)
    count_C, exposure_C = (np.array([cell[side] for cell in cells]) for side in (0, 1))
    return fit_mixture(count_C, exposure_C, np.array(list(cells.values()), dtype=np.float64))
