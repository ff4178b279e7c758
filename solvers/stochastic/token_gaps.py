"""Gaps between the tokens of requests in steady state, over arrays [N], and their percentiles over all gaps.

A gap is a step of its batch. In a batch that decodes D sequences of o steps each, whose prompts are prefilled in k
steps each, x = D max(k, 1) / o prompts or parts of one come in a step on average, of all ranks where several step
together. They come as a Poisson process does: a share p = 1 - exp(-x) of the steps has some, m = x / p of them on
average. A step without takes `pace_s`; where the mean step takes `step_s`, prompts add (step_s - pace_s) / p to one
with some. What they add is in proportion to their tokens, whose sum over a Poisson number of parts that is not 0 has,
with c the squared coefficient of variation of a part (that of prompts over max(k, 1), since only what is left of a
chunk varies),
    cv2 = (c + 1 + x) / m - 1,
and is taken as gamma distributed with these two moments. The first gap of a request that was prefilled elsewhere, one
of n, waits for j steps more until the first step with it. So a gap is
    pace_s                                  with probability (1 - p) (1 - 1/n)
    pace_s + (step_s - pace_s) / p x Gamma                    p (1 - 1/n)
    (1 + j) step_s                                            1/n
whose mean is step_s (1 + j / n). A step with drafts yields several tokens at once, which is one gap.

A step has room for so many prompt tokens, which add c at most: with G the gamma above, prompts add min(G, c), and what
is beyond comes in later steps, so that a share p E[G] / E[min(G, c)] of the steps has some (at most all), and the mean
stays. Nothing in this is fitted. Batches that grow with the load of the moment are left out.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats

HALVINGS = 60
BEYOND = 1e6  # of the mean: nothing is longer
LEAST = 1e-12  # prompts in a step, or variation of what they add: less is none


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """Prompts, or parts of prompts, in a step: how many on average [N], and how much one varies [N]."""

    mean: Floats
    cv2: Floats

    @classmethod
    def of_batch(
        cls, sequences: Floats, steps: Floats, prefill_steps: Floats, ranks: Floats, prompt_cv2: float
    ) -> "StepPrompts":
        """Of `ranks` batches of `sequences` that decode `steps` each and take `prefill_steps` before."""
        parts = np.maximum(prefill_steps, 1.0)
        return cls(np.where(prefill_steps > 0.0, sequences / steps * parts * ranks, 0.0), prompt_cv2 / parts)


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """Gaps [N]: steps without prompts, what prompts add to others, and first gaps."""

    pace_s: Floats
    added_s: Floats  # mean, of steps with prompts
    added_cv2: Floats
    most_added_s: Floats  # by prompts, for which a step has no more room
    with_prompts: Floats  # share of steps
    first_s: Floats
    first_share: Floats  # of all gaps

    @classmethod
    def of_steps(
        cls,
        pace_s: Floats,
        step_s: Floats,
        prompts: StepPrompts,
        first_share: Floats,
        joining: float,
        most_added_s: Floats | None = None,
    ) -> "TokenGaps":
        """Of steps of which the mean takes `step_s`; first gaps wait for `joining` steps more.

        Prompts add at most `most_added_s` to a step, and no less than they do to the mean one.
        """
        some = -np.expm1(-prompts.mean)
        share = np.where(prompts.mean > LEAST, some, 1.0)
        number = np.where(prompts.mean > LEAST, prompts.mean / share, 1.0)
        cv2 = np.where(prompts.mean > LEAST, (prompts.cv2 + 1.0 + prompts.mean) / number - 1.0, 0.0)
        first = first_share if joining > 0.0 else np.zeros(len(step_s))
        added_s, cv2 = (step_s - pace_s) / share, np.maximum(cv2, LEAST)
        most_s = np.full(len(step_s), np.inf) if most_added_s is None else np.maximum(most_added_s, step_s - pace_s)
        kept = _kept_below(most_s / np.maximum(added_s, LEAST * pace_s), cv2)
        share = np.minimum(share / kept, 1.0)
        return cls(pace_s, added_s, cv2, most_s, share, (1.0 + joining) * step_s, first)

    @property
    def mean_s(self) -> Floats:
        """The mean gap [N]."""
        kept = _kept_below(self.most_added_s / np.maximum(self.added_s, LEAST * self.pace_s), self.added_cv2)
        later = self.pace_s + self.with_prompts * kept * self.added_s
        return (1.0 - self.first_share) * later + self.first_share * self.first_s

    def share_within(self, limit_s: Floats | float) -> Floats:
        """The share of gaps [N] that are no longer."""
        from scipy.special import gammainc

        room_s = np.asarray(limit_s) - self.pace_s
        shape = 1.0 / self.added_cv2
        added = self.added_s > LEAST * self.pace_s
        parts = shape * np.maximum(room_s, 0.0) / np.where(added, self.added_s, 1.0)
        stretched = np.where(added & (room_s < self.most_added_s * (1.0 - LEAST)), gammainc(shape, parts), 1.0)
        later = np.where(room_s >= 0.0, 1.0 - self.with_prompts + self.with_prompts * stretched, 0.0)
        share: Floats = (1.0 - self.first_share) * later + self.first_share * (self.first_s <= limit_s)
        return share

    def quantile_s(self, quantile: float) -> Floats:
        """The least gap [N] that this share of gaps does not exceed, by bisection."""
        from scipy.special import gammaincinv

        shape = 1.0 / self.added_cv2
        longest_s = self.pace_s + np.minimum(self.added_s * gammaincinv(shape, quantile) / shape, self.most_added_s)
        low, high = np.zeros(len(self.pace_s)), np.maximum(longest_s, self.first_s) * (1.0 + 1e-9)
        high = np.maximum(high, self.pace_s * (1.0 + 1e-9))
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            within = self.share_within(middle) >= quantile
            low, high = np.where(within, low, middle), np.where(within, middle, high)
        return high


def _kept_below(cap: Floats, cv2: Floats) -> Floats:
    """E[min(G, cap)] of gamma variables of mean 1 [N]: P(a + 1, a cap) + cap (1 - P(a, a cap)), a = 1 / cv2."""
    from scipy.special import gammainc

    shape, most = 1.0 / cv2, np.minimum(cap, BEYOND)
    return np.asarray(gammainc(shape + 1.0, shape * most) + most * (1.0 - gammainc(shape, shape * most)))
