"""DeepSeek's EPLB as a baseline, written anew from its published description: global and hierarchical balancing.

Source: github.com/deepseek-ai/EPLB, README (2025). Global: experts get copies one by one, each to whichever has most
load a copy; then copies go, heaviest first, to the rank with least load that has a slot left. Hierarchical: groups of
experts are first packed onto nodes in the same way, then copies are made and packed inside each node. Ranks have
equally many slots; copies share equally.
"""

import numpy as np

from planner.arrays import Floats, Ints


def pack_evenly(weights: Floats, bins: int) -> Ints:
    """The bin of each weight: heaviest first to the lightest bin that is not full, all bins with equally many."""
    room = len(weights) // bins
    load, count, bin_of = np.zeros(bins), np.zeros(bins, np.int64), np.zeros(len(weights), np.int64)
    for index in np.argsort(-weights, kind="stable"):
        lightest = int(np.argmin(np.where(count < room, load, np.inf)))
        bin_of[index] = lightest
        load[lightest] += weights[index]
        count[lightest] += 1
    return bin_of


def copy_experts(load_E: Floats, slots: int) -> Ints:
    """Copies of each expert: each further one to the expert with most load a copy."""
    copies = np.ones(len(load_E), np.int64)
    for _ in range(slots - len(load_E)):
        copies[int(np.argmax(load_E / copies))] += 1
    return copies


def balance_globally(load_E: Floats, slots: int, ranks: int) -> Ints:
    """[P] the expert in every slot, rank by rank."""
    copies = copy_experts(load_E, slots)
    expert = np.repeat(np.arange(len(load_E)), copies)
    rank_of = pack_evenly((load_E / copies)[expert], ranks)
    return expert[np.argsort(rank_of, kind="stable")]


def balance_hierarchically(load_E: Floats, slots: int, ranks: int, groups: int, nodes: int) -> Ints:
    """[P] the expert in every slot, every group of experts on one node; groups must divide among the nodes."""
    members = np.arange(len(load_E)).reshape(groups, -1)
    node_of = pack_evenly(load_E[members].sum(axis=1), nodes)
    rows = []
    for node in range(nodes):
        experts = members[node_of == node].ravel()
        rows.append(experts[balance_globally(load_E[experts], slots // nodes, ranks // nodes)])
    return np.concatenate(rows)
