"""Boosted trees on roofline features: what a learner makes of the same rows, beside the fits of `serving.py`.

Features of a deployment [F], logarithms but for the flags: of each of its four priced steps (`planner.estimate.
evaluate`) the seconds that every kind of kernel takes at the rates of the data sheet, the seconds of its collectives at
full bandwidth and the kernels that are started; lengths, clients, sequences and ranks; the engine, whether prefill runs
apart, whether prompts share steps, and shares of prompts that a cache holds. Trees learn the logarithm of a measured
time over its ideal one (the step of a full batch, a lone prompt), so that they begin where a roofline without any
efficiency stands. Rows weigh as their groups do in the errors. scikit-learn's histogram gradient
boosting with its defaults (Friedman, "Greedy function approximation", Annals of Statistics 29 (2001)): nothing was
chosen here.
"""

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import MeasuredTimes
from planner.calibrate.terms import STEPS, DeploymentTerms

KINDS = ("gemm", "attention", "experts", "elementwise")
FULL, PROMPT = 0, 2  # of the priced steps: a full batch that decodes, and one prompt
_LEAST_S = 1e-7
_LENGTHS = ("isl", "osl", "requests_per_client")
_SIZES = ("clients", "decode_ranks", "prefill_ranks", "full_batch", "most_decoding")
_FLAGS = ("disaggregated", "staggered", "in_process", "prefix_hits", "isl_cv", "hold_steps")


def ideal_s(terms: DeploymentTerms) -> Floats:
    """[K, D, S] seconds at data-sheet rates of every kind of kernel, and last of collectives at full bandwidth."""
    cells = STEPS * len(terms.engine_D)
    seconds_T = np.maximum(terms.flop_s_T, terms.move_s_T) * terms.count_T
    kind_T = np.concatenate([np.full(len(piece.place_T), piece.kind) for piece in terms.pieces])
    parts = [np.bincount(terms.place_T, np.where(kind_T == kind, seconds_T, 0.0), minlength=cells) for kind in KINDS]
    at = terms.collectives
    moved_T = (terms.route.inside_s + terms.route.outside_s) * terms.count_T[at]
    parts.append(np.bincount(terms.place_T[at], moved_T, minlength=cells))
    return np.array(parts, dtype=np.float64).reshape(len(parts), -1, STEPS)


def features(terms: DeploymentTerms, parts: Floats) -> Floats:
    """[D, F] of parts [K, D, S]."""
    frame, engines = terms.frame, np.array(terms.engine_D)
    kernels = np.bincount(terms.place_T, terms.kernels_T * terms.count_T, minlength=STEPS * len(engines))
    columns = [
        *np.log(parts.transpose(0, 2, 1).reshape(-1, len(engines)) + _LEAST_S),
        *np.log1p(kernels.reshape(-1, STEPS)).T,
        *(np.log1p(np.minimum(getattr(frame, name), 1e9)) for name in (*_LENGTHS, *_SIZES)),
        *(getattr(frame, name) for name in _FLAGS),
        *((engines == name).astype(np.float64) for name in sorted(set(engines.tolist()))),
        terms.overlap_D.astype(np.float64),
    ]
    return np.stack(columns, axis=1)


def left_out(terms: DeploymentTerms, measured: MeasuredTimes, group: Indices, unit: Indices) -> Floats:
    """Times [2, D] to first token and per output token of the rows of every unit [D] by trees grown on all others."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    parts = ideal_s(terms)
    table, start = features(terms, parts), parts.sum(axis=0)[:, [PROMPT, FULL]].T
    weight = 1.0 / np.bincount(group)[group]
    times = np.zeros((2, len(group)))
    for which, known_s, usable in (
        (0, measured.ttft_s, ~measured.queued),
        (1, measured.tpot_s, np.ones(len(group), dtype=np.bool_)),
    ):
        over = np.log(known_s / start[which])
        for number in np.unique(unit):
            held_out: Bools = unit == number
            rows = usable & ~held_out
            trees = HistGradientBoostingRegressor(random_state=0)
            trees.fit(table[rows], over[rows], sample_weight=weight[rows])
            times[which, held_out] = start[which, held_out] * np.exp(trees.predict(table[held_out]))
    return times
