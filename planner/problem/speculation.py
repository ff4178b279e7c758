"""Schema of speculative decoding in a serving problem: drafter, number of draft tokens, acceptance rate."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import FRACTION, TIME_S
from planner.problem.schema import Problem
from planner.schema.base import Spec, refuse
from planner.schema.fields import Name

MOST_DRAFTS = 16


class SpeculationSpec(Spec):
    """Speculative decoding; `draft_tokens` are an axis of the search, 0 of them stands for none.

    Methods: `mtp`, the prediction heads of the model; `model`, a smaller one of the problem's `models`; `stated`,
    whatever takes `draft_step` for each token.
    """

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "acceptance": ("acceptance", FRACTION),
        "draft_step": ("draft_step_s", TIME_S),
    }
    method: Literal["mtp", "model", "stated"]
    acceptance: Annotated[float, Field(ge=0, le=1)] = Field(
        description="chance of a draft to be right where those before it are"
    )
    draft_tokens: Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_DRAFTS)], ...], Field(min_length=1)] = Field(
        default=(0, 1, 2, 3), description="drafts of a sequence in a step"
    )
    model: Name | None = Field(default=None, description="of method `model`: the key of the draft model in `models`")
    draft_step_s: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="of method `stated`: time of one draft of all sequences"
    )
    algorithm: Literal["eagle", "eagle3", "ngram"] | None = Field(
        default=None, description="of method `stated`: what launch scripts call it"
    )
    checkpoint: Name | None = Field(
        default=None, description="of method `stated`: where engines load an eagle or eagle3 head from"
    )

    @model_validator(mode="after")
    def belongs(self) -> "SpeculationSpec":
        for field, method in (("model", "model"), ("draft_step_s", "stated")):
            short = field.removesuffix("_s")
            if self.method == method and getattr(self, field) is None:
                raise refuse(f"drafts of method `{method}` need `{short}`", f"add `{short}:`")
        for field, method in (("model", "model"), ("draft_step_s", "stated"), ("algorithm", "stated")):
            if self.method != method and getattr(self, field) is not None:
                short = field.removesuffix("_s")
                raise refuse(
                    f"`{short}` is of method `{method}`, not of `{self.method}`",
                    f"leave `{short}` out, or write `method: {method}`",
                    short,
                )
        if (self.algorithm in ("eagle", "eagle3")) != (self.checkpoint is not None):
            raise refuse(
                "`checkpoint` goes with `algorithm: eagle` or `eagle3`, and these with it",
                "give both or neither",
                "checkpoint",
            )
        return self

    @classmethod
    def of(cls, problem: Problem) -> "SpeculationSpec | None":
        """What a valid problem of a serving plan says of it."""
        stated = problem.options.get("speculation")
        return None if stated is None else cls.model_validate(stated)

    @property
    def most(self) -> int:
        """The most drafts that are searched."""
        return max(self.draft_tokens)
