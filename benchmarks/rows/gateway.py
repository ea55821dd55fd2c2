"""A call at the gateway, beyond the engine: what it takes of one core, however long the history is.

Each server is a process of its own, and takes part with the seconds of the processor that its
process took; the client's own JSON and HTTP are no part of them. The clocks of all are read when
all have answered, so that what a server does behind its answer is part of it.
"""

import base64
import hashlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from benchmarks.figures import Need, ResultsDiffer, Row, require_same
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

ABUT = "abut"
PASSES = "aiohttp, passes bytes on"
PARSES = "aiohttp, parses the JSON"
ENCODES = "aiohttp, parses and encodes the new text"
RENDERS = "aiohttp, apply_chat_template of all"
FIRST = "abut, the first call behind the others' work"
UPSTREAM = "upstream"
SIDES = (ABUT, PASSES, PARSES, ENCODES, RENDERS)

DIGEST = "x-digest"
"""The header by which the upstream says which bytes came to it."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
OPENING = "Find where the time goes, and say what you see."
"""The first message of each conversation."""
_CALL_S = 1e-3
_MEASURED_TOKENS = 30_000
_GROWTH = 1.5


def a_call(query: str) -> str:
    """What the policy writes to call the tool."""
    call = json.dumps({"name": "search", "arguments": {"query": query}})
    return f"<tool_call>\n{call}\n</tool_call>"


def digest_of(content: bytes) -> str:
    """By which equal bodies are known."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def measure(workbench: Workbench) -> Row:
    """Ask all servers the same, with conversations of several lengths."""
    scale = workbench.scale
    workbench.peer("aiohttp")
    row = Row(
        "gateway",
        f"answer a call at the gateway beyond the engine, {scale.gateway_bytes:,} bytes of new "
        "messages",
        equal="the token ids that abut asks the engine with and those of the whole conversation's "
        "render; the bytes that came through the proxy",
        notes=[
            "Seconds of the processor that the server's process takes for a call, the engine's "
            "slots and seeds included; the policy's sample is there at once. The client is in "
            f"another process. {scale.gateway_conversations - 1} conversations are asked in a row; "
            "one more is asked before them, whose call is not counted: it has to bring back into "
            "the caches what the other sides drove out.",
            f"A conversation that grew by answers with a call of a tool, and {scale.reply_bytes:,} "
            f"bytes of reply to each. Each call sends all of it, and behind the last answer a "
            f"reply of {scale.gateway_bytes:,} bytes, which is new: the same bytes to all sides.",
            f"{PARSES}: reads the body, parses all of it and answers.",
            f"{ENCODES}: reads the body, parses its last message alone, encodes the text of that "
            "with abut's encoder and answers; it knows nothing of what was said before. With this "
            "server and encoder no gateway can take less.",
            f"{FIRST}: that call, as a gateway has it that is seldom asked.",
            f"{RENDERS}: the conversation is rendered and tokenized as a whole; what is sampled "
            "is neither decoded nor parsed.",
        ],
    )
    replies = Replies(11, scale.reply_bytes)
    new = Replies(13, scale.gateway_bytes)
    with _servers(workbench) as servers:
        endpoints = iter(servers[ABUT].endpoints)
        for length in scale.gateway_lengths:
            rounds: list[dict[str, float]] = []
            for _ in range(scale.gateway_sets):
                talks = [
                    Talk(servers[ABUT], *next(endpoints))
                    for _ in range(scale.gateway_conversations)
                ]
                for talk in talks:
                    talk.grow(length, replies)
                servers[ABUT].forget()  # what it was asked while they grew
                _asked_all(servers, talks, new)  # not counted
                rounds += [_asked_all(servers, talks, new) for _ in range(scale.gateway_rounds)]
            sides = (*SIDES, FIRST)
            row.add(case(length), {side: [taken[side] for taken in rounds] for side in sides})
    _require(row, scale.gateway_lengths)
    return row


def case(length: int) -> str:
    """The name of a length."""
    return f"to {length:,} tokens"


class Server:
    """A server in a process of its own, and a connection to it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.endpoints: list[tuple[str, str]] = self._line()
        """Base URL and key of each rollout."""
        self.url = self.endpoints[0][0]
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc)

    def post(self, content: bytes, address: str, key: str = "") -> tuple[Any, Mapping[str, str]]:
        """Send a request; returns the answer's JSON, and the headers."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._connection.request("POST", urlsplit(address).path, content, headers)
        reply = self._connection.getresponse()
        said = json.loads(reply.read())
        if reply.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{address}: {reply.status}: {said}")
        return said, dict(reply.headers)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def clock(self) -> float:
        """Seconds of the processor that its process has taken."""
        return float(self._told("clock"))

    def prompts(self) -> list[list[int]]:
        """The token ids of the prompts since this was asked last."""
        return [
            np.frombuffer(base64.b64decode(ids), np.int64).tolist() for ids in self._told("prompts")
        ]

    def forget(self) -> None:
        """Keep none of those so far."""
        self._told("forget")

    def _told(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("a server ended; what it wrote stands above")
        return json.loads(line)


class Talk:
    """A conversation with abut's gateway, as a client of chat completions has it."""

    path: ClassVar[str] = "/v1/chat/completions"

    def __init__(self, server: Server, url: str, key: str) -> None:
        self._server, self._key = server, key
        self._address = url.removesuffix("/v1") + self.path
        self._history: list[Any] = []
        self.say(OPENING)
        self.tokens = 0

    def grow(self, tokens: int, replies: Replies) -> None:
        """Let it have so many tokens, or a few more, and end on an answer."""
        self.ask(self.body())
        while self.tokens < tokens:
            self.reply(*replies.take(1))
            self.ask(self.body())

    def say(self, text: str) -> None:
        """Say a text as the user."""
        self._history.append({"role": "user", "content": text})

    def reply(self, text: str) -> None:
        """Say what the called tool has found."""
        (call,) = self._history[-1]["tool_calls"]
        self._history.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def body(self) -> bytes:
        """What is asked next."""
        return json.dumps(self._asked()).encode()

    def ask(self, content: bytes) -> None:
        """Get an answer."""
        said, _ = self._server.post(content, self._address, self._key)
        self.tokens = self._hear(said)

    def _asked(self) -> dict[str, Any]:
        return {"model": "policy", "messages": self._history, "tools": [TOOL]}

    def _hear(self, said: Any) -> int:
        """Add an answer; returns how many tokens there are now."""
        self._history.append(said["choices"][0]["message"])
        return int(said["usage"]["total_tokens"])


def _asked_all(
    servers: Mapping[str, Server], talks: Sequence[Talk], new: Replies
) -> dict[str, float]:
    """Ask all sides the same, once for each conversation; returns the seconds of a call of each.

    The first conversation's call is not counted, but for that of abut, which is `FIRST`.

    Raises:
        ResultsDiffer: they understood it differently.
    """
    for talk in talks:
        talk.reply(*new.take(1))
    bodies = [talk.body() for talk in talks]
    before: dict[str, float] = {}
    digests = []
    first_at = servers[ABUT].clock()
    for side in SIDES:
        for number, (talk, body) in enumerate(zip(talks, bodies, strict=True)):
            if number == 1:
                before[side] = servers[side].clock()
            if side == ABUT:
                talk.ask(body)
            else:
                _, headers = servers[side].post(body, f"{servers[side].url}/chat/completions")
                digests.append(headers.get(DIGEST))
    counted = len(talks) - 1
    seconds = {side: (servers[side].clock() - before[side]) / counted for side in SIDES}
    seconds[FIRST] = before[ABUT] - first_at
    asked = (servers[side].prompts() for side in (ABUT, RENDERS))
    for ours, whole in zip(*asked, strict=True):
        require_same(f"the prompt of {len(ours)} tokens", RENDERS, ours, whole)
    if [digest for digest in digests if digest] != list(map(digest_of, bodies)):
        raise ResultsDiffer(
            f"{PASSES}: other bytes came through it than were sent\n"
            "hint: times of different results mean nothing; this is a defect of the row, report it"
        )
    return seconds


@contextmanager
def _servers(workbench: Workbench) -> Iterator[dict[str, Server]]:
    """All sides, each in a process of its own, until they are no longer needed."""
    scale = workbench.scale
    sets = len(scale.gateway_lengths) * scale.gateway_sets
    rollouts = sets * scale.gateway_conversations
    with ExitStack() as stack:

        def started(side: str, given: str = "") -> Server:
            return stack.enter_context(started_server(workbench, side, given))

        upstream = started(UPSTREAM)
        yield {
            ABUT: started(ABUT, str(rollouts)),
            PASSES: started(PASSES, upstream.url),
            PARSES: started(PARSES),
            ENCODES: started(ENCODES),
            RENDERS: started(RENDERS),
        }


@contextmanager
def started_server(workbench: Workbench, side: str, given: str = "") -> Iterator[Server]:
    """A server's process, which ends where its input does, and a connection to it."""
    command = [sys.executable, "-m", "benchmarks.gateway_server"]
    with (
        subprocess.Popen(
            [*command, side, str(workbench.folder), given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        closing(Server(process)) as server,
    ):
        yield server


def _require(row: Row, lengths: tuple[int, ...]) -> None:
    first, last = lengths[0], lengths[-1]
    if (taken_s := row.median(ABUT, case(_MEASURED_TOKENS))) is not None:
        what = f"abut {case(_MEASURED_TOKENS)}"
        row.needs.append(Need(what, taken_s, "at most", _CALL_S, "s"))

    def growth(side: str) -> float:
        long, short = row.median(side, case(last)), row.median(side, case(first))
        assert long is not None
        assert short is not None
        return long - short

    what = f"abut's growth from {first:,} to {last:,} tokens ÷ that of the JSON parsed alone"
    row.needs.append(Need(what, growth(ABUT) / growth(PARSES), "at most", _GROWTH))
