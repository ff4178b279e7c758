"""Names of accelerators inside longer names."""

import re

_KNOWN = (
    "gb300", "gb200", "b300", "b200", "gh200", "h200", "h100", "h800", "h20", "a100", "a800", "a10g", "l40s", "l40",
    "l4", "a10", "v100", "t4", "mi355x", "mi350x", "mi325x", "mi300x", "mi250x", "mi210",
)  # fmt: skip


def accelerator_in(text: str) -> str | None:
    """The one accelerator that `text` names as a whole word; None for none and for several."""
    words = set(re.split(r"[^a-z0-9]+", text.lower()))
    named = [name for name in _KNOWN if name in words]
    return named[0] if len(named) == 1 else None
