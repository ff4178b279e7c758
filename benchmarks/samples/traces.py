"""A generated trace of conversations whose prompts share blocks, in the layout of Mooncake's traces."""

import gzip
import io
import json
from itertools import count

import numpy as np

from samples.tables import SEED

REQUESTS, SPAN_S, BLOCK_TOKENS = 600, 3540.0, 512
SYSTEM_PROMPTS, TURNS = 4, 3


def conversations() -> bytes:
    """Conversations of a few turns behind one of a few system prompts; a turn repeats the blocks before it."""
    draws, fresh = np.random.default_rng((SEED, 21)), count(SYSTEM_PROMPTS)
    begun: list[list[int]] = []
    lines = []
    for at_s in np.sort(draws.uniform(0.0, SPAN_S, REQUESTS)):
        going = bool(begun) and draws.random() < 1.0 - 1.0 / TURNS
        blocks = begun.pop(int(draws.integers(len(begun)))) if going else [int(draws.integers(SYSTEM_PROMPTS))]
        blocks = [*blocks, *(next(fresh) for _ in range(int(draws.integers(1, 8))))]
        begun.append(blocks)
        tokens = BLOCK_TOKENS * len(blocks) - int(draws.integers(BLOCK_TOKENS))
        answer = int(draws.integers(20, 600))
        row = {"timestamp": int(1e3 * at_s), "input_length": tokens, "output_length": answer, "hash_ids": blocks}
        lines.append(json.dumps(row))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return packed.getvalue()
