"""`planner mcp`: the tools for agents, over standard input and output."""

from planner.cli.options import Json
from planner.cli.output import write_json


def mcp(as_json: Json = False) -> int:
    """Serve audit, read, solve, estimate, explain and emit to an agent by the Model Context Protocol.

    Speaks over standard input and output, as agents start it; needs the extra `mcp`. SKILL.md says how to use it.
    With --json the tools are listed and nothing is served.

    Examples:

      planner mcp

      planner mcp --json
    """
    if as_json:
        from planner.cli.agents.server import tool_rows

        write_json({"schema": "planner.tools/1", "tools": tool_rows()})
        return 0
    from planner.cli.agents.server import make_server

    make_server().run("stdio")
    return 0
