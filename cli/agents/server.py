"""The tools as a server of the Model Context Protocol, by its official Python SDK."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.cli.agents import tools
from planner.errors import PlannerError, extra_hint

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS = (
    "Answers where LLM training, serving and RL should run on GPU clusters. Start with `audit` where there is a launch "
    "script, manifest or recipe: give the requests (`workload`), their limits (`slo`) and the machines (`cluster`). "
    "Start with `solve` where there is none. Intervals are 80 %; say them beside every figure."
)
TOOLS: tuple[Callable[..., Any], ...] = (
    tools.audit, tools.read, tools.solve, tools.estimate, tools.explain, tools.emit,
)  # fmt: skip


def make_server() -> "MCPServer":
    """A server with all tools. Raises PlannerError where the SDK is not installed."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        raise PlannerError("the MCP SDK is not installed", hint=extra_hint("mcp")) from None
    from planner import __version__

    server: MCPServer = MCPServer("planner", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    for function in TOOLS:
        server.tool(description=function.__doc__, structured_output=True)(_told(function))
    return server


def tool_rows() -> list[dict[str, str]]:
    """Name and purpose of every tool, in order."""
    return [{"name": function.__name__, "purpose": (function.__doc__ or "").partition("\n")[0]} for function in TOOLS]


def _told(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its errors as those of a tool: one text that says what to mend."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(function)
    def tool(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - what the schema of the function allows
        try:
            return dict(function(**arguments))
        except PlannerError as error:
            raise ToolError(tools.error_text(error)) from None

    return tool
