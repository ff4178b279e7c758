"""Plan kind `workflow`: applications that chain functions and models, each stage sized for the whole."""

from planner.kinds.registry import Kind
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.reads import READS

KIND = Kind(
    name="workflow",
    purpose="options of the stages of an application, functions and served models, judged as a whole",
    options=WorkflowOptions,
    decision=WorkflowDecision,
    reads=READS,
    proofs=("covered",),
)
