"""Recorded requests of clients of other dialects than chat, sent once more to a real gateway.

A recording is a list of requests in the order in which a client made them, each with the turn that
a scripted server answered. The gateway samples that turn, in tokens that no tokenizer would write,
and the ids in later requests are exchanged for those that it gave.
"""

import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.server.gateway import Gateway
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import SampleRequest
from tests.kit.stage.rollouts import Recording

Seen: TypeAlias = Callable[[Ledger, dict[str, Any], HttpDialect], object]
"""Looks at a rollout and a body before that is sent."""

_LISTS = ("messages", "input", "contents")
_REPEATED = ("tools", "system", "instructions", "systemInstruction")
_MARKUP = re.compile(r"(<\|im_end\|>|<think>|</think>|<tool_call>|</tool_call>)")
_OWN_HEADERS = (
    "x-abut-rollout",
    "authorization",
    "x-api-key",
    "x-goog-api-key",
    "accept-encoding",
    "connection",
)
_SIGNATURE = "QUJDRA" * 4


def folder() -> Path:
    """Where the recordings are."""
    named = os.environ.get("ABUT_DIALECTS")
    if not named:
        pytest.skip("ABUT_DIALECTS is unset: it names a folder of recorded clients")
    return Path(named)


@dataclass(frozen=True)
class RecordedRequest:
    """One request, and the turn that it was answered; None: it was none for the policy."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    said: dict[str, Any] | None
    status: int | None
    """Of the recorded answer; None: there was none."""

    @property
    def kind(self) -> str:
        """The key of its history, which tells the dialects apart."""
        return next((key for key in _LISTS if key in self.body), "")


def recorded(name: str) -> list[RecordedRequest]:
    """The requests of one recording, its short forms undone."""
    log = json.loads((folder() / "requests" / f"{name}.json").read_text(encoding="utf-8"))
    replies = folder() / "replies" / f"{name}.json"
    answers = json.loads(replies.read_text(encoding="utf-8")) if replies.exists() else []
    headers: dict[str, str] = {}
    last: dict[str, Any] = {}
    requests = []
    for number, entry in enumerate(log):
        changed = {**headers, **entry.get("headers_changed", {})}
        headers = entry.get("headers") or {k: v for k, v in changed.items() if v is not None}
        body = entry.get("body") or {}
        for key in _LISTS:
            said = body.get(key)
            if isinstance(said, dict) and "as" in said:
                body[key] = log[said["as"]]["body"][key][: said["first"]] + said["then"]
        for key in _REPEATED:
            if body.get(key) == "_as_before":
                body[key] = last[key]
            elif key in body:
                last[key] = body[key]
        turn, answer = entry.get("said"), (answers[number] if answers else None) or {}
        failed = turn is not None and "fault" in turn
        status = None if failed else answer.get("status", 200 if not answers else None)
        requests.append(RecordedRequest(entry["path"], headers, body, turn, status))
    return requests


@cache
def verdicts() -> dict[str, tuple[tuple[str, ...], dict[str, int]]]:
    """By name, the verdict on each request and the rewrites that were counted."""
    table = {}
    for line in (folder() / "verdicts.txt").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(": ")
        rest = rest.partition("  longest")[0].replace("refused: thread", "refused")
        marks, brace, counted = rest.partition("{")
        rewrites = json.loads(brace + counted) if brace else {}
        table[name] = tuple(mark.rstrip("~") for mark in marks.split()), rewrites
    return table


def spoken(turn: Mapping[str, Any]) -> str:
    """A turn of the script as Qwen3 writes it."""
    out = "" if turn.get("think") is None else f"<think>\n{turn['think']}\n</think>\n\n"
    out += turn.get("text") or ""
    for name, arguments in turn.get("calls", ()):
        if isinstance(name, list):
            kind, *names = name
            if kind == "custom":
                arguments = {"input": arguments}
            name = "__".join(names) or kind
        text = (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
        out += "\n" * bool(out and not out.endswith("\n"))
        out += f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {text}}}\n</tool_call>'
    return out


class OddSampler(Recording):
    """Says what it is told to, its text cut into tokens at random places.

    Attributes:
        turn: the next one to say.
    """

    def __init__(self, hf_tokenizer: Any) -> None:
        super().__init__(self._ids)
        self.turn: Mapping[str, Any] = {}
        self._tokenizer = hf_tokenizer
        self._random = random.Random(0)

    def _ids(self, request: SampleRequest) -> list[int]:
        ids: list[int] = []
        for piece in _MARKUP.split(spoken(self.turn)):
            if _MARKUP.fullmatch(piece):
                ids.append(self._tokenizer.convert_tokens_to_ids(piece))
                continue
            while piece:
                length = self._random.randint(1, 6)
                ids += self._tokenizer.encode(piece[:length], add_special_tokens=False)
                piece = piece[length:]
        if self.turn.get("finish") != "length":
            ids.append(self._tokenizer.convert_tokens_to_ids("<|im_end|>"))
        return ids


@dataclass(frozen=True)
class Replayed:
    """What became of a recording."""

    marks: tuple[str, ...]
    rewrites: dict[str, int]
    answers: tuple[Any, ...]
    """The JSON of each answer, or the list of its events."""
    rollout: Rollout | None


class DialectReplay:
    """Sends recordings to rollouts of their own.

    Attributes:
        sampler: of the gateway.
    """

    def __init__(self, hf_tokenizer: Any, seen: Seen | None = None, **options: Any) -> None:
        self._seen = seen or (lambda ledger, body, dialect: None)
        self.sampler = OddSampler(hf_tokenizer)
        self.gateway = Gateway(
            sampler=self.sampler,
            tokenizer=hf_tokenizer,
            config=RolloutConfig(max_completion_tokens=10**6),
            unenforced="accept",
            **options,
        )

    def __enter__(self) -> "DialectReplay":
        self.gateway.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.gateway.__exit__()

    def play(self, name: str, requests: Sequence[RecordedRequest]) -> Replayed:
        """Send the requests of a recording, but those that failed."""
        rollout = re.sub(r"[^A-Za-z0-9_-]", "-", name)
        standalone = self.gateway.registry.standalone
        assert standalone is not None
        marks: list[str] = []
        answers: list[Any] = []
        ids: dict[str, str] = {}
        first = len(self.sampler.calls)
        for number, request in enumerate(requests):
            if request.said is None or not request.kind:
                continue
            if request.status != 200:
                marks.append("-")
                continue
            self.sampler.turn = request.said
            ledger = standalone.ledger(rollout)
            before = 0 if ledger is None else len(ledger.branches)
            body = exchanged(request.body, ids)
            if ledger is not None:
                self._seen(ledger, body, self._dialect(request))
            status, answer = self.send(rollout, request, body)
            answers.append(answer)
            if status != 200:
                marks.append("refused" if "thread" in json.dumps(answer) else f"{status}: {answer}")
                continue
            _exchange(ids, request, number, answer)
            ledger = standalone.ledger(rollout)
            assert ledger is not None
            branch = ledger.branches[-1]
            turns = len(branch.calls) - 1
            cause = f"{branch.cause}@{turns}" if turns else branch.cause
            new = f"{'F' if turns else 'R'}({cause})" if before else "·"
            marks.append(new if len(ledger.branches) > before else "E")
        self.asked = self.sampler.calls[first:]
        ledger = standalone.ledger(rollout)
        if ledger is None:
            return Replayed(tuple(marks), {}, tuple(answers), None)
        rewrites = dict(ledger.client_rewrites)
        played = self.gateway.end(rollout, 1.0)
        return Replayed(tuple(marks), rewrites, tuple(answers), played)

    def _dialect(self, request: RecordedRequest) -> HttpDialect:
        dialects = self.gateway.registry.dialects
        return next(dialect for dialect in dialects if dialect.owns(request.path.partition("?")[0]))

    def send(self, rollout: str, request: RecordedRequest, body: Any) -> tuple[int, Any]:
        """Send a request with another body; returns status and JSON, or events."""
        endpoint = self.gateway.endpoint(rollout)
        url = endpoint.base_url.removesuffix("/v1") + request.path
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN_HEADERS}
        data = json.dumps(body).encode()
        key = {"Authorization": f"Bearer {endpoint.api_key}"}
        try:
            with urlopen(Request(url, data, {**headers, **key}), timeout=60) as reply:
                said = reply.read().decode()
                if reply.headers.get_content_type() != "text/event-stream":
                    return reply.status, json.loads(said)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)
        lines = [line for line in said.splitlines() if line.startswith("data: {")]
        return 200, [json.loads(line.removeprefix("data: ")) for line in lines]


def exchanged(body: Any, ids: Mapping[str, str]) -> Any:
    """A body with the gateway's own ids in the place of the recorded ones."""
    text = json.dumps(body)
    for theirs, ours in ids.items():
        text = text.replace(json.dumps(theirs), json.dumps(ours))
    return json.loads(text)


def _exchange(ids: dict[str, str], request: RecordedRequest, number: int, answer: Any) -> None:
    """Note what the gateway calls the ids of the recorded answer."""
    said, calls, handle = request.said or {}, list(_calls(answer)), _handle(answer)
    prefix = {"messages": "toolu", "input": "call", "contents": "fc"}[request.kind]
    for index, own in enumerate(calls):
        known = said.get("ids")
        ids[known[index] if known else f"{prefix}_{number:04d}{index:02d}"] = own
    if request.kind == "input":
        last = answer if isinstance(answer, dict) else answer[-1]["response"]
        ids[f"resp_{number:04d}00"] = last["id"]
    kind = {"messages": "sig", "input": "enc"}.get(request.kind, "sig")
    ids[said.get("signature", f"{kind}-{number}-{_SIGNATURE}")] = handle


def _values(answer: Any) -> Any:
    yield answer
    for value in answer.values() if isinstance(answer, dict) else answer:
        if isinstance(value, dict | list):
            yield from _values(value)


def _calls(answer: Any) -> dict[str, None]:
    """The ids of the calls in an answer, in their order."""
    keys = {"tool_use": "id", "function_call": "call_id", "custom_tool_call": "call_id"}
    keys["tool_search_call"] = "call_id"
    found: dict[str, None] = {}
    for value in _values(answer):
        if isinstance(value, dict):
            if (key := keys.get(value.get("type", ""))) is not None:
                found[value[key]] = None
            elif isinstance(call := value.get("functionCall"), dict):
                found[call["id"]] = None
    return found


def _handle(answer: Any) -> str:
    """The handle of an answer's reasoning; empty if it has none."""
    for value in _values(answer):
        for key in ("signature", "encrypted_content", "thoughtSignature"):
            if isinstance(value, dict) and value.get(key):
                return str(value[key])
    return ""
