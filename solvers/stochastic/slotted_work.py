"""Work left over by a server that does a fixed amount in every slot, over arrays [N].

In each slot comes an amount of work X, independent of other slots, of which at most r is done; what is left waits for
the next one. With S_k the work of k slots, the amount left in the long run has the mean and the chance to be none
    E W = sum_k E max(S_k - k r, 0) / k,    P(W = 0) = exp(-sum_k P(S_k > k r) / k)
(Spitzer, "A combinatorial lemma and its application to probability theory", Trans. AMS 82, 1956; Asmussen, "Applied
Probability and Queues", section VIII.4). X is a gamma variable of mean u r and variance u r, so that u is the
utilisation and work is counted in units of variance over mean: with jobs that come at random, E J^2 / E J of a job. As
r becomes 0 this is the continuous server, E W = u / (2 (1 - u)) (Pollaczek and Khinchine).
"""

from functools import cache

import numpy as np

from planner.arrays import Floats

MOST_USED = 0.995
LEAST_USED, LEAST_DONE, MOST_DONE = 1e-3, 0.02, 40.0
SLOTS = 4000.0  # of which the sums consist; geometric places stand for those between
PLACES = 48
TABLE = 22  # utilisations, and amounts done


def work_left(used: Floats, done: Floats) -> Floats:
    """The mean of the work that a slot leaves [N], where each does at most `done`; interpolated in a table.

    Utilisations above `MOST_USED` count as that one, and `done` outside of its table as the nearest end.
    """
    from scipy.ndimage import map_coordinates

    most = np.clip(used, LEAST_USED, MOST_USED)
    wanted = (-np.log1p(-most), np.log(np.clip(done, LEAST_DONE, MOST_DONE)))
    axes, shares = _table()
    places = [(value - axis[0]) / (axis[1] - axis[0]) for value, axis in zip(wanted, axes, strict=True)]
    share: Floats = np.exp(map_coordinates(shares, places, order=1, mode="nearest"))
    return share * most / (2.0 * (1.0 - most))


def exact_work_left(used: Floats, done: Floats) -> Floats:
    """E W by its sum, by broadcasting; sparse places stand for the slots between them."""
    from scipy.special import gammaincc

    slots = np.unique(np.geomspace(1.0, SLOTS, PLACES).round())
    edges = np.concatenate([[slots[0] - 0.5], (slots[1:] + slots[:-1]) / 2.0, [slots[-1] + 0.5]])
    shape, level = slots * (used * done)[..., None], slots * np.broadcast_to(done, np.shape(used * done))[..., None]
    excess = shape * gammaincc(shape + 1.0, level) - level * gammaincc(shape, level)
    left: Floats = np.sum(np.diff(edges) * np.maximum(excess, 0.0) / slots, axis=-1)
    return left


@cache
def _table() -> tuple[tuple[Floats, Floats], Floats]:
    """Logarithms of the share of a continuous server's work, by those of 1 / (1 - u) and of r, both in even steps."""
    free, done = np.geomspace(1.0 - LEAST_USED, 1.0 - MOST_USED, TABLE), np.geomspace(LEAST_DONE, MOST_DONE, TABLE)
    used = (1.0 - free)[:, None]
    shares = exact_work_left(used, done[None, :]) / (used / (2.0 * (1.0 - used)))
    return (-np.log(free), np.log(done)), np.log(np.maximum(shares, 1e-9))
