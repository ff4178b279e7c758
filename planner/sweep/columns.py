"""Column names of a sweep's results table."""

ALIASES = {"cost_per_mtok": "usd_per_mtok", "cost": "usd_per_hour"}
USUAL_METRICS = (
    "goodput_per_gpu", "output_tokens_per_s_per_gpu", "usd_per_mtok", "gpus", "usd_per_hour", "ttft_s", "tpot_s",
)  # fmt: skip
FIGURES = ("objective", "bound", "gap")
TEXTS = ("mode", "plan", "within", "conflict", "error", "problem_digest", "plan_digest")
FIXED = ("point", "scenario", "status", "objective_metric", *FIGURES, *TEXTS)


def metric_name(name: str) -> str:
    """The metric behind an alias such as `cost_per_mtok`."""
    return ALIASES.get(name, name)


def axis_column(name: str) -> str:
    """The column of an axis over the field `name`: what is given is told from what comes out of it."""
    return f"given_{name}" if name in (*FIXED, *USUAL_METRICS) else name
