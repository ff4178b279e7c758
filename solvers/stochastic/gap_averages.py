"""Percentiles of the time per output token of a request, the average of the gaps between its tokens, over arrays [N].

A batch makes steps together. A step without prompts takes `pace_s`, one that an average request meets `step_s`: prompts
of others stretch it. A request of y tokens has n = (y - 1) / E gaps, in steps that yield E tokens each. What its own
average has more or less than the mean comes from few events, the prompts that come while it is decoded: so averages of
short answers spread more, and the percentiles are those of the mixture over the lengths of answers [K], each Gaussian.

Contexts. Attention to what sequences have cached takes a part of each step, a = `recalled_s` / D of it for the prompt
of each of D sequences. Prompts that are there vary, and who comes later brings another one: over the life of a request
the other places average out to f = 1 / (1 + y / 2 mean(y)) of a variance (2/3 for equal lengths, of which two share a
life), its own does not,
    contexts = a^2 ci^2 (1 + (D - 1) f) + a (step_s - pace_s) ci^2,
the last because a long prompt both stretches steps and stays in them.

Full batch (`at_full_batch`). With every place taken, a prompt comes when another answer ends, so bursts of arrivals do
not matter, and m = D n / o prompts come in n gaps of one of D requests, o the steps of a mean answer. They spread by
the lengths of prompts and of answers,
    variance = (step_s - pace_s)^2 (ci^2 + co^2) / m + contexts.
A request that was prefilled elsewhere waits for up to j steps until the first one with it: mean step_s (1 + j / n).
Drafts are right by chance: n v more variance of the steps, v the variance of a step's tokens over their mean squared.

Below it (`below_full_batch`). With N requests on average, prompts come as arrivals do, with a variability of ca^2, and
a step is longer where more requests are there. A longer step keeps requests longer: both are amplified, the first by
g = step_s / pace_s, as the first passage of a random walk, the number of requests, of variance
    z N / (1 - e),    z = 1 + (ca^2 - 1) / (1 + co^2),    e = N pace_s' / pace_s,
since a batch that shares its steps is a symmetric queue with n / pace_s(n) as its speed: for a linear pace its number
is negative binomial whatever the lengths of answers (Kelly, "Reversibility and stochastic networks" 1979, section 3.3;
z is the peakedness of renewal arrivals at infinitely many servers, exact for exponential and constant lengths; Eckberg,
"Generalized peakedness of teletraffic processes", ITC 10, 1983). Over the life of a request the number averages out to
f of this variance (arrivals of a Poisson process overlap its life on a triangle). With m = N n / o prompts in a life,
    variance = (g pace_s')^2 z N f / (1 - e) + g^2 (step_s - pace_s)^2 (ca^2 + ci^2) / m
             + g^2 pace_s' (step_s - pace_s) ca^2 + g^2 contexts,
the last because who comes meanwhile brings both a prompt and a sequence. Nothing in this is fitted; what simulations of
such batches say is in `benchmarks/token_times.py`.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Indices

HALVINGS = 60
BEYOND = 12.0  # standard deviations above the largest mean: no quantile is longer
LEAST_SPREAD = 1e-12  # of a step: that of times which do not vary


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of a workload: lengths that are equally likely [K], and what varies between requests."""

    tokens: tuple[float, ...]  # [K] of answers with at least two
    cv2: float  # of all answers
    prompt_cv2: float
    arrival_cv2: float

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens) / len(self.tokens)

    @property
    def peakedness(self) -> float:
        """Variance over mean of the number that would be there were places and speed without limit."""
        return 1.0 + (self.arrival_cv2 - 1.0) / (1.0 + self.cv2)

    @property
    def lasting(self) -> Floats:
        """The share of the variance of what is there that is left of its average over the life of an answer [K]."""
        share: Floats = 1.0 / (1.0 + np.array(self.tokens) / (2.0 * self.mean_tokens))
        return share


@dataclass(frozen=True, slots=True)
class GapAverages:
    """The time per output token [N] of answers of each length [K]: Gaussian, of these means and deviations [N, K]."""

    mean_s: Floats
    deviation_s: Floats

    def share_within(self, limit_s: Floats | float) -> Floats:
        """The share of requests [N] whose average gap is no longer."""
        from scipy.special import ndtr

        limit = np.asarray(limit_s, dtype=float)[..., None]
        share: Floats = np.mean(ndtr((limit - self.mean_s) / self.deviation_s), axis=-1)
        return share

    def quantile_s(self, quantile: float) -> Floats:
        """The average gap [N] that this share of requests does not exceed, by bisection."""
        low = np.zeros(len(self.mean_s))
        high: Floats = (self.mean_s + BEYOND * self.deviation_s).max(axis=-1)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            within = self.share_within(middle) >= quantile
            low, high = np.where(within, low, middle), np.where(within, middle, high)
        return high


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Steps of batches in steady state [N]: what is in them, and how long they are."""

    pace_s: Floats  # of a step without prompts
    step_s: Floats  # of the mean one
    sequences: Floats  # of one batch, on average
    batches: Floats  # that make their steps together, so that prompts of any stretch those of all
    yielded: Floats  # tokens of a sequence in a step
    yielded_cv2: Floats  # of these tokens
    recalled_s: Floats  # of a step without prompts, what attention to the prompts of its sequences takes
    joining: float = 0.0  # the most steps until the first one with a request that comes from elsewhere

    def take(self, rows: Indices) -> "SteadySteps":
        """Some of them."""
        return SteadySteps(
            self.pace_s[rows],
            self.step_s[rows],
            self.sequences[rows],
            self.batches[rows],
            self.yielded[rows],
            self.yielded_cv2[rows],
            self.recalled_s[rows],
            self.joining,
        )

    def at_full_batch(self, answers: Answers) -> GapAverages:
        """Averages where every place is taken."""
        steps, prompts = self._steps_and_prompts(answers)
        stretch_s = (self.step_s - self.pace_s)[:, None]
        variance = stretch_s**2 * (answers.prompt_cv2 + answers.cv2) / prompts
        return self._averages(steps, variance + self._contexts(answers), self.joining)

    def below_full_batch(self, answers: Answers, added_s: Floats) -> GapAverages:
        """Averages at the mean number of sequences, of which one more lengthens a step without prompts by `added_s`."""
        steps, prompts = self._steps_and_prompts(answers)
        stretch_s, amplified = self.step_s - self.pace_s, self.step_s / self.pace_s
        elastic = np.minimum(self.sequences * added_s / self.pace_s, 1.0 - 1e-9)
        number = (amplified * added_s) ** 2 * answers.peakedness * self.sequences / (1.0 - elastic)
        present = number[:, None] * answers.lasting
        arriving = (amplified * stretch_s)[:, None] ** 2 * (answers.arrival_cv2 + answers.prompt_cv2) / prompts
        both = (amplified**2 * added_s * stretch_s / self.batches * answers.arrival_cv2)[:, None]
        joined = (self.joining * self.step_s[:, None] / steps) ** 2 / 12.0
        contexts = amplified[:, None] ** 2 * self._contexts(answers)
        return self._averages(steps, present + arriving + both + contexts + joined, self.joining / 2.0)

    def _contexts(self, answers: Answers) -> Floats:
        """The variance of what attention to the prompts that are there takes of the steps of an answer [N, K]."""
        others = np.maximum(self.sequences - 1.0, 0.0)
        each_s = self.recalled_s / (1.0 + others)
        stretched = each_s * (self.step_s - self.pace_s) / self.batches
        lasting = 1.0 + others[:, None] * answers.lasting
        variance: Floats = answers.prompt_cv2 * (each_s[:, None] ** 2 * lasting + stretched[:, None])
        return variance

    def _steps_and_prompts(self, answers: Answers) -> tuple[Floats, Floats]:
        """Steps of the gaps of an answer, and prompts that come meanwhile [N, K]."""
        steps = (np.array(answers.tokens) - 1.0) / self.yielded[:, None]
        mean_steps = answers.mean_tokens / self.yielded
        return steps, (self.sequences * self.batches / mean_steps)[:, None] * steps

    def _averages(self, steps: Floats, variance: Floats, joining: float) -> GapAverages:
        step_s, yielded = self.step_s[:, None], self.yielded[:, None]
        drafted = step_s**2 * self.yielded_cv2[:, None] / steps
        deviation = np.maximum(np.sqrt(variance + drafted), LEAST_SPREAD * step_s)
        return GapAverages(step_s * (1.0 + joining / steps) / yielded, deviation / yielded)
