"""Vision-language models for Megatron-Bridge: what of them is frozen, and mock images until data is given.

Its model providers of Qwen3-VL hold the tower on the first stage of the pipeline (megatron/bridge/models/qwen_vl), its
recipes feed them by `vlm_step` and datasets of conversations (megatron/bridge/data/vlm_datasets/mock_provider.py).
"""

import json

from planner.emit.refusals import refuse
from planner.emit.training.job import LaunchJob
from planner.emit.training.megatron_model import Fields
from planner.engines.trained_models import towers_untrained

DATA_OF_TOWERS = "from megatron.bridge.data.vlm_datasets.mock_provider import MockVLMConversationProvider"
_MOCK = """    config.dataset = MockVLMConversationProvider(
        seq_length={tokens}, hf_processor_path=MODEL, image_size={size}, num_images={images}, pad_to_max_length=True
    )
"""


def require_towers(job: LaunchJob) -> None:
    """Raises PlannerError for modules that Megatron-Bridge does not train on the stages of the language model."""
    for module in job.decision.modules:
        beyond = towers_untrained(job.model, job.options.task, module.name)
        if beyond is not None:
            raise refuse(beyond[0], "modules", beyond[1])


def frozen_fields(job: LaunchJob) -> Fields:
    """Settings of the provider for what does not learn."""
    if not job.decision.modules:
        return {}
    frozen = job.options.frozen
    return {
        "freeze_language_model": False,
        "freeze_vision_model": "encoder" in frozen,
        "freeze_vision_projection": "projector" in frozen,
    }


def mock_images(job: LaunchJob) -> str:
    """The dataset of the program: those images of one size that are the most pixels of a sample."""
    images = [image for sample in job.options.samples for image in sample.images]
    most = max(images, key=lambda image: image.width * image.height * image.count)
    return _MOCK.format(tokens=job.options.sequence_tokens, size=(most.width, most.height), images=most.count)


def sample_order(job: LaunchJob) -> dict[str, str]:
    """A file for the loader of the data: which make of sample each replica takes when; none where all are alike."""
    order = job.decision.sample_order
    if order is None:
        return {}
    makes = [sample.model_dump(mode="json", exclude_defaults=True) for sample in job.options.samples]
    replicas = [[list(order.micro_batches[row]) for row in own] for own in order.orders]
    return {"sample_order.json": json.dumps({"samples": makes, "micro_batches_of_replica": replicas}) + "\n"}
