"""A server of fastmcp over HTTP: `python mcp_http.py PORT`. It asks for a header."""

import os
import sys

from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from fastmcp.utilities.types import Image

RED_DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080200000090"
    "7753de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
"""A PNG of one pixel."""

server: FastMCP = FastMCP("small")


@server.tool
def whoami() -> str:
    """Say which process this is, and what the client's header says."""
    return f"{os.getpid()} {get_http_headers().get('x-key', 'nobody')}"


@server.tool
def divide(a: int, b: int) -> float:
    """Divide two numbers."""
    return a / b


@server.tool
def picture() -> Image:
    """Show a red dot."""
    return Image(data=RED_DOT, format="png")


if __name__ == "__main__":
    server.run(
        transport="http",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        show_banner=False,
        log_level="error",
    )
