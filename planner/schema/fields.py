"""Types of fields that many schemas share."""

from typing import Annotated

from pydantic import Field

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
