"""Speculative decoding: the cost of drafts, and the expected tokens that a verifying step yields.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192: k drafts of a sequence
are verified in one step of the model, each right with chance a where those before it are. The step reads weights and
cache once, computes k + 1 tokens of every sequence, and the logits of all of them (`Work.queries`).

A draft takes one pass of the drafter, so the k drafts of a step take k passes, one behind the other. The first takes in
every token of the step, prompts among them, so that the drafter's cache follows; each later one takes one token of a
sequence. Drafters are the model's own prediction heads (DeepSeek-V3, arXiv:2412.19437, section 2.2: a matrix that joins
state and embedding, a layer, and the model's own output matrix; with fewer heads than drafts they take turns), a
smaller model, or something of a stated time. Passes run on the ranks of the step, in CUDA graphs: no host time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Gemm, Operator, activation_precision
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.evidence import Basis
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import StepTime, price_operators
from planner.costs.serving.memory import footprint, kv_cache_bytes, weight_divisors
from planner.errors import PlannerError
from planner.models.architecture import BITS, Architecture

if TYPE_CHECKING:
    from planner.problem.speculation import SpeculationSpec

DRAFTING = "drafting"
LOGITS = frozenset({"logits", "logits_all_gather", "sampling"})


def tokens_per_step(draft_tokens: ArrayLike, acceptance: ArrayLike) -> Floats:
    """Expected tokens of a sequence in a step [N]: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) (eq. 1)."""
    drafts, right = np.broadcast_arrays(*(np.asarray(given, dtype=np.float64) for given in (draft_tokens, acceptance)))
    total = np.ones(drafts.shape)
    for place in range(1, int(np.max(drafts, initial=0.0)) + 1):
        total = total + np.where(drafts >= place, right**place, 0.0)
    return total


def tokens_per_step_cv2(draft_tokens: ArrayLike, acceptance: ArrayLike) -> Floats:
    """Variance of a sequence's tokens in a step over their squared mean [N]; E[X^2] = 1 + 3 a + ... + (2k + 1) a^k."""
    drafts, right = np.broadcast_arrays(*(np.asarray(given, dtype=np.float64) for given in (draft_tokens, acceptance)))
    square = np.ones(drafts.shape)
    for place in range(1, int(np.max(drafts, initial=0.0)) + 1):
        square = square + np.where(drafts >= place, (2.0 * place + 1.0) * right**place, 0.0)
    return square / tokens_per_step(drafts, right) ** 2 - 1.0


@dataclass(frozen=True, slots=True)
class Drafter:
    """What proposes tokens for a model, and how often it is right."""

    name: str
    acceptance: float
    arch: Architecture | None = None  # what one pass runs; None where only its time is known
    heads: int = 0  # of the model's own that take turns; 0 where the drafter is no head
    step_s: float = 0.0  # of a pass where `arch` is None

    @property
    def method(self) -> str:
        """What problems call it: `mtp`, `model` or `stated`."""
        return "mtp" if self.heads else "stated" if self.arch is None else "model"

    @property
    def keeps_cache(self) -> bool:
        """Whether it must have seen the prompt."""
        return self.arch is not None

    def tokens_per_step(self, draft_tokens: ArrayLike) -> Floats:
        """Expected tokens of a sequence in a step [N]."""
        return tokens_per_step(draft_tokens, self.acceptance)

    def tokens_per_step_cv2(self, draft_tokens: ArrayLike) -> Floats:
        """Variance of a sequence's tokens in a step over their squared mean [N]."""
        return tokens_per_step_cv2(draft_tokens, self.acceptance)

    def weight_bytes(self, shards: Shards, draft_tokens: Floats) -> Floats:
        """Weights on one device [N]; heads use the model's own embedding and output matrix."""
        if self.arch is None:
            return np.zeros(len(shards))
        whole, divisors = footprint(self.arch), weight_divisors(self.arch, _one_stage(shards))
        layers = sum((size / divisors[split] for split, size in whole.layers.items()), np.zeros(len(shards)))
        if not self.heads:
            layers = layers + sum(size / divisors[split] for split, size in whole.ends.items())
            return np.where(draft_tokens > 0, layers, 0.0)
        join = 2.0 * self.arch.hidden_size**2 * BITS[self.arch.precisions.attention] / 8
        return (layers + join) * self._copies(draft_tokens)

    def kv_bytes(self, shards: Shards, tokens: ArrayLike, draft_tokens: Floats) -> Floats:
        """Cache of one sequence of so many tokens on one device [N]."""
        if self.arch is None:
            return np.zeros(len(shards))
        return kv_cache_bytes(self.arch, _one_stage(shards), tokens) * self._copies(draft_tokens)

    def _copies(self, draft_tokens: Floats) -> Floats:
        """Passes of different weights."""
        return np.minimum(draft_tokens, float(max(self.heads, 1)))

    def passes(self, shards: Shards, work: Work) -> list[Operator]:
        """One pass over the tokens of a step, with the logits of the last token of each sequence."""
        assert self.arch is not None
        alone = _one_stage(shards)
        last = [op for op in forward(self.arch, alone, replace(work, queries=None)) if op.name in LOGITS]
        return [op for op in forward(self.arch, alone, work) if op.name not in LOGITS] + last + list(self._join(work))

    def _join(self, work: Work) -> Iterator[Operator]:
        if self.heads and self.arch is not None:
            wide = np.full(len(work.tokens), float(self.arch.hidden_size))
            yield Gemm("join", 1.0, work.tokens, wide, 2.0 * wide, self.arch.precisions.attention)


def drafting_step(drafter: Drafter, pricer: Pricer, shards: Shards, work: Work) -> StepTime:
    """All drafts of a step that verifies as many of each sequence [N]; zero where `work` has none."""
    num = len(work.tokens)
    if work.queries is None:
        return price_operators([], pricer, num)
    drafts = work.queries - 1.0
    first = (drafts > 0) & (work.tokens > 0)
    later = np.where(work.decode_sequences > 0, np.maximum(drafts - 1.0, 0.0), 0.0)
    if drafter.arch is None:
        seconds = np.where(work.decode_sequences > 0, drafts * drafter.step_s, 0.0)
        by_basis = np.zeros((len(Basis), num))
        by_basis[Basis.ANALYTICAL] = seconds
        return StepTime(seconds, np.zeros(num), {DRAFTING: seconds}, by_basis)
    first_pass = price_operators(drafter.passes(shards, work), pricer, num)
    again = price_operators(
        drafter.passes(shards, Work.decode(work.decode_sequences, work.decode_context)), pricer, num
    )
    seconds = np.where(first, first_pass.device_s, 0.0) + later * again.device_s
    by_basis = np.where(first, first_pass.by_basis, 0.0) + later * again.by_basis
    return StepTime(seconds, np.zeros(num), {DRAFTING: seconds}, by_basis)


def _one_stage(shards: Shards) -> Shards:
    """A drafter is as wide as one pipeline stage."""
    return replace(shards, pp=np.ones(len(shards)))


def drafter_of(
    spec: "SpeculationSpec | None", arch: Architecture, models: Mapping[str, Architecture], where: str
) -> Drafter | None:
    """The drafter that a problem asks for; None where there are no drafts.

    Raises PlannerError for heads that the model does not have, and for a draft model of another vocabulary.
    """
    if spec is None or spec.most == 0:
        return None
    if spec.method == "stated":
        return Drafter("stated", spec.acceptance, step_s=spec.draft_step_s or 0.0)
    if spec.method == "mtp":
        return Drafter(f"prediction heads of {arch.name}", spec.acceptance, _head(arch, where), arch.num_mtp_heads)
    draft = _draft_model(str(spec.model), arch, models, where)
    return Drafter(draft.name, spec.acceptance, draft)


def _head(arch: Architecture, where: str) -> Architecture:
    """One prediction head as a model of its own, in the format of the heads."""
    if not arch.mtp_layers:
        raise PlannerError(
            f"{arch.name} has no prediction heads that are known",
            where=where,
            hint="take `method: model` with a smaller model, or `method: stated`",
        )
    known = arch.precisions
    inputs = known.expert_activation if known.mtp == known.experts else activation_precision(known.mtp)
    precisions = replace(
        known, attention=known.mtp, ffn=known.mtp, experts=known.mtp, shared_experts=known.mtp,
        expert_activation=inputs, attention_output=None,
    )  # fmt: skip
    layers = arch.mtp_layers[: len(arch.mtp_layers) // arch.num_mtp_heads]
    head = replace(arch, layers=layers, mtp_layers=(), encoders=(), modules=(), precisions=precisions)
    return _priceable(head, where)


def _draft_model(key: str, arch: Architecture, models: Mapping[str, Architecture], where: str) -> Architecture:
    if key not in models:
        raise PlannerError(
            f"no model is called `{key}`",
            where=where,
            hint=f"the models are {', '.join(f'`{name}`' for name in models)}",
        )
    draft = models[key]
    if draft.vocab_size != arch.vocab_size:
        raise PlannerError(
            f"{draft.name} has a vocabulary of {draft.vocab_size} tokens, {arch.name} one of {arch.vocab_size}",
            where=where,
            hint="take a draft model of the same family",
        )
    return _priceable(draft, where)


def _priceable(arch: Architecture, where: str) -> Architecture:
    reasons = arch.unsupported_parts()
    if reasons:
        raise PlannerError(
            f"{arch.name} has parts without a cost: unsupported {'; '.join(reasons)}",
            where=where,
            hint="choose a drafter whose layers all have costs",
        )
    return arch
