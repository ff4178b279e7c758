"""The tools for agents, called by the client of the official SDK."""

import asyncio
from importlib.util import find_spec
from typing import Any

import pytest

from planner.cli.agents import tools
from planner.cli.agents.server import make_server

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra `mcp`")

SCRIPT = """#!/bin/bash
export HF_TOKEN=hf_secret12345
vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --max-model-len 8192
"""
QUESTION = {"workload": "input=500,output=50,rate=2/s", "slo": "ttft=4s,itl=100ms", "cluster": "gpu=h100,gpus=1"}


def called(name: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - plain data
    from mcp import Client

    async def call() -> Any:  # noqa: ANN401 - plain data
        async with Client(make_server()) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(call())


def test_an_agent_has_the_answer_in_one_call() -> None:
    result = called("audit", {"text": SCRIPT} | QUESTION)
    assert not result.is_error
    document = result.structured_content
    assert document["now"]["requests_per_s_interval"][0] > 0
    assert "needs" in document["free"][0]["title"]
    assert "hf_secret12345" not in str(result)


def test_what_is_missing_is_one_text() -> None:
    result = called("audit", {"text": SCRIPT, "workload": "input=500,output=50"})
    assert result.is_error
    assert "on which GPUs, at which rate requests come, which limits they have" in str(result.content)


def test_a_plan_is_solved_explained_and_emitted() -> None:
    problem = {
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "h100", "gpus": 1}]},
        "workloads": [{"input_tokens": 100, "output_tokens": 10, "load": {"rate_per_s": 1.0}}],
        "objective": {"minimize": "gpus"},
    }
    plan = called("solve", {"problem": problem}).structured_content
    assert plan["schema"] == "planner.plan/1"
    assert called("explain", {"plan": plan}).structured_content["schema"].startswith("planner.explanation")
    files = called("emit", {"plan": plan, "target": "vllm"}).structured_content["files"]
    assert any("vllm" in text for text in files.values())


def test_errors_hold_no_secrets() -> None:
    from planner.errors import PlannerError

    assert "hf_secret12345" not in tools.error_text(PlannerError("found `HF_TOKEN=hf_secret12345`"))


def test_every_tool_has_a_description() -> None:
    from mcp import Client

    async def listed() -> Any:  # noqa: ANN401 - plain data
        async with Client(make_server()) as client:
            return await client.list_tools()

    names = {tool.name: tool.description for tool in asyncio.run(listed()).tools}
    assert set(names) == {"audit", "read", "solve", "estimate", "explain", "emit"}
    assert all(names.values())
