"""What real clients of other dialects sent: each request goes on where the verdicts say.

The verdicts are those of a prototype, which asked abut's chat endpoint. Where abut differs, the
rule that makes the difference is named here.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.matching import History, match
from abut.gateway.ledger.refusal import Refusal
from tests.kit.clients.dialect_edits import edited
from tests.kit.clients.dialect_recordings import (
    DialectReplay,
    RecordedRequest,
    Replayed,
    recorded,
    verdicts,
)
from tests.kit.data.trl_templates import with_template
from tests.kit.stage.agents import check_tree
from tests.kit.stage.rollouts import SOAK

KINDS = ("messages", "input", "contents")
"""The keys of histories in the dialects that abut speaks."""

SUBAGENT = {"R(tools)": "R(subagent)", "R(new)": "R(subagent)"}
"""A sub-agent that says so is the cause of its branch."""
COMPACTION = {"R(tools)": "R(compaction)", "R(new)": "R(rewritten)"}
"""So is Codex's compaction; what follows it lacks answers, which is rewritten and not new."""
CHANGED: dict[str, dict[str, str]] = {
    "claudecode__sub": SUBAGENT,
    "claudecode-claude-sonnet-4-5__sub": SUBAGENT,
    "claudecode-claude-sonnet-4-5-20250929__sub": SUBAGENT,
    "codex__sub": SUBAGENT,
    "codex__f_ctxsub": SUBAGENT,
    "codex-gpt-5.5-codex__toolsearch": SUBAGENT,
    "codex__compact": COMPACTION,
}
REWRITES_CHANGED: dict[str, dict[str, int]] = {
    "oairesp_prev__empty": {},  # R5: the ledger has the empty turns
    "pydai_openai__main": {"thinking_as_text": 6},  # R3 is counted
    "pydai_openai__plain": {"thinking_as_text": 1},
    "pydai_openai_stream__main": {"thinking_as_text": 4},
}


def names() -> list[str]:
    return [name for name in verdicts() if any(one.kind in KINDS for one in recorded(name))]


@pytest.fixture(scope="module")
def replay(qwen3: Any) -> Iterator[DialectReplay]:
    with DialectReplay(qwen3) as replay:
        yield replay


def expected(name: str) -> tuple[tuple[str, ...], dict[str, int]]:
    """The marks and rewrites of a recording: those of the table, or those that a rule changes."""
    marks, rewrites = verdicts()[name]
    other = CHANGED.get(name, {})
    ours = tuple(other.get(mark, mark) for mark in marks), REWRITES_CHANGED.get(name, rewrites)
    assert (ours != (marks, rewrites)) == (name in CHANGED or name in REWRITES_CHANGED), "stale"
    return ours


def check_verdicts(replay: DialectReplay, names: Sequence[str]) -> list[Replayed]:
    found: dict[str, Replayed] = {}
    for name in names:
        found[name] = replay.play(name, recorded(name))
        if (rollout := found[name].rollout) is not None:
            check_tree(rollout, replay.asked)  # each sample stands once, as it was sampled
    said = {name: (one.marks, one.rewrites) for name, one in found.items()}
    assert said == {name: expected(name) for name in names}
    return list(found.values())


def test_each_request_goes_on_where_the_verdicts_say(replay: DialectReplay) -> None:
    found = check_verdicts(replay, names())
    assert len(found) == 377
    assert sum(mark == "E" for one in found for mark in one.marks) > 600


GUARDS = {
    "none in the middle": "{% if m.role == 'system' and not loop.first %}",
    "none at all": "{% if m.role == 'system' %}",
}
"""System messages that a template may refuse, as Qwen3.5's and Gemma's do."""
HARNESSES = ("main", "think", "sub", "resume", "toolsearch", "empty", "compact", "skill")


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_template_that_takes_fewer_system_messages_changes_no_verdict(
    qwen3: Any, guard: str
) -> None:
    raises = f"{{% for m in messages %}}{guard}{{{{ raise_exception('no') }}}}{{% endif %}}"
    tokenizer = with_template(qwen3, f"{raises}{{% endfor %}}{qwen3.chat_template}")
    with DialectReplay(tokenizer) as replay:
        found = check_verdicts(
            replay,
            [
                name
                for name in names()
                if name.startswith(("claude", "codex")) and name.endswith(HARNESSES)
            ],
        )
    assert len(found) > 25


class Edited:
    """Edits the history of each request, before it is sent; keeps what is matched all the same.

    Args:
        count: how many edits of each request are tried.

    Attributes:
        matched: by kind, how often an edited message was taken for what was said.
        unread: by kind, how often an edit made no difference to what was read.
    """

    def __init__(self, count: int) -> None:
        self.tried = 0
        self.matched: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self._count = count
        self._random = Random(0)

    def __call__(self, ledger: Ledger, body: dict[str, Any], dialect: HttpDialect) -> None:
        key = next((key for key in KINDS if isinstance(body.get(key), list)), None)
        if key is None or body.get("thread") or body.get("previous_response_id"):
            return
        asked = dialect.read(body)
        branches = [branch for branch in ledger.branches if branch.frame == asked.frame]
        history = [_matched(branch, asked.messages, dialect) for branch in branches]
        if not max(history, default=0):
            return
        for kind, items in edited(body[key], self._count, self._random):
            try:
                other = dialect.read({**body, key: items})
            except Refusal:
                continue
            first = _first_difference(asked.messages, other.messages)
            self.tried += 1
            if first is None:
                self.unread[kind] += 1
                continue
            for branch, said in zip(branches, history, strict=True):
                if first < said:  # the edit is in what was said
                    self.matched[kind] += _matched(branch, other.messages, dialect) > first


def _matched(branch: LedgerBranch, messages: list[Any], dialect: HttpDialect) -> int:
    """How many messages are those of a branch."""
    # Without joints a system prompt of several blocks, as Claude Code's, is another one.
    history = History(messages, joints=branch.writer.joints)
    return match(branch.entries, history, dialect).messages


def _first_difference(messages: list[Any], others: list[Any]) -> int | None:
    for place, (one, other) in enumerate(zip(messages, others, strict=False)):
        if json.dumps(one) != json.dumps(other):
            return place
    return None if len(messages) == len(others) else min(len(messages), len(others))


RULES = {
    "drop thinking": "A5, R2: thinking may be left out",
    "drop thinking as text": "R2, after R3",
    "swap tool_result, tool_result": "A3: results are in the order of the calls",
    "swap tool_result, text": "A3: texts stand behind the results",
}
"""The kinds of edits that are no edits by a rule."""
NOTHING = {
    f"{edit} empty {kind}"
    for edit in ("drop", "twice")
    for kind in ("thinking", "message", "thinking as text")
} | {"drop redacted_thinking", "swap redacted_thinking, text"}
"""Edits of what says nothing. No policy sees what is redacted."""


def edits_tried(qwen3: Any, count: int) -> Edited:
    seen = Edited(count)
    with DialectReplay(qwen3, seen) as replay:
        for name in names():
            # An empty turn may be left out: some edits then only move it.
            if not name.endswith("__empty"):
                replay.play(name, recorded(name))
    assert {*+seen.matched} <= {*RULES} | NOTHING
    assert {*+seen.unread} <= {*RULES} | NOTHING
    return seen


# In a call of Claude Code: what the policy has said more than the recorded one, and how it is read.
SAID_MORE = {"timeout": "05000", "run_in_background": "false"}
READ_MORE = {"timeout": 5000, "run_in_background": False}


def read_otherwise(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Requests whose policy wrote its arguments otherwise than Claude Code sends them back."""
    return [
        replace(
            request,
            said=None if request.said is None else _written_otherwise(request.said),
            body=_with_read(request.body),
        )
        for request in requests
    ]


def _written_otherwise(turn: dict[str, Any]) -> dict[str, Any]:
    calls: list[Any] = []
    for name, arguments in turn.get("calls", ()):
        if name == "Bash" and isinstance(arguments, dict):
            arguments = {**arguments, **SAID_MORE}
        elif name == "Write" and isinstance(arguments, dict):
            arguments = {**arguments, "content": arguments["content"].replace("\n", " \t\n")}
        calls.append([name, arguments])
    return {**turn, "calls": calls}


def _with_read(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_read(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if (value.get("type"), value.get("name")) == ("tool_use", "Bash"):
        given = value["input"]  # a text where the policy's arguments are not an object
        return {**value, "input": {**given, **READ_MORE}} if isinstance(given, dict) else value
    return {key: _with_read(inner) for key, inner in value.items()}


READ_BY = ("claudecode__main", "claudecode__resume", "claudecode-claude-opus-4-6__main")


def read_edits_tried(qwen3: Any, names: Sequence[str], count: int) -> tuple[Edited, int]:
    seen, read = Edited(count), 0
    with DialectReplay(qwen3, seen) as replay:
        for name in names:
            played = replay.play(name, read_otherwise(recorded(name)))
            assert played.marks == expected(name)[0]
            read += played.rewrites.pop("arguments_read", 0)
            assert played.rewrites == expected(name)[1]
    assert {*+seen.matched} <= {*RULES} | NOTHING
    assert {*+seen.unread} <= {*RULES} | NOTHING
    return seen, read


def test_no_edited_argument_is_taken_for_what_claude_code_has_read(qwen3: Any) -> None:
    seen, read = read_edits_tried(qwen3, READ_BY, 20)
    assert seen.tried > 150
    assert read > 8
    assert not seen.matched["value"]


@SOAK
def test_no_edited_argument_of_any_recording_is(qwen3: Any) -> None:
    claude = [name for name in names() if name.startswith("claudecode")]
    whole = [name for name in claude if not name.endswith("__empty")]
    seen, read = read_edits_tried(qwen3, whole, 100)
    assert seen.tried > 14_000
    assert read > 200


def test_no_edited_history_is_taken_for_what_was_said(qwen3: Any) -> None:
    seen = edits_tried(qwen3, 2)
    assert seen.tried > 800
    assert {"drop thinking"} < {*seen.matched}  # and kinds of which none matched
    assert seen.unread["swap tool_result, tool_result"]


@SOAK
def test_none_of_many_edited_histories_is(qwen3: Any) -> None:
    assert edits_tried(qwen3, 100).tried > 60_000
