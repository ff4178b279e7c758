"""CUDA graphs: batch sizes that each engine captures, and to which it pads a decode step."""

import math

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats

SMALL = 4  # powers of 2 up to there, then multiples of STRIDE: what vLLM, SGLang and TensorRT-LLM capture by default
STRIDE = 8


def pad_graph_batch(sequences: ArrayLike, most: float = math.inf) -> Floats:
    """The CUDA-graph batch that a decode batch is padded to: 1, 2, 4, then multiples of 8.

    `most`, the largest batch that an engine runs, is captured too.
    """
    wanted = np.asarray(sequences, dtype=np.float64)
    small = 2.0 ** np.ceil(np.log2(np.maximum(wanted, 1.0)))
    return np.minimum(np.where(wanted <= SMALL, small, np.ceil(wanted / STRIDE) * STRIDE), most)
