"""Samples of an iteration: single-turn lengths, or multi-turn trajectories with tool calls.

Array suffixes: N samples or trajectories, T turns of all trajectories.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """Trajectory i has the turns first_N[i] to first_N[i + 1]; `predicted_T` are tokens left before each turn."""

    prompt_N: Ints
    first_N: Ints  # N + 1 entries
    output_T: Ints
    tool_s_T: Floats
    observation_T: Ints
    predicted_T: Floats

    @property
    def size(self) -> int:
        return len(self.prompt_N)

    @property
    def final_context_N(self) -> Ints:
        """Tokens that a trajectory holds in the end, observations after its last turn left out."""
        total_T = self.output_T + self.observation_T
        return self.prompt_N + np.add.reduceat(total_T, self.first_N[:-1]) - self.observation_T[self.first_N[1:] - 1]

    @property
    def remaining_T(self) -> Ints:
        """Output tokens of each turn and of those after it."""
        after = np.cumsum(self.output_T[::-1])[::-1]
        beyond = np.append(after, 0)[np.repeat(self.first_N[1:], np.diff(self.first_N))]
        return np.asarray(after - beyond)

    @property
    def whole(self) -> "SampleBatch":
        """Their lengths as those of samples: all output, behind prompts and observations."""
        output_N = np.asarray(self.remaining_T[self.first_N[:-1]])
        return SampleBatch(self.final_context_N - output_N, output_N)


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """The samples of one iteration; `rank_key_N` is what a length predictor says (larger: longer), if there is one.

    With `turns`, samples wait for tools in between; `prompt_tokens_N` then counts their observations too. With
    `prompt_N`, samples are trained on by whole prompts: the number of its prompt, -1 of one that is dropped, since its
    samples have all the same reward (DAPO, arXiv:2503.14476, section 3.2).
    """

    prompt_tokens_N: Ints
    output_tokens_N: Ints
    rank_key_N: Floats | None = None
    turns: Trajectories | None = None
    prompt_N: Ints | None = None

    @property
    def size(self) -> int:
        return len(self.output_tokens_N)

    def taken_s(self, done_s_N: Floats) -> Floats:
        """When each sample can be trained on [N], by when they are done: with its prompt, never if that is dropped."""
        if self.prompt_N is None:
            return done_s_N
        whole_s_P = np.zeros(int(self.prompt_N.max(initial=-1)) + 2)
        np.maximum.at(whole_s_P, self.prompt_N, done_s_N)  # what is dropped counts as the last prompt
        return np.where(self.prompt_N >= 0, whole_s_P[self.prompt_N], np.inf)

    @property
    def predicted_N(self) -> Floats:
        """The predictor's key, or the true length where there is no predictor."""
        return self.output_tokens_N.astype(float) if self.rank_key_N is None else self.rank_key_N

    @property
    def tokens_N(self) -> Ints:
        """Prompt and output of each sample."""
        return self.prompt_tokens_N + self.output_tokens_N

    @property
    def trajectories(self) -> Trajectories:
        """The samples with their turns; plain ones have one turn each and are predicted by their keys."""
        if self.turns is not None:
            return self.turns
        none_N = np.zeros(self.size, np.int64)
        first = np.arange(self.size + 1)
        return Trajectories(
            self.prompt_tokens_N, first, self.output_tokens_N, np.zeros(self.size), none_N, self.predicted_N
        )
