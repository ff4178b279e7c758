"""For every option of every kind of plan that is solved: overrides of two problems that have two plans.

They change the small problems of `tests/kinds/test_nothing_ignored.py`.
"""

from experts_options import EXPERT_LAYOUTS
from fleet_options import FLEET
from place_options import PLACE
from rl_options import RL
from serve_options import SERVE
from train_options import TRAIN
from workflow_options import IMAGES, SCHEDULES, SPEECH, WORKFLOW

LAUNCHED = {
    "serve": ("speculation.algorithm", "speculation.checkpoint"),
    "rl": ("speculation.algorithm", "speculation.checkpoint"),
    "place": ("lora.adapters.*.checkpoint",),
    "workflow": ("stages.*.options.*.image",),
}
"""What only launch scripts read; test_emit_speculation.py, test_rl_targets.py and test_workflow_targets.py hold them
to it, in tests/emit."""

OPTIONS = {
    "workflow": WORKFLOW | SCHEDULES | SPEECH | IMAGES,
    "fleet": FLEET,
    "serve": SERVE,
    "train": TRAIN,
    "rl": RL,
    "experts": EXPERT_LAYOUTS,
    "place": PLACE,
}
