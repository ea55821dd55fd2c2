"""Conversations on a terminal: print the messages, and let a person type the policy's turns.

Invariant: text from an environment or a policy cannot control the terminal.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from abut.concurrency.threads import THREADS
from abut.errors import SamplerError, printable
from abut.messages import Message, images_of, texts_of


class Shown:
    """Prints the messages of one conversation as they come.

    Args:
        out: the stream to print to.
        typed: the policy's turns are typed on the same terminal, so their text is not repeated;
            tool calls are printed, to show that they were read as calls.
    """

    def __init__(self, out: TextIO, *, typed: bool = False) -> None:
        self._out, self._typed = out, typed
        self._shown: list[Message] = []

    def show(self, messages: Sequence[Message]) -> None:
        """Print the new messages, or all of them if another conversation begins."""
        messages = list(messages)
        known = len(self._shown)
        if messages[:known] != self._shown:
            known = 0
            self._out.write("---- another conversation\n")
        for message in messages[known:]:
            if self._typed and message.get("role") == "assistant" and not message.get("tool_calls"):
                self._out.write("\n")
                continue
            self._out.write(f"[{message.get('role')}]\n{text_of(message)}\n\n")
        self._shown = messages
        self._out.flush()


def text_of(message: Message) -> str:
    """Return a message as text for a terminal, its calls and images included."""
    lines = list(filter(None, texts_of(message)))
    lines += [
        f"<image {image.width}x{image.height}>" for image in images_of(message.get("content"))
    ]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or call
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        lines.append(f"-> {function.get('name')} {arguments}")
    return printable("\n".join(lines))


class ByHand:
    """A `TextSampler`: a person types the turns of the policy.

    A turn that begins with the name of a tool calls it: `search {"query": "rivers"}`.

    Args:
        out: the stream on which the tools are listed.
        ask: reads a line, given the prompt to print before it.
    """

    def __init__(self, out: TextIO, ask: Callable[[str], str] = input) -> None:
        self._out, self._ask = out, ask
        self._told: Sequence[Any] = []

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> Message:
        """Ask for the next turn.

        Raises:
            SamplerError: the input has ended (Ctrl-D).
        """
        functions = [tool.get("function") or tool for tool in tools]
        if functions != self._told:
            self._told = functions
            for function in functions:
                self._out.write(printable(f"[tool] {json.dumps(function, ensure_ascii=False)}\n"))
            self._out.write(
                "[tool] to call a tool, type its name, a space, and its arguments as JSON\n\n"
            )
        try:
            # On a daemon thread, because another one would keep the process alive while it waits.
            typed = await THREADS.ask(lambda: self._ask("you> "))
        except EOFError:
            raise SamplerError("the input has ended (Ctrl-D)") from None
        name, _, rest = typed.strip().partition(" ")
        if any(name == function.get("name") for function in functions):
            try:
                arguments = json.loads(rest or "{}")
            except ValueError:
                arguments = None
            if isinstance(arguments, dict):
                call = {"function": {"name": name, "arguments": arguments}}
                return {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"role": "assistant", "content": typed}
