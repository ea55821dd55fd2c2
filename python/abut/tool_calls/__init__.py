"""Tool calls in what a policy wrote, as typed values."""

from abut.tool_calls.parse import parse_tool_calls
from abut.tool_calls.parsed import MalformedCall, ParsedCalls, ToolCall

__all__ = ["MalformedCall", "ParsedCalls", "ToolCall", "parse_tool_calls"]
