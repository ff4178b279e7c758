"""Plans back in the formats of the files that `planner solve` takes."""

from planner.emit.registry import EmitTarget
from planner.interchange.experts_placement import placement_files

TARGETS = (
    EmitTarget(
        "experts-placement",
        "the layout as `phy2log` and `quota`, as benchmarks of expert layouts score it",
        ("experts",),
        placement_files,
    ),
)
