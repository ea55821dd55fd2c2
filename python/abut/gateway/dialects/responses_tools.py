"""The tools of OpenAI Responses: one flat name for each, and the items of their calls.

Invariant: a call that is written as an item and read again equals the call that was sampled.
"""

import json
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from abut.gateway.dialects.dialect import check_tools
from abut.gateway.ledger.comparable import MOST_DEPTH, arguments_of, comparable, is_deep
from abut.gateway.ledger.refusal import Refusal, short

TOOL_SEARCH = "tool_search"
COMPUTER = "computer"
"""The tool name of computer calls in a history; they are never the policy's own."""
_NAMESPACE_END = "__"
_NO_ARGUMENTS = {"type": "object", "properties": {}}
_TEXT_ARGUMENT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


class ToolName(NamedTuple):
    """The parts of a tool's flat name."""

    kind: str
    """The type of the tool: `function`, `custom` or `tool_search`."""
    namespace: str | None
    name: str


class ResponsesTools(NamedTuple):
    """The tools of a request body."""

    shown: list[dict[str, Any]]
    """The functions that the prompt has, by their flat names."""
    names: dict[str, ToolName]
    """The parts of each flat name, including tools that a search found."""
    left_out: list[str]
    """The tools that OpenAI's servers run."""


def add_tools(tools: ResponsesTools, given: Any, namespace: str | None = None) -> None:
    """Add the tools of a list to those of a body.

    Raises:
        Refusal: the list has something else or too many tools; or two tools would have the same
            name in the prompt, so a call would be ambiguous.
    """
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise Refusal("tools must be a list of objects", param="tools")
    check_tools(given)
    for tool in given:
        kind = tool.get("type")
        name = TOOL_SEARCH if kind == TOOL_SEARCH else tool.get("name")
        runs_here = kind in ("function", "custom", "namespace") or (
            kind == TOOL_SEARCH and tool.get("execution") == "client"
        )
        if not runs_here:
            tools.left_out.append(f"tools[{kind}]")
            continue
        if not isinstance(name, str) or not name:
            raise Refusal(f"a tool of the type {short(kind)} has no name", param="tools")
        if kind == "namespace":
            if namespace is not None:
                raise Refusal(
                    f"the namespace {short(name)} is inside the namespace {short(namespace)}\n"
                    "hint: put only functions and custom tools into a namespace",
                    param="tools",
                )
            add_tools(tools, tool.get("tools"), name)
            continue
        _add_tool(tools, tool, ToolName(str(kind), namespace, name))
    check_tools(tools.shown)


def _add_tool(tools: ResponsesTools, tool: Mapping[str, Any], named: ToolName) -> None:
    flat = flat_name(named.namespace, named.name)
    if (other := tools.names.setdefault(flat, named)) != named:
        raise Refusal(
            f"{_described(other)} and {_described(named)} would both be called {short(flat)} in "
            "the prompt\nhint: rename one of them",
            param="tools",
        )
    function = {"name": flat}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    custom = named.kind == "custom"
    parameters = _TEXT_ARGUMENT if custom else tool.get("parameters") or _NO_ARGUMENTS
    tools.shown.append({"type": "function", "function": {**function, "parameters": parameters}})


def _described(tool: ToolName) -> str:
    where = "" if tool.namespace is None else f" of namespace {short(tool.namespace)}"
    return f"the {tool.kind} tool {short(tool.name)}{where}"


def flat_name(namespace: Any, name: str) -> str:
    """Return the name of a tool in the prompt."""
    return f"{namespace}{_NAMESPACE_END}{name}" if isinstance(namespace, str) else name


def call_of_item(
    item: Mapping[str, Any], where: str, names: Mapping[str, ToolName]
) -> dict[str, Any]:
    """Return the call that an item is.

    The call of a custom tool keeps its type, see `is_custom_call`.
    """
    kind = item["type"].removesuffix("_call")
    id_, name = item.get("call_id"), kind if kind in (TOOL_SEARCH, COMPUTER) else item.get("name")
    if not isinstance(id_, str) or not isinstance(name, str):
        raise Refusal(f"{where} is a function call without a call_id or a name", param="input")
    arguments = item.get("arguments")
    if kind == "custom_tool":
        arguments = {"input": item.get("input") or ""}
    elif kind == COMPUTER:
        arguments = {key: item[key] for key in ("action", "actions") if item.get(key) is not None}
    if not isinstance(arguments, str | dict) or is_deep(arguments):
        raise Refusal(
            f"{where} must have arguments, a string or an object nested at most {MOST_DEPTH} deep",
            param="input",
        )
    flat = flat_name(item.get("namespace"), name)
    custom = kind == "custom_tool" and flat in names and names[flat].kind == "custom"
    function = {"name": flat, "arguments": arguments}
    return {"id": id_, "type": "custom" if custom else "function", "function": function}


def is_custom_call(call: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether a call is the policy's, as `item_of_call` writes it for a custom tool.

    If the policy calls such a tool with arguments that are not a string, the item has them as JSON.

    Args:
        call: as `call_of_item` returns it.
        own: the call of the policy.
    """
    function, mine = call["function"], own["function"]
    return (
        call.get("type") == "custom"
        and function["name"] == mine["name"]
        and function["arguments"] == {"input": mine["arguments"]}
    )


def unwrapped(key: tuple[Hashable, Hashable]) -> tuple[Hashable, Hashable]:
    """Return the key of a call, the same for both spellings of a custom tool's arguments."""
    name, arguments = key
    if isinstance(arguments, tuple) and arguments[0] == "object" and len(arguments[1]) == 1:
        ((field, text),) = arguments[1]
        if field == "input" and isinstance(text, str):
            return name, comparable(arguments_of(text))
    return key


def item_of_call(call: Mapping[str, Any], names: Mapping[str, ToolName]) -> dict[str, Any]:
    """Return the item of a call, without its own id."""
    flat, arguments = call["function"]["name"], call["function"]["arguments"]
    kind, namespace, name = names.get(flat, ToolName("function", None, flat))
    item = {"call_id": call["id"], "status": "completed"}
    if kind == TOOL_SEARCH:
        read = json.loads(arguments)
        return {**item, "type": "tool_search_call", "execution": "client", "arguments": read}
    if kind == "custom":
        read = json.loads(arguments)
        text = read.get("input") if [*read] == ["input"] else None
        given = text if isinstance(text, str) else arguments
        item |= {"type": "custom_tool_call", "name": name, "input": given}
    else:
        item |= {"type": "function_call", "name": name, "arguments": arguments}
    return item if namespace is None else {**item, "namespace": namespace}
