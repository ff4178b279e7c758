"""CUDA graphs: batch sizes that each engine captures, and to which it pads a decode step."""

import math

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats

SMALL = 4  # powers of 2 up to there, then multiples of STRIDE: what vLLM, SGLang and TensorRT-LLM capture by default
STRIDE = 8
MET = (1.0, 1.5, 2.0, 3.0, 8.0, 10.0)
MET_PADDING = (0.0, 0.08, 0.24, 0.63, 2.89, 3.5)  # of one sequence and a Poisson number of others, so many on average


def pad_graph_batch(sequences: ArrayLike, most: float = math.inf) -> Floats:
    """The CUDA-graph batch that a decode batch is padded to: 1, 2, 4, then multiples of 8.

    `most`, the largest batch that an engine runs, is captured too.
    """
    wanted = np.asarray(sequences, dtype=np.float64)
    small = 2.0 ** np.ceil(np.log2(np.maximum(wanted, 1.0)))
    return np.minimum(np.where(wanted <= SMALL, small, np.ceil(wanted / STRIDE) * STRIDE), most)


def mean_graph_batch(sequences: ArrayLike) -> Floats:
    """The mean CUDA-graph batch that a sequence is in, of those with so many sequences on average, itself among them.

    Graphs of one size serve several numbers of sequences: what a step takes grows in stairs, and on average evenly.
    """
    mean = np.asarray(sequences, dtype=np.float64)
    padded: Floats = mean + np.interp(mean, MET, MET_PADDING)
    return padded
