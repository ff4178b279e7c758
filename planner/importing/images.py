"""Releases of serving engines, by the names of the container images that hold them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RELEASE = r"v?(?P<release>\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)*)(?:-[\w.-]*)?\Z"
_OWN = {
    "vllm": re.compile(rf"(?:^|[/:])vllm-openai:{_RELEASE}"),
    "sglang": re.compile(rf"(?:^|[/:])sglang:{_RELEASE}"),
    "trtllm": re.compile(rf"(?:^|[/:])tensorrt-llm/release:{_RELEASE}"),
}
"""Images of the engines themselves: their tags are releases, with the CUDA of a build behind them."""
_DYNAMO = re.compile(
    r"(?:^|[/:])(?:vllm|sglang|tensorrtllm)-runtime:v?(?P<release>\d+\.\d+\.\d+)(?:\.post\d+)?(?:-cuda\d+)?\Z"
)
_ENGINES_OF_DYNAMO = {
    (0, 6): {"vllm": "0.11.0", "sglang": "0.5.3.post2", "trtllm": "1.1.0rc5"},
    (0, 7): {"vllm": "0.11.0", "sglang": "0.5.4.post3", "trtllm": "1.2.0rc3"},
    (0, 8): {"vllm": "0.12.0", "sglang": "0.5.6.post2", "trtllm": "1.2.0rc6"},
    (0, 9): {"vllm": "0.14.1", "sglang": "0.5.8", "trtllm": "1.3.0rc1"},
    (1, 1): {"vllm": "0.19.0", "sglang": "0.5.10.post1", "trtllm": "1.3.0rc11"},
    (1, 2): {"vllm": "0.20.1", "sglang": "0.5.11", "trtllm": "1.3.0rc14"},
    (1, 3): {"vllm": "0.23.0", "sglang": "0.5.14", "trtllm": "1.3.0rc19"},
}
"""Engines in Dynamo's runtimes by its minor release: its support matrices of 0.9.1, 1.1.1, 1.2.0 and 1.3.0
(docs.nvidia.com/dynamo, `resources/support-matrix`). Builds for one model have engines of their own."""


@dataclass(frozen=True, slots=True)
class EngineRelease:
    """A release that an artifact names, and in words where."""

    version: str
    source: str


def release_in(engine: str, images: Iterable[str]) -> EngineRelease | None:
    """The release of the engine in the first of these images, or words, that names one."""
    for image in images:
        name = image.partition("@")[0].strip("'\"")
        own = _OWN[engine].search(name) if engine in _OWN else None
        if own is not None:
            return EngineRelease(own["release"], f"the image `{name}`")
        runtime = _DYNAMO.search(name)
        if runtime is not None:
            major, minor, *_ = map(int, runtime["release"].split("."))
            version = _ENGINES_OF_DYNAMO.get((major, minor), {}).get(engine)
            source = f"Dynamo {runtime['release']}, of the image `{name}`"
            return None if version is None else EngineRelease(version, source)
    return None
