"""A server of the Model Context Protocol over stdio in plain Python, which starts at once.

It fails where a test wants it to: `python mcp_stdio.py [FILE]`, whose words name the tools. With
the word `silent` it never lists them, with `endless` it lists more and more.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TEXT = {"type": "string", "description": "Any text."}
TOOLS: dict[str, dict[str, Any]] = {
    "count": {},
    "environment": {},
    "refuse": {"why": TEXT},
    "fail": {"why": TEXT},
    "describe": {},
    "die": {"once": TEXT},
}
state = {"count": 0}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "count":
        state["count"] += 1
        return text(f"{state['count']} in {os.getpid()}")
    if name == "environment":
        names = Path("/proc/self/environ").read_bytes().decode().split("\0")
        return text(" ".join(sorted(name.partition("=")[0] for name in names if name)))
    if name == "fail":
        return text(arguments["why"], isError=True)
    if name == "describe":
        return {"content": [], "structuredContent": {"sum": 3}}
    if name == "die":
        try:
            Path(arguments["once"]).touch(exist_ok=False)
        except FileExistsError:
            return text("alive")
        print("the last words", os.environ.get("TOKEN", ""), file=sys.stderr, flush=True)
        os._exit(3)
    raise ValueError(arguments.get("why", f"no tool {name}"))


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "small", "version": "1"},
        }
    if method == "tools/list":
        names = Path(sys.argv[1]).read_text().split() if sys.argv[1:] else list(TOOLS)
        if "silent" in names:
            time.sleep(999)
        page: dict[str, Any] = {}
        if "endless" in names:
            begun = int(params.get("cursor", 0))
            names, page = [f"t{begun + k}" for k in range(500)], {"nextCursor": str(begun + 500)}
        return {"tools": [{"name": name, "inputSchema": schema(name)} for name in names], **page}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    raise LookupError(method)


def schema(name: str) -> dict[str, Any]:
    properties = TOOLS.get(name, {})
    return {"type": "object", "properties": properties, "required": list(properties)}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        said = {"jsonrpc": "2.0", "id": asked["id"]}
        try:
            said["result"] = answer(asked["method"], asked.get("params") or {})
        except LookupError as error:
            said["error"] = {"code": -32601, "message": f"no method {error}"}
        except ValueError as error:
            said["error"] = {"code": -32602, "message": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
