"""Which levels of `planner check` read a flag; at another level it is refused."""

from planner.errors import PlannerError

READ_AT = {
    **dict.fromkeys(("url", "target", "report", "generator", "tokenizer", "duration", "ready"), ("engine",)),
    **dict.fromkeys(("roles", "device", "nproc", "cut", "time_limit"), ("execute",)),
    **dict.fromkeys(("profiles", "calibration"), ("static", "proof", "simulate", "execute")),
    "tolerance": ("execute", "engine"),
    "trace": ("simulate",),
    "decisive": ("simulate",),
    "perfetto": ("simulate", "execute"),
    "inputs": ("static", "proof", "simulate"),
    "refresh": ("static",),
}
"""Levels by the name of a parameter."""


def refuse_other_levels(level: str, **given: object) -> None:
    """Raises PlannerError for the first flag that is given and that `level` does not read."""
    for name, value in given.items():
        if value is not None and level not in READ_AT[name]:
            flag, levels = f"--{name.replace('_', '-')}", " or ".join(f"`--level {other}`" for other in READ_AT[name])
            raise PlannerError(
                f"level {level} does not read `{flag}`", where=flag, hint=f"leave it out, or check with {levels}"
            )


def refuse_serving_alone(kind: str, **given: object) -> None:
    """Raises PlannerError for the first flag that is given and that simulations of serving plans alone read."""
    for name, value in given.items():
        if value is not None:
            what = f"plans of kind `{kind}` are simulated on streams of their own, without `--{name}`"
            raise PlannerError(what, where=f"--{name}", hint="leave it out")
