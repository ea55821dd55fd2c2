"""Klavis' sandboxes, as far as its client asks for them: an API, and a tool server for each.

It answers what the client's models say of a sandbox of Linear: made, filled, dumped, released. A
sandbox is what its tool server was asked to write down.
"""

import datetime
import itertools
from typing import Any

from mcp.server.fastmcp import Context, FastMCP
from starlette.requests import Request
from starlette.responses import JSONResponse

server = FastMCP("linear", stateless_http=True)
ids = itertools.count(1)
sandboxes: dict[str, list[dict[str, Any]]] = {}
"""The projects of each that lives."""
released: list[str] = []


@server.tool()
def create_project(name: str, ctx: Context) -> str:
    """Create a project."""
    request: Any = ctx.request_context.request
    sandboxes[request.query_params["sandbox"]].append({"name": name})
    return f"created {name}"


def answer(sandbox: str, status: str = "occupied", **more: Any) -> JSONResponse:
    said = {"sandbox_id": sandbox, "server_name": "linear", "status": status, "message": "done"}
    return JSONResponse(said | more)


@server.custom_route("/sandbox/linear", methods=["POST"])
async def create(request: Request) -> JSONResponse:
    if request.headers.get("authorization") != "Bearer a-key":
        return JSONResponse({"detail": "no such key"}, status_code=401)
    sandbox = f"sandbox-{next(ids)}"
    sandboxes[sandbox] = []
    return answer(sandbox, server_url=f"{request.base_url}mcp?sandbox={sandbox}")


@server.custom_route("/sandbox/linear/{sandbox}/initialize", methods=["POST"])
async def initialize(request: Request) -> JSONResponse:
    sandbox = request.path_params["sandbox"]
    sandboxes[sandbox] += (await request.json())["projects"]
    return answer(sandbox)


@server.custom_route("/sandbox/linear/{sandbox}/dump", methods=["GET"])
async def dump(request: Request) -> JSONResponse:
    sandbox = request.path_params["sandbox"]
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return answer(sandbox, dumped_at=now, data={"projects": sandboxes[sandbox]})


@server.custom_route("/sandbox/linear/{sandbox}", methods=["DELETE"])
async def release(request: Request) -> JSONResponse:
    sandbox = request.path_params["sandbox"]
    del sandboxes[sandbox]
    released.append(sandbox)
    return answer(sandbox, "idle")


@server.custom_route("/health", methods=["GET"])
async def health(request: Request) -> JSONResponse:
    return JSONResponse({"live": len(sandboxes), "released": len(released)})


app = server.streamable_http_app()
