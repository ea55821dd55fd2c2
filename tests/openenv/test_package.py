"""Episodes on real servers: those of the openenv package, started as a user starts them.

Set ABUT_OPENENV_PYTHON to a Python that has `tests/openenv/servers/requirements.txt`;
`make test-openenv` does.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from abut.envs.task import RolloutTask
from abut.openenv import OpenEnv, Serve, call_tools
from abut.openenv.target import servers_of
from abut.rollout.rollout import Rollout
from tests.kit.checkout import ROOT
from tests.kit.stage.rollouts import Recording, Stage, assert_done

PYTHON = os.environ.get("ABUT_OPENENV_PYTHON", "")

pytestmark = [
    pytest.mark.openenv,
    pytest.mark.skipif(
        not PYTHON, reason="ABUT_OPENENV_PYTHON is unset: make test-openenv sets it"
    ),
]


def serve(name: str, **settings: Any) -> Serve:
    folder = ROOT / "tests" / "openenv" / "servers"
    return Serve(f"{name}_server:app", python=PYTHON, cwd=folder, **settings)


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """The address of one server: starting one takes seconds."""
    (host,) = servers_of(serve("echo"))
    yield asyncio.run(host.url())
    host.end()


def play(
    stage: Stage, openenv: OpenEnv, n: int, says: Any, *, group: bool = False, **options: Any
) -> list[Rollout]:
    def script(request: Any) -> Any:
        text = says if isinstance(says, str) else says(request)
        return stage.says(text)(request)

    tasks = [RolloutTask(i, f"r{i}", openenv, [], "s", 0 if group else i) for i in range(n)]
    return stage.engine(Recording(script), max_failed_frac=1, **options).run(tasks)


def heard(rollout: Rollout) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] != "assistant"]


def test_sixteen_episodes_of_echo(stage: Stage, echo: str) -> None:
    with OpenEnv(echo) as openenv:
        for i, rollout in enumerate(play(stage, openenv, 16, "hi", retries=0)):
            assert_done(rollout)
            assert heard(rollout) == [f"seed {i} {{}}", "hi", "hi", "hi"]
            assert rollout.step_rewards == [1.0, 2.0, 3.0]


def test_one_session_is_shared_by_sixteen_episodes(stage: Stage) -> None:
    given = {"observe": lambda seen: f"session {seen['session']} episode {seen['episode']}"}
    app = serve("echo", environ={"MAX_SESSIONS": "1"})
    with OpenEnv(app, **given) as openenv:
        rollouts = play(stage, openenv, 16, "hi", retries=0)
        first = sorted(heard(rollout)[0] for rollout in rollouts)
        assert first == sorted(f"session 0 episode {i + 1}" for i in range(16))


def test_replicas_of_one_session_share_sixteen_episodes(stage: Stage) -> None:
    given = {"observe": lambda seen: f"{seen['pid']} {seen['session']}"}
    app = serve("echo", replicas=2, environ={"MAX_SESSIONS": "1"})
    with OpenEnv(app, **given) as openenv:
        rollouts = play(stage, openenv, 16, "hi", retries=0)
        sessions = {place for rollout in rollouts for place in heard(rollout)}
        assert len(sessions) == 2
        assert all(len(set(heard(rollout))) == 1 for rollout in rollouts)


def test_what_a_server_raises_is_another_attempt(stage: Stage, echo: str) -> None:
    with OpenEnv(echo) as openenv:
        (rollout,) = play(stage, openenv, 1, "raise")
        assert rollout.attempts == 2
        assert rollout.error == f"EnvError: {echo} answered step with EXECUTION_ERROR: boom"


def test_what_a_server_cannot_read_is_told(stage: Stage, echo: str) -> None:
    with OpenEnv(echo, act=lambda text: {"said": text}) as openenv:
        (rollout,) = play(stage, openenv, 1, "hi", max_turns=2)
        assert rollout.attempts == 1
        assert heard(rollout)[1] == (
            "Invalid action: message: Field required; said: Extra inputs are not permitted"
        )


def test_a_server_killed_in_mid_episode_costs_an_attempt(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Rollout 3 kills the server; all others lose their session and play again on the new one."""
    attempts: dict[str, int] = {}

    def says(request: Any) -> str:
        if request.turn == 0:
            attempts[request.rollout_id] = attempts.get(request.rollout_id, 0) + 1
        kills = request.rollout_id == "r3" and request.turn == 1
        return "die" if kills and attempts["r3"] == 1 else "hi"

    with OpenEnv(serve("echo")) as openenv:
        rollouts = play(stage, openenv, 16, says)
        for i, rollout in enumerate(rollouts):
            assert_done(rollout)
            assert heard(rollout) == [f"seed {i} {{}}", "hi", "hi", "hi"]
        assert rollouts[3].attempts == 2
        assert "closed the socket without a word" in rollouts[3].attempt_errors[0]
    assert any(
        message.startswith("serve:echo_server:app exited with code 3")
        for message in caplog.messages
    )


def test_guess_the_number_shows_the_game_once(stage: Stage) -> None:
    with OpenEnv(serve("guess")) as openenv:
        for rollout in play(stage, openenv, 16, lambda request: f"[{request.turn + 1}]", retries=0):
            told = heard(rollout)
            assert told[0].startswith("[GAME] You are Player 0. You are playing Guess The Number.")
            # Behind the last guess the game is over, or the turns are.
            for turn, text in enumerate(told[1:-1]):
                hint = "[GAME] The target number is higher."
                assert text == f"[Player] [{turn + 1}]\n{hint}"


def test_a_seed_that_textarena_ignores_is_not_seen_in_its_first_words(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with OpenEnv(serve("guess")) as openenv:
        play(stage, openenv, 4, "[1]", group=True, max_turns=1)
    assert caplog.messages == []


def test_tools_are_listed_and_called(stage: Stage) -> None:
    with OpenEnv(serve("tools"), act=call_tools("hermes")) as openenv:
        tools = openenv.list_tools()
        assert [tool["function"]["name"] for tool in tools] == ["add", "fail"]
        parameters = tools[0]["function"]["parameters"]
        assert parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}

        def says(request: Any) -> str:
            add = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
            fail = '<tool_call>{"name": "fail", "arguments": {}}</tool_call>'
            return [add + fail, "It is 5."][request.turn]

        for rollout in play(stage, openenv, 4, says, retries=0):
            assert_done(rollout)
            assert [(m["role"], m["content"]) for m in rollout.messages[2:4]] == [
                ("tool", "5"),
                ("tool", "Error: Error calling tool 'fail': not today"),
            ]
            assert len(rollout.turns) == 2
