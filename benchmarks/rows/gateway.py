"""The CPU time of a gateway call without sampling, for short and long histories.

Each server has its own process, and its CPU time is measured; the client's JSON and HTTP are not
part of it. The clocks are read after all calls have been answered, so the work that a server does
after its answer counts too.
"""

import base64
import hashlib
import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from benchmarks import own_process
from benchmarks.figures import Need, ResultsDiffer, Row, require_same
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

ABUT = "abut"
PASSES = "aiohttp, forwards bytes"
PARSES = "aiohttp, parses the JSON"
ENCODES = "aiohttp, parses and encodes the new text"
RENDERS = "aiohttp, apply_chat_template of all messages"
FIRST = "abut, first call with cold caches"
UPSTREAM = "upstream"
SIDES = (ABUT, PASSES, PARSES, ENCODES, RENDERS)

DIGEST = "x-digest"
"""The header in which the upstream returns a digest of the bytes that it received."""
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
    """Return the text with which the policy calls the tool."""
    call = json.dumps({"name": "search", "arguments": {"query": query}})
    return f"<tool_call>\n{call}\n</tool_call>"


def digest_of(content: bytes) -> str:
    """Return the digest of a body."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def measure(workbench: Workbench) -> Row:
    """Send the same calls to all servers, with conversations of several lengths."""
    scale = workbench.scale
    workbench.peer("aiohttp")
    row = Row(
        "gateway",
        f"answer a gateway call with {scale.gateway_bytes:,} bytes of new messages, without "
        "sampling",
        equal="the token ids of abut's prompts, with those of the whole rendered conversation; "
        "the bytes that passed through the proxy",
        notes=[
            "CPU time of the server's process per call. abut's engine is included, with its slots "
            "and seeds; the policy's samples are available immediately. The client is a separate "
            f"process. In each round, {scale.gateway_conversations} conversations send a call, one "
            "after the other. The first call is not counted, because it has to refill the CPU "
            "caches, which the other sides used in between.",
            "Conversations consist of answers with a tool call, each followed by a reply of "
            f"{scale.reply_bytes:,} bytes. Each call sends the whole conversation and a new reply "
            f"of {scale.gateway_bytes:,} bytes to the last answer. All sides receive the same "
            "bytes.",
            f"{PARSES}: reads the body, parses all of it and answers.",
            f"{ENCODES}: reads the body, parses only the last message, encodes its text with "
            "abut's encoder and answers. It keeps no state. No gateway with this server and "
            "encoder can be faster.",
            f"{FIRST}: the first call of a round, as in a gateway that is rarely used.",
            f"{RENDERS}: renders and tokenizes the whole conversation; the sample is neither "
            "decoded nor parsed.",
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
                servers[ABUT].forget()  # the prompts while the conversations grew
                _asked_all(servers, talks, new)  # not counted
                rounds += [_asked_all(servers, talks, new) for _ in range(scale.gateway_rounds)]
            sides = (*SIDES, FIRST)
            row.add(case(length), {side: [taken[side] for taken in rounds] for side in sides})
    _require(row, scale.gateway_lengths)
    return row


def case(length: int) -> str:
    """Return the name of the case of a length."""
    return f"after {length:,} tokens"


class Server:
    """A server in its own process, and a connection to it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.endpoints: list[tuple[str, str]] = self._line()
        """Base URL and key of each rollout."""
        self.url = self.endpoints[0][0]
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc)

    def post(self, content: bytes, address: str, key: str = "") -> tuple[Any, Mapping[str, str]]:
        """Send a request, and return the answer's JSON and headers."""
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
        """Close the connection."""
        self._connection.close()

    def clock(self) -> float:
        """Return the CPU seconds of the server's process."""
        return float(self._told("clock"))

    def prompts(self) -> list[list[int]]:
        """Return the token ids of the prompts since the last call of this method."""
        return [
            np.frombuffer(base64.b64decode(ids), np.int64).tolist() for ids in self._told("prompts")
        ]

    def forget(self) -> None:
        """Discard the prompts so far."""
        self._told("forget")

    def _told(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("a server exited; its output is above")
        return json.loads(line)


class Talk:
    """A conversation of a chat completions client with abut's gateway."""

    path: ClassVar[str] = "/v1/chat/completions"

    def __init__(self, server: Server, url: str, key: str) -> None:
        self._server, self._key = server, key
        self._address = url.removesuffix("/v1") + self.path
        self._history: list[Any] = []
        self.say(OPENING)
        self.tokens = 0

    def grow(self, tokens: int, replies: Replies) -> None:
        """Grow to `tokens` tokens or a few more; the conversation ends with an answer."""
        self.ask(self.body())
        while self.tokens < tokens:
            self.reply(*replies.take(1))
            self.ask(self.body())

    def say(self, text: str) -> None:
        """Add a user message."""
        self._history.append({"role": "user", "content": text})

    def reply(self, text: str) -> None:
        """Add the result of the called tool."""
        (call,) = self._history[-1]["tool_calls"]
        self._history.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def body(self) -> bytes:
        """Return the body of the next request."""
        return json.dumps(self._asked()).encode()

    def ask(self, content: bytes) -> None:
        """Send a request, and add the answer."""
        said, _ = self._server.post(content, self._address, self._key)
        self.tokens = self._hear(said)

    def _asked(self) -> dict[str, Any]:
        return {"model": "policy", "messages": self._history, "tools": [TOOL]}

    def _hear(self, said: Any) -> int:
        """Add an answer, and return the number of tokens."""
        self._history.append(said["choices"][0]["message"])
        return int(said["usage"]["total_tokens"])


def _asked_all(
    servers: Mapping[str, Server], talks: Sequence[Talk], new: Replies
) -> dict[str, float]:
    """Send the same calls to all sides, one per conversation; return the seconds per call.

    The first conversation's call is not counted; abut's is the side `FIRST`.

    Raises:
        ResultsDiffer: the sides have different prompts or bytes.
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
        require_same(f"prompt of {len(ours)} tokens", RENDERS, ours, whole)
    if [digest for digest in digests if digest] != list(map(digest_of, bodies)):
        raise ResultsDiffer(
            f"{PASSES}: the forwarded bytes differ from the bytes sent\n"
            "hint: times are not compared if the results differ; this is a bug in the row, report "
            "it"
        )
    return seconds


@contextmanager
def _servers(workbench: Workbench) -> Iterator[dict[str, Server]]:
    """Start all sides, each in its own process, and stop them at the end."""
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
    """Start a server's process, which exits when its input closes, and connect to it."""
    with (
        subprocess.Popen(
            own_process.command_of("gateway_server", side, str(workbench.folder), given),
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
        what = f"abut, {case(_MEASURED_TOKENS)}"
        row.needs.append(Need(what, taken_s, "at most", _CALL_S, "s"))

    def growth(side: str) -> float:
        long, short = row.median(side, case(last)), row.median(side, case(first))
        assert long is not None
        assert short is not None
        return long - short

    what = f"growth from {first:,} to {last:,} tokens: abut ÷ {PARSES}"
    row.needs.append(Need(what, growth(ABUT) / growth(PARSES), "at most", _GROWTH))
