"""A server of tools over MCP, on stdin and stdout."""

from mcp.server.fastmcp import FastMCP

server = FastMCP("numbers")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    server.run()
