"""All-to-all traffic of an expert placement: tokens that leave their node or rank, and placements with less of it.

Shape suffixes: L layer, E expert, R rank, P slot.
"""

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.experts.layout import Layout, assemble, spread_problems
from planner.experts.ranks import Ranks
from planner.solvers.layouts.nearby import even_sources, far_share, solve_nearby
from planner.solvers.layouts.spread import bin_times, equal_shares


def leaving_share(
    load_LE: Floats,
    ranks: Ranks,
    expert_LP: Ints,
    quota_LP: Floats | None = None,
    source_LRE: npt.ArrayLike | None = None,
) -> Floats:
    """[L] share of the tokens' visits to experts that must leave their node: the least that the shares allow.

    Shares are equal without `quota_LP`, and every rank sends as many tokens unless `source_LRE` says how many.
    """
    sources = None if source_LRE is None else np.asarray(source_LRE, np.float64)
    if sources is not None and sources.shape != (len(load_LE), ranks.num_ranks, load_LE.shape[1]):
        raise PlannerError(
            f"has the shape {sources.shape}", where="source", hint="give tokens as [layer, source rank, expert]"
        )
    shares, node_P = np.empty(len(load_LE)), ranks.node_R[ranks.rank_P]
    for layer, load_E in enumerate(np.asarray(load_LE, np.float64)):
        row_P = expert_LP[layer]
        share_P = equal_shares(row_P, len(load_E)) if quota_LP is None else quota_LP[layer]
        if sources is None:
            source_NE = even_sources(load_E, ranks.node_R)
        else:
            source_NE = np.zeros((ranks.num_nodes, len(load_E)))
            np.add.at(source_NE, ranks.node_R, sources[layer])
        shares[layer] = far_share(load_E, node_P, row_P, share_P, source_NE)
    return shares


def draw_near(load_LE: Floats, ranks: Ranks, layout: Layout, *, slack: float = 0.0) -> Layout:
    """`layout` changed so that more tokens find a copy on their node, each layer's slowest rank at most `slack` slower.

    Copies share equally, and all slots of `ranks` are filled.
    """
    problems = spread_problems(load_LE, ranks)
    spreads = []
    for problem, row_P in zip(problems, layout.expert_LP, strict=True):
        goal = float(bin_times(problem, row_P).max()) * (1.0 + slack)
        spread = solve_nearby(problem, ranks.node_R, row_P, goal).solution
        assert spread is not None
        spreads.append(spread)
    return assemble(problems, ranks, spreads, "equal")
