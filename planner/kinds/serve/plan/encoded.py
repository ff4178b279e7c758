"""What serving plans say of images and sounds: seconds of encoding a request, and what is taken for granted."""

from collections.abc import Iterator

import numpy as np

from planner.costs.operators.work import Shards
from planner.costs.serving.media import encode_times
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.plan.schema import Prediction


def encoding_predictions(setting: ServeSetting, outcome: Outcome, target: Target) -> Iterator[Prediction]:
    """Seconds that the mean request of a workload is encoded, on the slowest instances that prefill it."""
    media = setting.resolved.workloads[target.index].media
    seconds = [
        _encode_s(setting, item, target)
        for item in outcome.roles
        if media is not None and item.load_per_s[target.index] > 0.0 and not item.candidate.decodes
    ]
    if seconds:
        yield Prediction(metric="encode_s", of=target.name, value=max(seconds), approximate=True)


def _encode_s(setting: ServeSetting, item: RoleInUse, target: Target) -> float:
    media = setting.resolved.workloads[target.index].media
    assert media is not None
    costs = setting.costs_of_pool[item.candidate.model, item.candidate.pool].costs
    shards = Shards.of(*(np.array([float(degree)]) for degree in item.candidate.shape.degrees))
    return float(encode_times(costs.arch, costs.pricer, shards, media).mean.device_s[0])


def media_assumptions(setting: ServeSetting, outcome: Outcome) -> Iterator[str]:
    """What encoding is taken to be, and which requests to models with towers are priced as text alone."""
    used = {item.candidate.model for item in outcome.roles}
    for workload in setting.resolved.workloads:
        arch = setting.resolved.models[workload.model]
        towers = " and ".join(dict.fromkeys(f"{encoder.kind} tower" for encoder in arch.encoders))
        if workload.model not in used or not towers:
            continue
        name = workload.spec.name
        if workload.media is None:
            yield (
                f"requests of `{name}` are priced as text alone: the {towers} lies in memory, and computes what "
                "`images` or `audio_s` of a workload say"
            )
            continue
        yield (
            f"what requests of `{name}` bring is encoded in one run of the {workload.media.encoder.kind} tower, in the "
            "step that its prompt begins with; nothing comes twice, longest prompts bring most, and what hosts take to "
            "fetch and resize it is not counted"
        )
