"""Replicas with continuous batching that decode from completion to completion, for numba.

k steps with b sequences holding S tokens take k (step + sequence b) + token (k S + b k (k - 1) / 2). A sample reserves
KV cache for its prompt and output together. Suffixes: Q samples, R replicas.
"""

from collections import namedtuple

import numpy as np

from planner.solvers.compilation.parts import inlined_part
from planner.solvers.compiled.heaps import drop, push

Curve = namedtuple("Curve", "step_s sequence_s token_s")
"""Seconds of a decode step, by sequence and by token of context."""
Replicas = namedtuple(
    "Replicas", "prompt_Q output_Q slots kv_tokens finish running size_R reserved_R context_R steps_R"
)
"""The samples by their tokens, and the replicas: `finish` and `running` are heaps, `slots` for each replica, of the
samples that run by the step that ends them; each has made `steps_R`, for `size_R` samples that hold `context_R` tokens.
"""


@inlined_part
def fits(replicas, r, sample):
    """Whether a replica has a slot and KV cache for a sample; one without samples takes any."""
    need = replicas.prompt_Q[sample] + replicas.output_Q[sample]
    size = replicas.size_R[r]
    return size < replicas.slots and (size == 0 or replicas.reserved_R[r] + need <= replicas.kv_tokens)


@inlined_part
def admit(replicas, r, sample):
    """The sample decodes on the replica from its next step on."""
    ends = replicas.steps_R[r] + replicas.output_Q[sample]
    push(replicas.finish, replicas.running, r * replicas.slots, replicas.size_R[r], ends, sample)
    replicas.size_R[r] += 1
    replicas.context_R[r] += replicas.prompt_Q[sample]
    replicas.reserved_R[r] += replicas.prompt_Q[sample] + replicas.output_Q[sample]


@inlined_part
def advance(replicas, r, steps):
    """So many steps of the replica."""
    replicas.context_R[r] += replicas.size_R[r] * steps
    replicas.steps_R[r] += steps


@inlined_part
def steps_left(replicas, r):
    """Steps until a sample of the replica is done."""
    return replicas.finish[r * replicas.slots] - replicas.steps_R[r]


@inlined_part
def release(replicas, r):
    """The sample of the replica that is done first; it leaves."""
    base = r * replicas.slots
    sample = replicas.running[base]
    tokens = replicas.prompt_Q[sample] + replicas.output_Q[sample]
    drop(replicas.finish, replicas.running, base, replicas.size_R[r])
    replicas.size_R[r] -= 1
    replicas.context_R[r] -= tokens
    replicas.reserved_R[r] -= tokens
    return sample


@inlined_part
def decode_s(curve, replicas, r):
    """Seconds until a sample of the replica is done."""
    steps, size = steps_left(replicas, r), replicas.size_R[r]
    context = steps * replicas.context_R[r] + size * steps * (steps - 1) / 2
    return steps * (curve.step_s + curve.sequence_s * size) + curve.token_s * context


@inlined_part
def steps_under_way(curve, replicas, r, wanted_s):
    """The fewest steps of the replica that take `wanted_s`, and the seconds that they do."""
    size = replicas.size_R[r]
    bend = curve.token_s * size / 2.0
    part = curve.step_s + curve.sequence_s * size + curve.token_s * replicas.context_R[r] - bend
    steps = wanted_s / part if bend == 0.0 else (np.sqrt(part**2 + 4 * bend * wanted_s) - part) / (2 * bend)
    steps = np.ceil(steps - 1e-9)
    return steps, steps * part + bend * steps**2
