"""Plan kind `place`: many models on groups of GPUs that they share (multiplexing)."""

from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.kinds.place.reads import READS
from planner.kinds.registry import Kind
from planner.plan.restated import SOLVED_AGAIN

KIND = Kind(
    name="place",
    purpose="which models live on which groups of devices, and with what parallelism",
    options=PlaceOptions,
    decision=PlaceDecision,
    reads=READS,
    proofs=(SOLVED_AGAIN,),
    moved=True,
)
