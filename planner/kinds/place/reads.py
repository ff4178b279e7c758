"""What `planner check` reads of the problem that a placement of many models carries; no such plan is solved."""

from planner.problem.reads import NODES, WHOLE, Reads

READS = Reads(
    plans="placements",
    fields=WHOLE
    | NODES
    | {"models.*.weights", "models.*.kv_cache"}
    | {f"workloads.*.{name}" for name in ("name", "model", "input_tokens", "output_tokens", "load")},
    limits=frozenset(),
)
