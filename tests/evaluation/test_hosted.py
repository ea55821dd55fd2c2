"""Models behind a chat API: what they are asked, what becomes of their answers and errors."""

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import abut
from abut.errors import SamplerError
from abut.samplers import ChatSampler
from abut.samplers.settings import SamplingSettings
from tests.evaluation.test_play import Guess, add, asks, rows, said

pytest.importorskip("transformers", reason="the tokenizer is transformers'")
pytest.importorskip("aiohttp")


class Host:
    """An OpenAI-compatible server: answers by a list of statuses and messages, the last for ever.

    Attributes:
        bodies: the requests, in order.
        headers: theirs.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self._lock = threading.Lock()
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with host._lock:
                    host.bodies.append(body | {"path": self.path})
                    host.headers.append(self.headers)
                    many = len(host.answers) > 1
                    answer = host.answers.pop(0) if many else host.answers[0]
                status, said = answer if isinstance(answer, tuple) else (200, answer)
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "0")
                content = json.dumps(said).encode()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def host() -> Iterator[Host]:
    served = Host()
    yield served
    served.close()


def answer(content: Any = None, calls: Sequence[Any] = (), finish: str = "stop") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{k}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for k, (name, arguments) in enumerate(calls)
        ]
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def test_an_environment_is_played_and_nothing_is_trained(host: Host) -> None:
    host.answers = [answer("a"), answer(" b <|im_end|>\n"), answer("b")]
    sampler = ChatSampler(host.url, "big", api_key="secret", temperature=0.3)
    result = abut.evaluate(Guess, rows("b"), sampler=sampler)
    (rollout,) = result.rollouts
    assert [body["model"] for body in host.bodies] == ["big", "big"]
    assert host.bodies[0]["temperature"] == 0.3
    assert "max_tokens" not in host.bodies[0]
    assert host.headers[0]["Authorization"] == "Bearer secret"
    assert [m["role"] for m in host.bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert (rollout.columns, rollout.trainable, rollout.prompt_ids) == (None, False, None)
    assert said(rollout) == ["a", " b <|im_end|>\n"]
    assert rollout.usage == {"prompt_tokens": 20, "completion_tokens": 6}
    assert sampler.usage == rollout.usage
    assert sampler.seconds > 0
    assert result.mean_tokens == 6


def test_tools_are_called_by_their_ids(host: Host) -> None:
    host.answers = [answer(None, [("add", '{"a": 2, "b": 3}'), ("add", "{}")]), answer("5")]
    env = abut.tool_env([add], reward=lambda messages: float(messages[-1]["content"]))
    (rollout,) = abut.play(
        env,
        [{"prompt": [{"role": "user", "content": "2 + 3?"}]}],
        sampler=ChatSampler(host.url, "big"),
    )
    assert rollout.reward == 5.0
    asked, after = host.bodies
    assert asked["tools"][0]["function"]["name"] == "add"
    _, called, first, second = after["messages"]
    ids = [call["id"] for call in called["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]]
    assert len(set(ids)) == 2
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 3}
    assert first["content"] == "5"


def test_a_call_whose_arguments_are_no_object_is_text(host: Host) -> None:
    host.answers = [answer("so", [("add", "{broken")])]
    env = abut.tool_env([add], reward=lambda messages: 1.0)
    (rollout,) = abut.play(env, rows("b"), sampler=ChatSampler(host.url, "big"))
    assert said(rollout) == ['so\n{"name": "add", "arguments": "{broken"}']


def test_an_agent_asks_through_the_gateway(host: Host) -> None:
    host.answers = [answer("word b")]

    @abut.agent
    def agent(endpoint: abut.Endpoint, prompt: Any) -> float:
        return float(asks(endpoint, prompt) == "word b" and asks(endpoint, "more") == "word b")

    rollouts = abut.play(agent, rows("b"), k=2, sampler=ChatSampler(host.url, "big"))
    assert [r.reward for r in rollouts] == [1.0, 1.0]
    assert [r.usage["completion_tokens"] for r in rollouts] == [6, 6]
    assert not any(r.branches or r.seams or r.trainable for r in rollouts)
    assert [len(r.turns) for r in rollouts] == [2, 2], "of both conversations"


def test_the_limit_of_a_turn_is_the_hosts(host: Host) -> None:
    """Its answer is longer in the tokens of the template's tokenizer, and whole all the same."""
    long = "abcdefghij" * 5
    host.answers = [answer(long, finish="length")]
    config = abut.RolloutConfig(max_turn_tokens=4, max_turns=1)
    (rollout,) = abut.play(Guess, rows("b"), sampler=ChatSampler(host.url, "big"), config=config)
    assert host.bodies[0]["max_tokens"] == 4
    assert said(rollout) == [long]
    assert rollout.turns[0].finish_reason == "length"


def test_a_busy_host_is_asked_again(host: Host) -> None:
    host.answers = [(429, {}), (503, {}), answer("b")]
    (rollout,) = abut.play(Guess, rows("b"), sampler=ChatSampler(host.url, "big"))
    assert rollout.reward == 1.0
    assert len(host.bodies) == 3


def test_a_host_that_stays_busy_ends_the_run(host: Host) -> None:
    host.answers = [(503, {"error": {"message": "full"}})]
    with pytest.raises(SamplerError, match=r"answers 503 .*full(.|\n)*give_up_s=0.1"):
        abut.play(Guess, rows("b"), sampler=ChatSampler(host.url, "big", give_up_s=0.1))


def test_a_refusal_ends_the_run_at_once(host: Host) -> None:
    host.answers = [(404, {"error": {"message": "no model big"}}), answer("b")]
    with pytest.raises(SamplerError, match="answers 404 to /chat/completions: no model big"):
        abut.play(Guess, rows("b"), sampler=ChatSampler(host.url, "big"))
    host.answers = [{"models": []}]
    with pytest.raises(SamplerError, match="did not answer with a chat message"):
        abut.play(Guess, rows("b"), sampler=ChatSampler(host.url, "big"))


class Cat:
    """A TextSampler of a user's own."""

    def __init__(self, said: Any) -> None:
        self.said = said

    async def reply(self, messages: Any, tools: Any, settings: Any) -> Any:
        return self.said


def test_a_users_own_needs_no_more_than_a_message() -> None:
    assert abut.play(Guess, rows("b"), sampler=Cat({"content": "b"}))[0].reward == 1.0
    with pytest.raises(SamplerError, match=r"Cat.reply returned str, not a message"):
        abut.play(Guess, rows("b"), sampler=Cat("b"))


def test_training_refuses_it_and_says_what_takes_it() -> None:
    pytest.importorskip("trl")
    from abut.trl import make_rollout_func

    with pytest.raises(TypeError, match=r"answers with messages(.|\n)*abut.play"):
        make_rollout_func(Guess, sampler=ChatSampler("http://localhost:1/v1", "big"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="its own settings"):
        abut.play(Guess, rows("b"), sampler=Cat({}), sampling=SamplingSettings())


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="an address starts with http"):
        ChatSampler("localhost/v1", "big")
