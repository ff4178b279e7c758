"""`planner mcp`: the tools for agents, over standard input and output."""


def mcp() -> int:
    """Serve audit, read, solve, estimate, explain and emit to an agent by the Model Context Protocol.

    Speaks over standard input and output, as agents start it; needs the extra `mcp`. SKILL.md says how to use it.

    Examples:

      planner mcp
    """
    from planner.cli.agents.server import make_server

    make_server().run("stdio")
    return 0
