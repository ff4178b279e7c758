"""The serving engines that are known, by name."""

from typing import Literal, get_args

from planner.engines.serving import sglang, trtllm, vllm
from planner.engines.serving.description import EngineDescription

ServingEngineName = Literal["vllm", "sglang", "trtllm"]
SERVING_ENGINES: dict[str, EngineDescription] = {
    engine.name: engine for engine in (vllm.ENGINE, sglang.ENGINE, trtllm.ENGINE)
}
assert tuple(SERVING_ENGINES) == get_args(ServingEngineName)
