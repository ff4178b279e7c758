"""Releases of engines in the names of images, and what an import makes of them."""

import pytest

from planner.importing.images import release_in
from planner.importing.plans.question import Question
from planner.importing.plans.serving import serving_case
from planner.importing.registry import Artifact, read_artifact


@pytest.mark.parametrize(
    ("engine", "image", "version"),
    [
        ("vllm", "vllm/vllm-openai:v0.10.1", "0.10.1"),
        ("vllm", "registry.local:5000/vllm/vllm-openai:v0.10.0-cu128-nixl-v0.4.1@sha256:0a", "0.10.0"),
        ("vllm", "vllm/vllm-openai:v0.10.1.1", "0.10.1.1"),
        ("sglang", "docker:lmsysorg/sglang:v0.5.3.post1-cu126", "0.5.3.post1"),
        ("trtllm", "nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc6", "1.0.0rc6"),
        ("vllm", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1", "0.23.0"),
        ("trtllm", "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post1", "1.2.0rc6"),
        ("sglang", "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.6.0-deepseek-v4.1-flash-dev.1", None),
        ("vllm", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:9.9.9", None),
        ("sglang", "lmsysorg/sglang:latest", None),
        ("sglang", "vllm/vllm-openai:v0.10.1", None),
        ("vllm", "vllm/vllm-openai:gptoss", None),
        ("trtllm", "nvcr.io/nvidia/tritonserver:25.08-trtllm-python-py3", None),
    ],
)
def test_tags_of_images_name_releases(engine: str, image: str, version: str | None) -> None:
    release = release_in(engine, [image])
    assert (release and release.version) == version


POD = """apiVersion: apps/v1
kind: Deployment
metadata: {{name: served}}
spec:
  template:
    spec:
      containers:
      - image: {image}
        command: [vllm, serve, Qwen/Qwen3-32B]
        args: [--tensor-parallel-size=2]
        resources: {{limits: {{nvidia.com/gpu: 2}}}}
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (POD.format(image="vllm/vllm-openai:v0.11.0"), "0.11.0"),
        (POD.format(image="mine/own:v1.0"), None),
        ("#!/bin/bash\ndocker run --gpus all vllm/vllm-openai:v0.7.3 --model Qwen/Qwen3-32B -tp 2\n", "0.7.3"),
        (
            "#!/bin/bash\nsrun --container-image=lmsysorg/sglang:v0.5.3 python3 -m sglang.launch_server --tp 2\n",
            "0.5.3",
        ),
    ],
)
def test_the_release_in_an_image_is_that_of_the_problem(text: str, version: str | None) -> None:
    question = Question.of(
        workload="input=1500,output=300,rate=2/s", cluster="gpu=h100,nodes=1", model="Qwen/Qwen3-32B"
    )
    case = serving_case(read_artifact(Artifact(text, "run", {})), question)
    assert case.document["engine"].get("version") == version
    assert any("named by the image" in note for note in case.notes) is (version is not None)
    if version == "0.7.3":
        assert any("default here is 256" in note for note in case.notes)
