"""What a rollout's calls are without their texts: who answered whom, what a request stands for.

A request is a list of items. An answer of the policy is the node that gave it, however a client
writes it; where an edit made another thing of it, it is a text that somebody said. So the longest
common beginning is found by identity, and nothing here compares texts as the gateway does. What
the sampler has to be asked with is rendered anew by `transformers`, with the recorded tokens in
place of the answers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from abut.gateway.ledger.callers import NOBODY, Caller
from tests.kit.clients.random_policy import STOPS, Heard

Message = dict[str, Any]
Item = tuple[Any, ...]
"""`("said", text)`, `("answer", node)`, or `("blank", stop, reasoning)` for a blank answer that
came back, with a stop string put behind it and with its thinking, or without (`""`)."""


@dataclass(eq=False)
class Node:
    """An answer of the policy, and what was said to it since the one before."""

    before: "Node | None"
    said: list[Message]
    """As the client said it, ids of calls as the gateway gave them."""
    items: list[Item]
    """What each of these stands for: answers, where they were written anew."""
    frame: str
    answer: Message
    stops: Sequence[str]
    heard: Heard
    names: dict[str, str]
    """The tools of the calls that were known when it was asked for."""
    known: bool = field(default=False)
    """Whether a client got it."""
    caller: Caller = NOBODY
    answer_id: str = ""

    @property
    def is_blank(self) -> bool:
        return not (self.answer.get("content") or "").strip() and not self.answer.get("tool_calls")

    @property
    def path(self) -> list["Node"]:
        path: list[Node] = []
        node: Node | None = self
        while node is not None:
            path.append(node)
            node = node.before
        return path[::-1]


def said(message: Message) -> Item:
    """The item of a message that is none of the policy's."""
    whole = {key: value for key, value in message.items() if key != "pieces"}
    return ("said", json.dumps(whole, sort_keys=True), message["role"] == "assistant")


def answered(node: Node, *, stop: str = "", reasoning: bool = False) -> Item:
    """The item of an answer that came back."""
    if node.is_blank:
        return ("blank", stop, (node.answer.get("reasoning") or "") if reasoning else "")
    return ("answer", node)


def blank(message: Message) -> Item | None:
    """What a message stands for that may be a blank answer of any kind."""
    text = message.get("content") or ""
    thoughts = [message.get(key) or "" for key in ("reasoning", "reasoning_content")]
    others = [message.get(key) for key in ("tool_calls", "refusal", "audio", "function_call")]
    if message["role"] != "assistant" or any(others) or not isinstance(text, str):
        return None
    # A handle names one answer, and a text that repeats the thinking is compared exactly.
    if any(message.get(key) for key in ("handle", "reordered", "respelled")):
        return None
    texts = {str(thought) for thought in thoughts} - {""}
    if len(texts) > 1:
        return None
    stop = text.strip()
    return ("blank", stop, "".join(texts)) if stop in ("", *STOPS) else None


def is_of(item: Item, node: Node) -> bool:
    """Whether an item is this answer."""
    if item[0] == "said":
        item = blank(json.loads(item[1])) or item
    if item[0] == "blank":
        thought = (node.answer.get("reasoning") or "").strip()
        return (
            node.is_blank
            and (not item[1] or item[1] in node.stops)
            and item[2].strip() in ("", thought)
        )
    return item[0] == "answer" and item[1] is node


def agreed(
    path: Sequence[Node], items: Sequence[Item], tail: Sequence[Item] = ()
) -> tuple[list[Node], int]:
    """The answers of a path that a request has, and how many of its items stand up to the last.

    A blank answer may be missing: before something else that both have, or at the end of it where
    no other answer follows.

    Args:
        path: the answers.
        items: of the request.
        tail: what was said behind the last of the answers, and has none yet.
    """
    found: list[tuple[Node, int]] = []
    place = shared = 0
    for step in [*(step for node in path for step in (*node.items, node)), *tail]:
        here = items[place] if place < len(items) else ("end",)
        if isinstance(step, Node):
            is_here = is_of(here, step)
            if not is_here and (not step.is_blank or here == ("end",)):
                break
            place += is_here
            found.append((step, place))
        elif here == step:
            is_here, place = True, place + 1
        else:
            break
        shared = len(found) if is_here else shared
    if any(map(is_answer, items[place:])):
        found = found[:shared]
    return [node for node, _ in found], found[-1][1] if found else 0


def is_answer(item: Item) -> bool:
    """Whether it is a message of the role assistant."""
    return item[0] != "said" or bool(item[2])


class Tree:
    """All answers of a rollout.

    Args:
        hf_tokenizer: renders prompts.
        joins_system: whether neighbouring system messages are shown as one.
    """

    def __init__(self, hf_tokenizer: Any, *, joins_system: bool = False) -> None:
        self.hf = hf_tokenizer
        self.joins_system = joins_system
        self.nodes: list[Node] = []
        self.begun: list[Node] = []
        """Those that are not answered yet are among them, and those that never are."""
        self._closes = str(hf_tokenizer.eos_token)

    def candidates(
        self, frame: str, items: Sequence[Item], caller: Caller
    ) -> list[tuple[list[Node], int]]:
        """The answers behind which a request may go on, and how many of its items stand there.

        More than one only where answers are alike: all are blank.
        """
        of_caller = [n for n in self.begun if (n.frame, n.caller) == (frame, caller)]
        found = [self.agreed(node, items) for node in of_caller]
        most = max((len(path) for path, _ in found), default=0)
        best = [(path, place) for path, place in found if len(path) == most] or [([], 0)]
        for node in of_caller:  # where this was asked before
            before = node.before.path if node.before else []
            path, place = agreed(before, items)
            if path == before and list(items[place:]) == node.items:
                best.append((path, place))
        solid = max(sum(not node.is_blank for node in path) for path, _ in best)
        return [one for one in best if sum(not node.is_blank for node in one[0]) == solid]

    def agreed(self, node: Node, items: Sequence[Item]) -> tuple[list[Node], int]:
        """As `agreed`, with the path up to an answer, or up to what asked for it."""
        if node in self.nodes:
            return agreed(node.path, items)
        return agreed(node.path[:-1], items, node.items)

    def names(self) -> dict[str, str]:
        """The tools of all calls so far, by id."""
        return _names([message for node in self.begun for message in (*node.said, node.answer)])

    def prompt(self, path: Sequence[Node], rest: Sequence[Message], tools: Any) -> "Prompt":
        """What the policy is asked with: a render of it all, the answers as they were sampled."""
        messages: list[Message] = []
        for number, node in enumerate(path):
            messages += [*node.said, {"role": "assistant", "content": _stand_in(number)}]
        # What a conversation begins with may answer calls of others, what is said later may not.
        others = path[0].names if path else self.names()
        begin = len(path[0].said if path else rest)
        names = _names([node.answer for node in path])
        thoughts = {node.answer.get("handle"): node.answer.get("reasoning") for node in self.nodes}
        shown = _shown([*messages, *rest], others | names, names, begin, thoughts)
        shown = _with_system_joined(shown) if self.joins_system else shown
        text = self.hf.apply_chat_template(
            shown, tools=tools, tokenize=False, add_generation_prompt=True
        )
        prompt = Prompt(self.hf)
        said_by_all = [*rest, *(message for node in path for message in node.said)]
        prompt.spells = any(token in json.dumps(said_by_all) for token in prompt.added)
        for number, node in enumerate(path):
            scaffold, _, text = text.partition(_stand_in(number))
            prompt.write(scaffold)
            assert node.heard.sample is not None
            ids = node.heard.sample.ids.tolist()
            prompt.ids += ids
            prompt.bytes += prompt.bytes_of(ids)
            if ids[-1] == self.hf.eos_token_id:
                text = text.removeprefix(self._closes)
            elif _ends_in_thinking(prompt.bytes_of(ids).decode(errors="replace")):
                text = "\n</think>\n\n" + text
        prompt.write(text)
        return prompt


def differ(name: str, messages: Sequence[Message], *paths: Sequence[Node]) -> str:
    """Says which answers of a branch are in a request: `got`, `wanted`, and all of its `path`."""
    got, wanted, path = paths
    lines = [f"{name}: {len(got)} answers of the branch are in it, and not {len(wanted)}:"]
    lines += [f"  sent {json.dumps(message, ensure_ascii=False)}" for message in messages]
    for node in path:
        lines += [
            f"  said {json.dumps(message, ensure_ascii=False)}"
            for message in (*node.said, node.answer)
        ]
    return "\n".join(lines)


def _names(messages: Sequence[Message]) -> dict[str, str]:
    """The tools that calls name, by id."""
    return {call["id"]: call["function"]["name"] for m in messages for call in _calls(m)}


def _stand_in(number: int) -> str:
    return f"@answer {number}@"


def _ends_in_thinking(text: str) -> bool:
    text = text.lstrip()
    while text.startswith("<think>"):
        _, close, text = text.partition("</think>")
        if not close:
            return True
        text = text.lstrip()
    return False


class Prompt:
    """Tokens, made by `tokenizers` of each piece between two samples, and the bytes of them."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self.ids: list[int] = []
        self.bytes = b""
        self.spells = False
        """Whether a content spells a control token, which is none then."""
        self._hf = hf_tokenizer
        self._byte_of = _bytes_of_letters()
        self.added = hf_tokenizer.added_tokens_encoder

    def write(self, text: str) -> None:
        self.ids += self._hf.encode(text, add_special_tokens=False)
        self.bytes += text.encode()

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """What tokens spell, by the table of byte-level BPE."""
        tokens = self._hf.convert_ids_to_tokens(list(ids))
        return b"".join(
            token.encode()
            if token in self.added
            else bytes(self._byte_of[letter] for letter in token)
            for token in tokens
        )

    @property
    def text(self) -> str:
        return self.bytes.decode(errors="replace")

    def is_of(self, ids: Sequence[int]) -> bool:
        """Whether these are its tokens; where somebody spelled a control token, its bytes."""
        return self.bytes_of(ids) == self.bytes and (self.spells or list(ids) == self.ids)


@cache
def _bytes_of_letters() -> dict[str, int]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


def _with_system_joined(messages: Sequence[Message]) -> list[Message]:
    """System messages that follow one another as one, joined by blank lines."""
    joined: list[Message] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            message = message | {"role": "system"}
            if joined and joined[-1]["role"] == "system":
                text = f"{joined[-1]['content']}\n\n{message['content']}"
                joined[-1] = joined[-1] | {"content": text}
                continue
        joined.append(message)
    return joined


def _shown(
    messages: Sequence[Message],
    first: dict[str, str],
    later: dict[str, str],
    begin: int,
    thoughts: Mapping[str | None, str | None],
) -> list[Message]:
    """A client's messages as the template takes them, with the names of calls in the first ones."""
    shown = []
    for place, message in enumerate(messages):
        names = first if place < begin else later
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        new = {"role": message["role"], "content": content or ""}
        if message["role"] == "assistant":
            first, later = first | _names([message]), later | _names([message])
            thinking = message.get("reasoning_content") or message.get("reasoning")
            if not message.get("reasoning_content") and (handle := message.get("handle")):
                thinking = thoughts.get(handle) or thinking
            if message.get("respelled") and thinking not in thoughts.values():
                new["content"] = f"<think>\n{thinking}\n</think>{new['content']}"
            elif isinstance(thinking, str):
                new["reasoning_content"] = thinking
            if calls := _calls(message):
                new["tool_calls"] = [{"function": _function(call)} for call in calls]
        if message["role"] == "tool":
            new["name"] = names.get(message.get("tool_call_id")) or message.get("name", "unknown")
        shown.append(new)
    return shown


def _calls(message: Message) -> list[Any]:
    return message.get("tool_calls") or []


def _function(call: Any) -> Any:
    function, arguments = call["function"], call["function"]["arguments"] or "{}"
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except ValueError:
            value = None
        arguments = value if isinstance(value, dict) else arguments
    return {"name": function["name"], "arguments": arguments}
