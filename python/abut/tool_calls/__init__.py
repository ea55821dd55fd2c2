"""Tool calls in what a policy wrote, as typed values."""

from abut.tool_calls.parse import MalformedCall, ParsedCalls, ToolCall, parse_tool_calls

__all__ = ["MalformedCall", "ParsedCalls", "ToolCall", "parse_tool_calls"]
