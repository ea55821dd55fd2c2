"""A harness of verifiers that runs in this process, with MCP tools and without commands.

verifiers' `null` harness does the same, but starts a program for each turn: 4.8 s a turn on two
cores, of which the model takes 0.2 s.

Invariant: each call of the model goes through the interception server of verifiers, which keeps
the trace and forwards the call with the trace's id. Import this module only where verifiers is
installed.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS, bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]

_ID = "abut_chat"
_RETRIES = 2
_RETRIED = (408, 429, 500, 502, 503, 504)
"""HTTP statuses to retry: the ones that OpenAI's clients, which other harnesses use, retry."""
_FIRST_WAIT_S = 0.5


class ChatHarness(Harness[HarnessConfig]):  # type: ignore[misc]
    """Calls the model, and the tools that it asks for, until it answers without a tool call."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Play one segment; see `verifiers.v1.Harness.launch`."""
        messages = self._opening(data)
        async with AsyncExitStack() as stack:
            client = _ModelClient(endpoint, secret, tool_interception_url)
            await stack.enter_async_context(client.session)
            tools = _McpTools()
            if mcp_urls:
                await tools.connect(mcp_urls, self.config.tool_timeout, stack)
            while True:
                status, answer = await client.ask(ctx.model, messages, tools.schemas)
                if status != 200:
                    # A full context ends the conversation; it is not a failure.
                    is_full = status in (400, 413) and _says_full(answer)
                    return ProgramResult(0 if is_full else 1, "", "" if is_full else str(answer))
                (choice,) = answer["choices"]
                said = {key: value for key, value in choice["message"].items() if value is not None}
                messages.append(said)
                for call in said.get("tool_calls") or ():
                    message = await client.denial_of(call) or await tools.result_of(call)
                    messages.append(bound_tool_message(message))
                if not said.get("tool_calls"):
                    return ProgramResult(0, "", "")

    def _opening(self, data: Any) -> list[dict[str, Any]]:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*messages, {"role": "user", "content": prompt}]
        return messages + [message_to_wire(message) for message in prompt or ()]


class _ModelClient:
    """Asks verifiers' interception server, as one segment of one trace."""

    def __init__(self, endpoint: str, secret: str, gate: str | None) -> None:
        self._url, self._gate = f"{endpoint}/chat/completions", gate
        # The rollout has time limits of its own.
        self.session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {secret}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        )

    async def ask(
        self, model: str, messages: Sequence[Any], tools: Sequence[Any]
    ) -> tuple[int, Any]:
        """Return the HTTP status, and a completion or the text of an error."""
        body = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        for attempt in range(_RETRIES + 1):
            if attempt:
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
            # A server that reads this header answers a retry with the answer that was lost.
            retry = {"x-stainless-retry-count": str(attempt)} if attempt else {}
            async with self.session.post(self._url, json=body, headers=retry) as response:
                if response.status == 200:
                    return 200, await response.json()
                status, text = response.status, await response.text()
            if status not in _RETRIED:
                break
        return status, text

    async def denial_of(self, call: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the message in place of a call's result if the task denies the call, or None.

        Raises:
            RuntimeError: the task stops the rollout.
        """
        if self._gate is None:
            return None
        function = call["function"]
        question = {
            "tool_call_id": call["id"],
            "name": function["name"],
            "arguments": _json(function.get("arguments"), otherwise=function.get("arguments")),
        }
        async with self.session.post(self._gate, json=question) as response:
            response.raise_for_status()
            decision = await response.json()
        if decision["action"] == "stop":
            raise RuntimeError(decision["reason"])
        return decision["message"] if decision["action"] == "deny" else None


class _McpTools:
    """The MCP tools of one segment."""

    def __init__(self) -> None:
        self.schemas: Sequence[Any] = ()
        self._dispatch: Mapping[str, Any] = {}
        self._servers: Mapping[str, Any] = {}

    async def connect(
        self, urls: Mapping[str, str], timeout_s: float, stack: AsyncExitStack
    ) -> None:
        """Connect to the MCP servers; the stack closes the connections."""
        specs = {name: {"url": url, "timeout": timeout_s} for name, url in urls.items()}
        connected = await connect_mcp({"mcpServers": specs}, stack)
        self.schemas, self._dispatch, self._servers = connected

    async def result_of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tool message for a call: its result, or the error in the call."""
        name = call["function"]["name"]
        arguments = _json(call["function"].get("arguments"))
        if name not in self._dispatch:
            content: Any = f"error: unknown tool {name!r}"
        elif not isinstance(arguments, dict):
            content = "error: the arguments of a tool must be a JSON object"
        else:
            content = await call_mcp(self._servers, self._dispatch, name, arguments)
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


def _json(text: str | None, otherwise: Any = None) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return otherwise


def _says_full(text: str) -> bool:
    return any(marker in text.casefold() for marker in CONTEXT_OVERFLOW_MARKERS)


def chat_harness_id() -> str:
    """Return the id by which verifiers finds this harness.

    verifiers imports an id as a top-level module, so an id must not have a dot. This module gets a
    second name without one.
    """
    sys.modules.setdefault(_ID, sys.modules[__name__])
    return _ID
