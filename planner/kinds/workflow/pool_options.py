"""Options of stages that stand on GPUs of the cluster, with times as measured."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from planner.documents.units import FRACTION
from planner.plan.records import Count
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive

Amount = Annotated[float, Field(ge=0)]
Key = Annotated[str, Field(min_length=1, max_length=60)]


class PoolOption(Spec):
    """GPUs that a replica of a stage stands on, or the share that it takes of one."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"gpu_share": ("gpu_share", FRACTION)}
    name: Key
    pool: Key | None = Field(default=None, description="of the cluster; the only one when absent")
    gpus: Count = Field(default=1, description="of a replica")
    gpu_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="of one GPU, with times as measured beside others; a replica has it alone when absent"
    )

    @model_validator(mode="after")
    def of_one_gpu(self) -> "PoolOption":
        if self.gpu_share is not None and self.gpus > 1:
            what = f"option `{self.name}` takes a share of one GPU, and has {self.gpus}"
            raise refuse(what, "remove `gpus` or `gpu_share`", "gpu_share")
        return self


class PrefillOption(PoolOption):
    """Seconds to prefill a prompt with the tokens of what was encoded."""

    base_s: Amount = 0.0
    per_token_s: Amount = 0.0


class DecodeOption(PoolOption):
    """Replies that a replica runs at once, and seconds a token of each of them with all slots full."""

    slots: Count
    step_s: Positive


def require_names(stage: str, options: Sequence[PoolOption]) -> None:
    """Refuses two options of a stage with the same name."""
    names = [option.name for option in options]
    if len(set(names)) != len(names):
        raise refuse(f"two options of `{stage}` have the same name", "give each its own", stage)
