"""What the policy reads and says: decided by the server's schema, or by nobody."""

from typing import Any

import pytest

import abut
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.openenv import OpenEnv, call_tools, tool_message, transcript
from abut.openenv.text import act_by_schema, observe_by_schema
from abut.rollout.rollout import Rollout
from tests.kit.servers.wire_server import TEXT, WireServer
from tests.kit.stage.rollouts import Recording, Stage

MAYBE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
NUMBER = {"type": "number"}
TOOL_RESULT = {"tool_name": TEXT, "result": {}, "error": {}}
MESSAGES = {"messages": {"type": "array"}}


def schema(**observation: Any) -> Any:
    common = {"done": {}, "reward": {}, "metadata": {}}
    return {"observation": {"properties": {**common, **observation}}}


def action(required: list[str], **fields: Any) -> Any:
    return {"action": {"properties": {"metadata": {}, **fields}, "required": required}}


# ---- observations


def test_the_only_text_is_shown() -> None:
    for field in (TEXT, MAYBE):
        observe, repeats = observe_by_schema(schema(question=field, score=NUMBER), "url")
        assert not repeats
        assert observe({"question": "2 + 2?", "score": 1.0}) == "2 + 2?"
        assert observe({"question": None}) == observe({}) == ""


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"question": TEXT, "correct_answer": MAYBE}, ["correct_answer", "question"]),
        ({"board": {"type": "array"}}, "none"),
        ({"kind": {"type": "string", "enum": ["a"]}, "x": NUMBER}, "none"),
    ],
)
def test_which_field_is_shown_is_not_guessed(fields: Any, names: Any) -> None:
    with pytest.raises(EnvError) as raised:
        observe_by_schema(schema(**fields), "http://a")
    all_fields = sorted([*fields, "done", "metadata", "reward"])
    assert str(raised.value) == (
        "http://a: abut cannot tell which field of an observation to show the policy: of "
        f"{all_fields}, {names} are text\nhint: pass observe=, such as observe=lambda "
        'observation: observation["prompt"]'
    )


def test_messages_are_a_transcript() -> None:
    observe, repeats = observe_by_schema(schema(prompt=TEXT, **MESSAGES), "url")
    assert repeats
    seen = {"prompt": "p", "messages": [{"content": "[GAME] a"}, {"content": "[1] b"}, "?"]}
    assert observe(seen) == transcript(seen) == "[GAME] a\n[1] b"
    assert transcript({}) == ""


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"result": "plain"}, "plain"),
        ({"result": {"content": [{"type": "text", "text": "3"}, {"text": "4"}]}}, "3\n4"),
        ({"result": {"content": []}}, ""),
        ({"result": {"content": [{"type": "image"}]}}, '{"content": [{"type": "image"}]}'),
        ({"result": [1, "é"]}, '[1, "é"]'),
        ({"result": None}, "null"),
        ({"result": None, "error": {"error_type": "e", "message": "no"}}, "Error: no"),
        ({"result": None, "error": "no"}, "Error: no"),
    ],
)
def test_what_a_tool_gave_back_is_a_tool_message(result: Any, content: str) -> None:
    message = [{"role": "tool", "name": "add", "content": content}]
    observation = {"tool_name": "add", **result}
    assert tool_message(observation) == message
    observe, _ = observe_by_schema(schema(**TOOL_RESULT), "url")
    assert observe(observation) == message
    assert observe({"metadata": {"status": "ready"}}) == ""


# ---- actions


def test_the_text_is_the_only_text_of_an_action() -> None:
    for given in (
        action([], message=TEXT),
        action(["message"], message=TEXT, comment=TEXT, n=NUMBER),
        action(["message"], message=TEXT, type={"type": "string", "const": "say"}),
    ):
        assert act_by_schema(given, "url")("hi") == {"message": "hi"}


@pytest.mark.parametrize(
    "given",
    [
        action([], a=TEXT, b=TEXT),
        action(["a", "n"], a=TEXT, n=NUMBER),
        action([], n=NUMBER),
        action(["tool_name"], tool_name=TEXT, arguments={"type": "object"}),
    ],
)
def test_what_takes_the_text_is_not_guessed(given: Any) -> None:
    with pytest.raises(EnvError) as raised:
        act_by_schema(given, "http://a")
    assert str(raised.value) == (
        "http://a: abut cannot tell which field of an action takes the policy's text: "
        f"{sorted(given['action']['properties'])}\nhint: pass act=, such as act=lambda text: "
        '{"message": text} or act=call_tools("hermes")'
    )


@pytest.mark.parametrize("given", [None, [], {}, {"action": 1}, {"action": {"properties": []}}])
def test_a_schema_that_is_none_is_named(given: Any) -> None:
    with pytest.raises(EnvError) as raised:
        act_by_schema(given, "url")
    assert str(raised.value) == (
        "the server's /schema has no 'action'\nhint: pass observe= and act="
    )


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_each_tool_call_is_an_action() -> None:
    act = call_tools("hermes")
    one = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
    assert act(f"I add. {CALL}{CALL}") == [one, one]
    assert act("It is 1.") == []


def test_a_malformed_tool_call_is_an_invalid_action() -> None:
    with pytest.raises(abut.InvalidAction) as raised:
        call_tools("hermes")(CALL + "<tool_call>{")
    assert str(raised.value) == "Malformed tool call: character 72: the JSON value is not closed"


# ---- with a server


def play(stage: Stage, openenv: OpenEnv, **options: Any) -> Rollout:
    sampler = Recording(stage.says("yes"))
    task = RolloutTask(0, "r0", openenv, [], "seed", 7)
    return stage.engine(sampler, retries=0, max_failed_frac=1, **options).run([task])[0]


def heard(rollout: Rollout) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] != "assistant"]


def game() -> WireServer:
    """Repeats all of the game in each observation."""
    said: list[str] = []

    def first(kwargs: Any) -> str:
        said.clear()
        return "[GAME] Guess."

    def observation(text: str) -> dict[str, Any]:
        said.append(f"\n{text}")
        return {"prompt": "g", "messages": [{"content": "".join(said)}]}

    both = {**schema(prompt=TEXT, **MESSAGES), **action(["message"], message=TEXT)}
    return WireServer(schema=both, first=first, observation=observation)


def test_a_history_that_is_repeated_is_shown_once(stage: Stage) -> None:
    with game() as server, OpenEnv(server.url) as openenv:
        assert heard(play(stage, openenv)) == ["[GAME] Guess.", "yes", "yes", "yes"]
        assert heard(play(stage, openenv)) == ["[GAME] Guess.", "yes", "yes", "yes"]


def test_a_history_may_be_shown_as_it_is(stage: Stage) -> None:
    with game() as server, OpenEnv(server.url, history="new") as openenv:
        assert heard(play(stage, openenv))[2] == "\n[GAME] Guess.\nyes\nyes"


def test_a_text_that_happens_to_begin_like_the_one_before_is_no_history(stage: Stage) -> None:
    with WireServer(first=lambda kwargs: "ye") as server, OpenEnv(server.url) as openenv:
        assert heard(play(stage, openenv)) == ["ye", "yes", "yes", "yes"]


def test_a_history_that_is_not_repeated_is_named(stage: Stage) -> None:
    with WireServer() as server, OpenEnv(server.url, history="repeated") as openenv:
        assert play(stage, openenv).error == (
            "EnvError: history='repeated' needs observations that begin with the previous one, "
            "but after 'seed 7' came 'yes'\nhint: history='new'"
        )


def test_messages_that_are_new_each_time_are_shown_whole(stage: Stage) -> None:
    both = {**schema(**MESSAGES), **action([], message=TEXT)}
    said = {"observation": lambda text: {"messages": [{"content": text}]}}
    with WireServer(schema=both, **said) as server, OpenEnv(server.url) as openenv:
        assert heard(play(stage, openenv)) == ["seed 7", "yes", "yes", "yes"]


def test_a_server_without_a_schema_needs_both_functions(stage: Stage) -> None:
    with WireServer(schema=None) as server:
        with OpenEnv(server.url) as openenv:
            assert play(stage, openenv).error == (
                f"EnvError: {server.url}/schema does not describe the environment, AnswerError: "
                "the server answered with HTTP status 404\nhint: pass observe= and act="
            )
        given: Any = {
            "observe": lambda seen: seen["text"],
            "act": lambda text: {"message": text},
        }
        with OpenEnv(server.url, **given) as openenv:
            assert heard(play(stage, openenv))[1:] == ["yes", "yes", "yes"]


def test_an_observation_may_be_messages(stage: Stage) -> None:
    def observe(seen: Any) -> Any:
        return [{"role": "user", "content": seen["text"]}, {"role": "user", "content": "?"}]

    with WireServer() as server, OpenEnv(server.url, observe=observe) as openenv:
        assert heard(play(stage, openenv))[:4] == ["seed 7", "?", "yes", "?"]


def test_a_server_without_tools_is_named() -> None:
    with WireServer() as server, OpenEnv(server.url) as openenv:
        with pytest.raises(EnvError) as raised:
            openenv.list_tools()
        assert str(raised.value) == f"{server.url} did not list any tools: None"
    with WireServer(faults=["invalid"]) as server, OpenEnv(server.url) as openenv:
        with pytest.raises(EnvError):
            openenv.list_tools()
        with pytest.raises(EnvError) as raised:
            openenv.list_tools()
        assert str(raised.value) == (
            f"{server.url} did not list any tools: Invalid action: message: Field required; again"
        )
