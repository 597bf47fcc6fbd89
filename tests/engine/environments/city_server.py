"""An MCP server by the SDK with three tools, over its standard streams or HTTP."""

import asyncio
import sys

from mcp.server.mcpserver import MCPServer

PEOPLE = {"Oslo": 717710, "Bergen": 291940}
server = MCPServer("cities")


@server.tool()
def population(city: str) -> int:
    """How many people live in a city.

    Args:
        city: Name of the city.
    """
    return PEOPLE[city]


@server.tool()
async def add(first: int, second: int) -> int:
    """Add two numbers."""
    await asyncio.sleep(0.01)
    return first + second


@server.tool(description="Names of the cities that are known.")
def cities() -> list[str]:
    return list(PEOPLE)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
