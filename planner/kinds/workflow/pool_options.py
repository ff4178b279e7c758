"""Options of stages that stand on GPUs of the cluster, with times as measured."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from planner.plan.records import Count
from planner.schema.base import Spec, refuse

Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Key = Annotated[str, Field(min_length=1, max_length=60)]


class PoolOption(Spec):
    """GPUs that a replica of a stage stands on."""

    name: Key
    pool: Key | None = Field(default=None, description="of the cluster; the only one when absent")
    gpus: Count = Field(default=1, description="of a replica")


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
