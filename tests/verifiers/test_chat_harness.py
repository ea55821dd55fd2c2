"""The harness that runs in this process: what it sends, retries, and takes for an end."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from abut.concurrency.loop import DaemonLoop

FULL = '{"error": {"code": "context_length_exceeded", "message": "too long"}}'


def answer(**message: Any) -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", **message}}]})


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


class Scripted:
    """Answers one request after the other with a status and a body; keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.asked: list[tuple[str, Any, Any]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.asked.append((self.path, dict(self.headers), body))
                status, text = owner.answers.pop(0)
                data = text.encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def play(self, *answers: tuple[int, str], gate: bool = False, **data: Any) -> Any:
        """Return the result of a segment, of which each request is answered so."""
        import verifiers.v1 as vf

        from abut.verifiers.chat_harness import ChatHarness, chat_harness_id

        self.answers = [*answers]
        harness = ChatHarness(vf.HarnessConfig(id=chat_harness_id()))
        loop = DaemonLoop("test-harness")
        loop.open()
        try:
            return loop.submit(
                lambda: harness.launch(
                    SimpleNamespace(model="m"),
                    None,
                    None,
                    f"{self.url}/v1",
                    "secret",
                    {},
                    vf.TaskData(**data),
                    f"{self.url}/tool" if gate else None,
                )
            ).result(60)
        finally:
            loop.end(2.0)

    @property
    def messages(self) -> Any:
        """Those of the last request."""
        return self.asked[-1][2]["messages"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr("abut.verifiers.chat_harness._FIRST_WAIT_S", 0.01)
    made = Scripted()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_prompt_with_a_system_prompt_is_asked_once(scripted: Scripted) -> None:
    result = scripted.play((200, answer(content="yes")), prompt="go", system_prompt="Be brief.")
    assert result.exit_code == 0
    ((path, headers, body),) = scripted.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "go"},
        ],
    }


def test_a_full_conversation_is_an_end_and_another_refusal_is_not(scripted: Scripted) -> None:
    assert scripted.play((400, FULL), prompt="go").exit_code == 0
    result = scripted.play((400, '{"error": "n must be 1"}'), prompt="go")
    assert (result.exit_code, result.stderr) == (1, '{"error": "n must be 1"}')


def test_a_server_that_fails_is_asked_again_and_told_so(scripted: Scripted) -> None:
    result = scripted.play((503, "busy"), (502, "busy"), (200, answer(content="yes")), prompt="go")
    assert result.exit_code == 0
    counts = [headers.get("x-stainless-retry-count") for _, headers, _ in scripted.asked]
    assert counts == [None, "1", "2"]
    scripted.asked.clear()
    assert scripted.play(*[(503, "busy")] * 3, prompt="go").exit_code == 1
    assert len(scripted.asked) == 3


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (call("dig"), "error: unknown tool 'dig'"),
        (call("dig", "not JSON"), "error: unknown tool 'dig'"),
    ],
)
def test_a_call_of_no_tool_is_answered_with_what_is_wrong(
    scripted: Scripted, made: Any, said: str
) -> None:
    scripted.play((200, answer(tool_calls=[made])), (200, answer(content="ok")), prompt="go")
    assert scripted.messages[1:] == [
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "name": "dig", "content": said},
    ]


def test_a_task_may_deny_a_call_or_stop_at_it(scripted: Scripted) -> None:
    called = answer(tool_calls=[call("dig", '{"deep": 3}')])
    denied = {"role": "tool", "tool_call_id": "c1", "content": "not here"}
    scripted.play(
        (200, called),
        (200, json.dumps({"action": "deny", "message": denied})),
        (200, answer(content="ok")),
        prompt="go",
        gate=True,
    )
    assert scripted.messages[-1] == denied
    path, headers, question = scripted.asked[1]
    assert (path, headers["Authorization"]) == ("/tool", "Bearer secret")
    assert question == {"tool_call_id": "c1", "name": "dig", "arguments": {"deep": 3}}
    with pytest.raises(RuntimeError, match="enough"):
        scripted.play(
            (200, called),
            (200, json.dumps({"action": "stop", "reason": "enough"})),
            prompt="go",
            gate=True,
        )


def test_a_long_result_is_shortened_as_verifiers_does() -> None:
    from verifiers.v1.harnesses.utils.compaction import bound_tool_message

    long = {"role": "tool", "tool_call_id": "c1", "content": "x" * 10**6}
    assert len(bound_tool_message(long)["content"]) < 10**5
