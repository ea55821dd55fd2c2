"""Episodes over OpenEnv's protocol, on a server of our own that does what may go wrong.

Rules: one session, one episode; no step is sent twice; what breaks costs its own attempt.
"""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

import abut
from abut.concurrency.mailbox import Mailbox
from abut.concurrency.threads import CallQueue
from abut.envs.task import RolloutTask
from abut.errors import EnvError, RolloutError
from abut.openenv import OpenEnv
from abut.openenv.open_env_episode import OpenEnvEpisode
from abut.rollout.rollout import Rollout
from tests.kit.servers.wire_server import SECRET, WireServer
from tests.kit.stage.rollouts import (
    LIMIT_S,
    Recording,
    Stage,
    Talk,
    assert_done,
    env,
    eventually,
    own_threads,
)

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@contextmanager
def served(given: Any = None, **settings: Any) -> Iterator[tuple[WireServer, OpenEnv]]:
    """A server with these settings, and its environments with the given ones."""
    with WireServer(**settings) as server, OpenEnv(server.url, **given or {}) as openenv:
        yield server, openenv


def play(
    stage: Stage, openenv: OpenEnv, episodes: int = 1, *, script: Any = "yes", **options: Any
) -> list[Rollout]:
    groups = options.pop("groups", None) or range(episodes)
    tasks = [
        RolloutTask(i, f"r{i}", openenv, [], "seed", 100 + g, options.get("columns", {}), g)
        for i, g in enumerate(groups)
    ]
    options.pop("columns", None)
    sampler = Recording(stage.says(script) if isinstance(script, str) else script)
    return stage.engine(sampler, **options).run(tasks)


def heard(rollout: Rollout) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] != "assistant"]


# ---- episodes


def test_an_episode_is_a_reset_and_steps_on_one_session(stage: Stage) -> None:
    with served() as (server, openenv):
        (rollout,) = play(stage, openenv)
        assert_done(rollout)
        assert heard(rollout) == ["seed 100", "yes", "yes", "yes"]
        assert rollout.step_rewards == [1.0, 2.0, 3.0]
        assert server.asked(0) == ["reset", "step", "step", "step"]


def test_sixteen_episodes_share_the_sessions_that_there_are(stage: Stage) -> None:
    with served(max_sessions=3) as (server, openenv):
        rollouts = play(stage, openenv, 16)
        for rollout in rollouts:
            assert_done(rollout)
            assert rollout.attempts == 1
        assert server.most_active == 3
        assert server.refused <= 13, "the limit is learned at once"
        assert len(server.resets_sent()) == 16
        opened = server.opened
        play(stage, openenv, 16)
        assert server.opened == opened, "sessions are kept from batch to batch"


def test_several_servers_share_the_episodes(stage: Stage) -> None:
    begun = threading.Barrier(2)
    first_ones = iter([True, True])

    def first(kwargs: Any) -> str:
        """The first two episodes begin at once, each on its server's thread."""
        if next(first_ones, False):
            begun.wait(60)
        return "go"

    settings: dict[str, Any] = {"max_sessions": 1, "first": first}
    with WireServer(**settings) as a, WireServer(**settings) as b:
        with OpenEnv([a.url, b.url]) as openenv:
            for rollout in play(stage, openenv, 8):
                assert_done(rollout)
        assert len(a.resets_sent()) + len(b.resets_sent()) == 8
        assert a.resets_sent()
        assert b.resets_sent()


def test_waiting_in_line_costs_no_timeout_and_no_slot(stage: Stage) -> None:
    """Eight wait, one plays a second: each limit would be over, and one slot would be all taken."""
    limits = {"reset_timeout_s": LIMIT_S, "rollout_timeout_s": 7.0}
    limits |= {"max_env_steps": 1, "retries": 0}
    with served(max_sessions=1, step_s=0.33) as (server, openenv):
        began = time.monotonic()
        rollouts = play(stage, openenv, 8, **limits)
        assert time.monotonic() - began > limits["rollout_timeout_s"]
        assert [rollout.error for rollout in rollouts] == [None] * 8
        assert server.opened == 1
        assert server.refused <= 7, "who was refused once waits, and does not ask"


def test_a_slow_constructor_is_not_the_reset(stage: Stage) -> None:
    with served(constructor_s=LIMIT_S + 0.5) as (_, openenv):
        (rollout,) = play(stage, openenv, reset_timeout_s=LIMIT_S, retries=0)
        assert_done(rollout)


def test_sessions_may_be_made_anew_for_each_episode(stage: Stage) -> None:
    with served({"reuse_sessions": False}) as (server, openenv):
        play(stage, openenv, 4)
        assert server.opened == 4
        assert eventually(lambda: not server.active)


def test_unused_sessions_are_closed_for_others(stage: Stage) -> None:
    with served({"idle_timeout_s": 0.1}) as (server, openenv):
        play(stage, openenv, 2)
        assert eventually(lambda: not server.active)


def test_the_state_is_never_shown(stage: Stage) -> None:
    with served() as (server, openenv):
        (rollout,) = play(stage, openenv)
        assert (0, "state", None) in server.frames
        assert SECRET not in str(rollout.messages)


# ---- what breaks


FAULTS = {
    "raise": "{url} answered step with EXECUTION_ERROR: boom",
    "drop": "{url} closed the socket without a word before it answered step",
    "close": "{url} closed the socket with code 1000 before it answered step",
    "late 600": "OpenEnvEpisode.step did not answer within step_timeout_s=6",
    "raw {": "{url}: the reply to step is not a message of OpenEnv: '{{'\nhint: abut needs the "
    "socket /ws of an OpenEnv server, version 0.3 to 0.10",
    'raw {"type": "observation", "data": {"observation": 1}}': (
        "{url}: the reply to step is not a message of OpenEnv: '{{\"observation\": 1}}'\nhint: "
        "abut needs the socket /ws of an OpenEnv server, version 0.3 to 0.10"
    ),
    'raw {"type": "state", "data": {}}': (
        '{url}: the reply to step is not a message of OpenEnv: \'{{"type": "state", '
        '"data": {{}}}}\'\nhint: abut needs the socket /ws of an OpenEnv server, version 0.3 '
        "to 0.10"
    ),
    "reward Infinity": "OpenEnvEpisode.reward is inf, but a group's baseline needs finite "
    "rewards\nhint: set reward to None for an episode without a score",
    "big 2000000": "{url}: the reply to step is longer than max_message_bytes=1000000\nhint: raise "
    "max_message_bytes",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_breaks_costs_its_attempt_and_no_step_is_sent_twice(stage: Stage, fault: str) -> None:
    given = {"max_message_bytes": 1_000_000, "reuse_sessions": False}
    with served(given, faults=[fault]) as (server, openenv):
        (rollout,) = play(stage, openenv, step_timeout_s=LIMIT_S)
        assert_done(rollout)
        assert rollout.attempt_errors == [f"EnvError: {FAULTS[fault].format(url=server.url)}"]
        assert server.asked(0) == ["reset", "step", "step"]
        assert server.asked(1) == ["reset", "step", "step", "step"]
        assert heard(rollout) == ["seed 100", "yes", "yes", "yes"]


@pytest.mark.parametrize("fault", FAULTS.keys() - {"reward Infinity"})
def test_a_session_that_broke_is_not_used_again(stage: Stage, fault: str) -> None:
    with served({"max_message_bytes": 1_000_000}, faults=[fault]) as (server, openenv):
        play(stage, openenv, step_timeout_s=LIMIT_S)
        assert eventually(lambda: 0 not in server.active), "it is closed"
        assert_done(play(stage, openenv)[0])
        assert server.asked(0) == ["reset", "step", "step"]
        assert len(server.asked(1)) == 8


def test_a_fault_costs_only_its_own_rollout(stage: Stage) -> None:
    with served(max_sessions=4, faults=["drop"]) as (_, openenv):
        rollouts = play(stage, openenv, 16)
        assert [rollout.error for rollout in rollouts] == [None] * 16
        assert sorted(rollout.attempts for rollout in rollouts) == [1] * 15 + [2]


def test_garbage_that_nests_deeply_is_garbage(stage: Stage) -> None:
    with served(faults=["raw " + "[" * 200_000]) as (_, openenv):
        (rollout,) = play(stage, openenv)
        assert "is not a message of OpenEnv: '[[[[" in rollout.attempt_errors[0]


def test_ten_megabytes_are_read(stage: Stage) -> None:
    given = {"observe": lambda observation: f"{len(observation['text'])} signs"}
    with served(given, faults=["big 10000000"]) as (_, openenv):
        (rollout,) = play(stage, openenv)
        assert heard(rollout)[2] == "10000000 signs"


@pytest.mark.parametrize("reward", ["NaN", "null"])
def test_a_reward_that_is_none_is_no_score(stage: Stage, reward: str) -> None:
    with served(faults=[f"reward {reward}"]) as (_, openenv):
        (rollout,) = play(stage, openenv)
        assert_done(rollout)
        assert rollout.step_rewards == [1.0, None]
        assert rollout.reward is None


def test_a_reward_may_be_taken_from_the_observation(stage: Stage) -> None:
    with served({"reward": lambda seen: len(seen["text"]) / 2}) as (_, openenv):
        assert play(stage, openenv)[0].step_rewards == [1.5, 1.5, 1.5]


def test_a_reward_that_no_float_holds_costs_its_own_rollout(stage: Stage) -> None:
    with served(faults=["reward 1" + "0" * 400]) as (_, openenv):
        rollouts = play(stage, openenv, 4, retries=0, max_failed_frac=1)
    failed = [rollout.error for rollout in rollouts if rollout.error]
    assert len(failed) == 1
    assert "OpenEnvEpisode.reward is inf" in failed[0]


# ---- what the user wrote


GIVES: dict[str, Any] = {
    "observe": lambda observation: observation["text"],
    "act": lambda text: {"message": text},
    "reward": lambda observation: 1.0,
    "reset": lambda columns: {},
}


@pytest.mark.parametrize("name", GIVES)
def test_a_function_that_takes_long_holds_up_only_its_own_episode(stage: Stage, name: str) -> None:
    threads = set()
    others = threading.Barrier(2)

    def slow(given: Any) -> Any:
        threads.add(threading.current_thread().name)
        others.wait(60)  # of two episodes, each call returns when the other's has begun
        return GIVES[name](given)

    with served({name: slow}) as (_, openenv):
        rollouts = play(stage, openenv, 2, retries=0)
    for rollout in rollouts:
        assert_done(rollout)
    assert len(threads) > 1
    assert all(name.startswith("abut-thread-") for name in threads), "not on a loop"


def test_a_reset_function_that_hangs_costs_its_own_rollout(stage: Stage) -> None:
    released = threading.Event()
    with served({"reset": lambda columns: released.wait(600) and {}}) as (_, openenv):
        (rollout,) = play(stage, openenv, reset_timeout_s=0.3, retries=0, max_failed_frac=1)
    released.set()
    assert (
        rollout.error == "EnvError: OpenEnvEpisode.reset did not answer within reset_timeout_s=0.3"
    )


def test_threads_end_after_the_last_episode(stage: Stage) -> None:
    with served({"act": only_digits}) as (_, openenv):
        play(stage, openenv, 4, script="1")
        assert eventually(lambda: own_threads() == ["abut-openenv"]), own_threads()


def test_our_own_functions_need_no_thread(stage: Stage, monkeypatch: Any) -> None:
    with served() as (_, openenv):
        assert_done(play(stage, openenv)[0])  # asks for the server's schema, once, on a thread
        monkeypatch.setattr(abut.openenv.open_env_episode, "THREADS", None)
        assert_done(play(stage, openenv)[0])


# ---- the policy's fault


def only_digits(text: str) -> dict[str, str]:
    if not text.isdigit():
        raise abut.InvalidAction(f"{text!r} is no number.")
    return {"message": text}


def test_an_invalid_action_is_told_and_never_retried(stage: Stage) -> None:
    texts = iter(["1", "one", "2", "3"])
    with served({"act": only_digits}) as (server, openenv):
        (rollout,) = play(stage, openenv, script=lambda _: stage.says(next(texts))(_))
        assert_done(rollout)
        assert rollout.attempts == 1
        assert heard(rollout) == ["seed 100", "1", "'one' is no number.", "2", "3"]
        assert rollout.step_rewards == [1.0, 0.0, 2.0, 3.0]
        assert server.asked(0) == ["reset", "step", "step", "step"]


def test_an_invalid_action_may_end_the_episode(stage: Stage) -> None:
    given = {"act": only_digits, "on_invalid": "end", "invalid_reward": -1.0}
    with served(given) as (server, openenv):
        (rollout,) = play(stage, openenv, script="one")
        assert_done(rollout)
        assert (rollout.attempts, rollout.reward) == (1, -1.0)
        assert server.asked(0) == ["reset"]


def test_what_the_server_cannot_read_is_told_too(stage: Stage) -> None:
    with served(faults=["invalid"]) as (server, openenv):
        (rollout,) = play(stage, openenv)
        assert_done(rollout)
        assert rollout.attempts == 1
        assert heard(rollout)[2] == "Invalid action: message: Field required; again"
        assert server.asked(0) == ["reset", "step", "step", "step"]


def test_what_the_server_raises_is_told_where_that_is_wanted(stage: Stage) -> None:
    with served({"on_error": "tell", "invalid_reward": -1.0}, faults=["raise"]) as (
        server,
        openenv,
    ):
        (rollout,) = play(stage, openenv)
        assert_done(rollout)
        assert rollout.attempts == 1
        assert heard(rollout) == ["seed 100", "yes", "Error: boom", "yes"]
        assert rollout.step_rewards == [1.0, -1.0, 3.0]
        assert server.asked(0) == ["reset", "step", "step", "step"]
    with served(faults=["raise"]) as (server, openenv):  # the default
        assert "EXECUTION_ERROR: boom" in failed(stage, openenv)


def test_an_act_may_see_the_observation_that_it_answers(stage: Stage) -> None:
    def act(text: str, observation: Any) -> dict[str, str]:
        seen.append((observation["text"], observation["reward"]))
        if text == "b" and observation["text"] == "a":
            raise abut.InvalidAction("legal: c")
        return {"message": text}

    seen: list[Any] = []
    texts = iter("abcd")
    with served({"act": act}) as (_, openenv):
        (rollout,) = play(stage, openenv, script=lambda _: stage.says(next(texts))(_))
        assert_done(rollout)
        assert heard(rollout) == ["seed 100", "a", "legal: c", "c", "d"]
        assert seen == [("seed 100", None), ("a", 1.0), ("a", 1.0), ("c", 2.0)]


def test_a_string_prompt_is_the_question_where_the_environment_says_nothing(stage: Stage) -> None:
    for said, expected in (("", "What is 2 + 2?"), ("Play.", "Play.")):
        with served(first=lambda kwargs, said=said: said) as (_, openenv):
            (rollout,) = play(stage, openenv, columns={"prompt": "What is 2 + 2?"})
            assert_done(rollout)
            assert heard(rollout)[0] == expected


def test_an_environment_that_is_done_at_reset_is_named(stage: Stage) -> None:
    with served(done_at_reset=True) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url}: the environment was done right after reset\nhint: check "
            "what reset= and tasks= send; some servers end the episode at once if the task "
            "does not exist"
        )


def test_sessions_that_others_keep_are_named(stage: Stage) -> None:
    with served({"connect_timeout_s": 0.3}, max_sessions=0) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url}: all sessions are taken\nhint: other clients held the "
            "server's sessions for connect_timeout_s=0.3; raise that limit, or start more "
            "servers (Serve(…, replicas=…), or a list of addresses)"
        )


def test_an_act_that_returns_no_action_is_named(stage: Stage) -> None:
    with served({"act": lambda text: text}) as (_, openenv):
        rollouts = play(stage, openenv, retries=0, max_failed_frac=1)
        assert rollouts[0].error == (
            "EnvError: act must return a dict or a list of dicts, got str: 'yes'\nhint: if the "
            "text has no action, raise abut.InvalidAction"
        )


def test_several_actions_are_sent_one_after_the_other_until_one_ends_it(stage: Stage) -> None:
    given = {"act": lambda text: [{"message": f"{text}{i}"} for i in range(5)]}
    with served(given) as (server, openenv):
        (rollout,) = play(stage, openenv)
        assert heard(rollout) == ["seed 100", "yes0", "yes1", "yes2"]
        assert rollout.reward == 3.0
        assert len(server.asked(0)) == 4


def test_a_text_without_actions_is_the_last_word(stage: Stage) -> None:
    with served({"act": lambda text: []}) as (_, openenv):
        (rollout,) = play(stage, openenv)
        assert_done(rollout)
        assert len(rollout.turns) == 1


# ---- sessions that cannot be had


def failed(stage: Stage, openenv: OpenEnv) -> str:
    (rollout,) = play(stage, openenv, retries=0, max_failed_frac=1)
    return rollout.error or ""


def test_a_server_that_nobody_runs_is_named(stage: Stage) -> None:
    with WireServer() as gone:
        pass
    with OpenEnv(gone.url, connect_timeout_s=0.3) as openenv:
        head, hint = failed(stage, openenv).splitlines()
    assert head.startswith(f"EnvError: {gone.url} cannot be reached, ")
    # asyncio's words, or uvloop's.
    refused = (f"Connect call failed ('127.0.0.1', {gone.port})", "Connection refused")
    assert head.endswith((*refused, "timed out during opening handshake"))  # where it is slow
    assert hint == "hint: abut tried for connect_timeout_s=0.3; check that the server is running"


def test_a_server_that_comes_back_in_time_is_waited_for(stage: Stage) -> None:
    with WireServer() as server:
        port = server.port
    with OpenEnv(server.url, connect_timeout_s=60) as openenv:
        back = WireServer(port=port)
        timer = threading.Timer(0.5, back.__enter__)
        timer.start()
        assert_done(play(stage, openenv, 4, retries=0)[0])
        timer.join()
    back.__exit__()


def test_another_server_takes_over_from_one_that_is_gone(stage: Stage) -> None:
    with WireServer() as gone:
        pass
    with WireServer() as server, OpenEnv([gone.url, server.url]) as openenv:
        for rollout in play(stage, openenv, 4, retries=0):
            assert_done(rollout)


def test_sessions_that_others_have_are_waited_for(stage: Stage) -> None:
    with WireServer(max_sessions=1) as server:
        with OpenEnv(server.url) as other, OpenEnv(server.url, connect_timeout_s=6) as openenv:
            play(stage, other)
            assert failed(stage, openenv) == (
                f"EnvError: {server.url}: all sessions are taken\nhint: other clients held the "
                "server's sessions for connect_timeout_s=6; raise that limit, or start more "
                "servers (Serve(…, replicas=…), or a list of addresses)"
            )
        with OpenEnv(server.url) as openenv:
            other = OpenEnv(server.url)
            play(stage, other)
            timer = threading.Timer(0.5, other.close)
            timer.start()
            assert_done(play(stage, openenv, 3, retries=0)[0])
            timer.join()


@pytest.mark.parametrize("code", ["FACTORY_ERROR", "SESSION_ERROR"])
def test_an_environment_that_cannot_be_made_is_named(stage: Stage, code: str) -> None:
    with served(constructor_error=code) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url} could not create an environment, {code}: Failed to create "
            "environment\nhint: the environment's constructor raised; the server's log says "
            "where"
        )


def test_a_constructor_has_its_own_limit(stage: Stage) -> None:
    with served({"session_timeout_s": 0.3}, constructor_s=600) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url} did not create an environment within session_timeout_s=0.3"
        )


def test_a_refused_socket_is_named_at_once(stage: Stage) -> None:
    with served(status=403) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url} answered 403 to a socket at /ws\nhint: abut needs the "
            "socket to play an episode; an OpenEnv server has one since 0.3, and without it "
            "answers 403 or 404. Otherwise check that the address has no path, and pass "
            "headers= for a private space"
        )


def test_a_server_that_is_not_ready_is_asked_again(stage: Stage) -> None:
    with served({"connect_timeout_s": LIMIT_S}, status=503) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url} answered 503\nhint: abut tried for connect_timeout_s=6; "
            "check that the server is running"
        )
        server.status = None
        assert_done(play(stage, openenv)[0])


def test_a_server_is_asked_only_for_the_sessions_that_are_allowed(stage: Stage) -> None:
    with served({"max_sessions": 2}) as (server, openenv):
        play(stage, openenv, 8)
        assert (server.most_active, server.refused) == (2, 0)


# ---- sessions that were used before


def test_sessions_that_were_reaped_while_idle_cost_no_attempt(stage: Stage) -> None:
    with served() as (server, openenv):
        play(stage, openenv, 4)
        server.close_idle()
        for rollout in play(stage, openenv, 4, retries=0):
            assert_done(rollout)


def test_a_session_that_cannot_be_reset_again_is_replaced(stage: Stage) -> None:
    with served(resets=1, max_sessions=1) as (server, openenv):
        for rollout in play(stage, openenv, 4, retries=0):
            assert_done(rollout)
        assert server.opened == 4
        assert server.most_active == 1


def test_a_first_reset_that_fails_is_a_failure(stage: Stage) -> None:
    with served(resets=0) as (server, openenv):
        assert failed(stage, openenv) == (
            f"EnvError: {server.url} answered reset with EXECUTION_ERROR: reset only once"
        )


# ---- from thread to thread


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was handed from one thread to another one, in order."""
    seen: list[str] = []

    def counted(owner: Any, method: str, counts: Any = lambda *_: True) -> None:
        original = getattr(owner, method)

        def count(self: Any, *args: Any, **kwargs: Any) -> Any:
            if counts(*args):
                seen.append(f"{threading.current_thread().name}: {owner.__name__}.{method}")
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, count)

    monkeypatch.setattr("abut.concurrency.loop.uvloop", None)  # whose loop cannot be counted
    counted(CallQueue, "ask")
    counted(CallQueue, "submit")
    counted(Mailbox, "put")
    # A mailbox wakes its loop once for all that is there: what lies in it has been counted.
    empty = Mailbox._empty
    counted(
        asyncio.BaseEventLoop,
        "call_soon_threadsafe",
        lambda callback, *_: getattr(callback, "__func__", None) is not empty,
    )
    return seen


def crossings_of_replies(
    stage: Stage, openenv: OpenEnv, crossings: list[str], pool: Any = None
) -> list[int]:
    """How many there were between each sample and the next one, which needs the reply."""
    seen: list[int] = []

    def script(request: Any) -> Any:
        seen.append(len(crossings))
        return stage.says()(request)

    (rollout,) = play(stage, pool or openenv, script=script)
    assert_done(rollout)
    return [after - before for before, after in pairwise(seen)]


def test_a_reply_crosses_between_threads_twice(stage: Stage, crossings: list[str]) -> None:
    """From the loop that waits to the loop of the sockets, and back."""
    with served() as (_, openenv):
        play(stage, openenv)  # from here on the processor has seen such replies
        assert crossings_of_replies(stage, openenv, crossings) == [2, 2], crossings


class Wrapped:
    """The user's environment around one that was lent: passes on all that it does not have."""

    def __init__(self, lent: Any, threads: set[str]) -> None:
        self.lent = lent
        self.threads = threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lent, name)

    async def reset(self, seed: str) -> Any:
        return self, (await self.lent.reset(seed))[1]

    async def step(self, action: str) -> Any:
        self.threads.add(threading.current_thread().name)
        return self, (await self.lent.step(action))[1]


def test_what_wraps_a_lent_environment_is_not_played_on_the_loop_of_the_sockets(
    stage: Stage, crossings: list[str]
) -> None:
    class Wrapping:
        async def lend(self, task: RolloutTask) -> Any:
            return Wrapped(await openenv.lend(task), threads)

    threads: set[str] = set()
    with served() as (_, openenv):
        play(stage, openenv)
        assert crossings_of_replies(stage, openenv, crossings, Wrapping()) == [4, 4], crossings
    assert threads == {"abut-env-loop"}


# ---- what ends early


def test_sessions_come_back_from_a_batch_that_was_stopped(stage: Stage) -> None:
    with served(max_sessions=2, faults=["drop"]) as (server, openenv):
        with pytest.raises(RolloutError):
            play(stage, openenv, 16, retries=0, on_failure="raise")
        for rollout in play(stage, openenv, 4, retries=0):
            assert_done(rollout)
        assert server.most_active == 2


def test_nobody_keeps_the_session_of_a_cancelled_wait() -> None:
    async def lend(openenv: OpenEnv, cancel_after_s: float | None = None) -> None:
        task = asyncio.ensure_future(openenv.lend(RolloutTask(0, "r", openenv, [], "", 0)))
        if cancel_after_s is not None:
            await asyncio.sleep(cancel_after_s)
            task.cancel()
        with suppress(asyncio.CancelledError):
            (await task).close()

    for reuse_sessions in (True, False):
        given = {"reuse_sessions": reuse_sessions}
        with served(given, max_sessions=1, constructor_s=0.01) as (server, openenv):
            for i in range(30):
                asyncio.run(lend(openenv, i / 1000))
            asyncio.run(asyncio.wait_for(lend(openenv), 20))
            assert server.most_active == 1


def test_a_session_that_comes_when_nobody_waits_any_more_goes_back() -> None:
    with served(max_sessions=1) as (_, openenv):
        context = openenv._context

        async def no_kwargs() -> dict[str, Any]:
            return {}

        async def give_back_then_open() -> None:
            episode = OpenEnvEpisode(context, no_kwargs, group=0)
            await context.loop.call(episode.give_back)
            await context.loop.call(episode.open)
            await asyncio.wait_for(openenv.lend(RolloutTask(0, "r", openenv, [], "", 0)), 20)

        asyncio.run(give_back_then_open())


def test_a_server_whose_state_raises_plays(stage: Stage) -> None:
    with served(state_error="EXECUTION_ERROR") as (_, openenv):
        assert_done(play(stage, openenv, retries=0)[0])


def test_closing_ends_all_sessions_and_lends_no_more(stage: Stage) -> None:
    with served(max_sessions=3) as (server, openenv):
        play(stage, openenv, 3)
        assert server.active
        openenv.close()
        assert eventually(lambda: not server.active)
        assert failed(stage, openenv) == ("EnvError: this OpenEnv is closed\nhint: make a new one")


def test_closing_in_the_midst_of_an_episode_is_its_end(stage: Stage) -> None:
    def close() -> None:
        if eventually(lambda: "step" in server.asked(0)):
            openenv.close()

    with served(step_s=600) as (server, openenv):
        closing = threading.Thread(target=close)
        closing.start()
        error = failed(stage, openenv)
        closing.join()
        assert error in (
            "EnvError: the OpenEnv was closed during an episode",
            f"EnvError: {server.url} closed the socket with code 1000 before it answered step",
        )


def test_what_nobody_holds_any_more_is_closed(stage: Stage) -> None:
    with WireServer() as server:
        openenv = OpenEnv(server.url)
        play(stage, openenv)
        assert server.active
        del openenv
        gc.collect()
        assert eventually(lambda: not server.active)


# ---- what reset is sent


def test_the_rollouts_of_a_group_get_one_seed_and_one_task(stage: Stage) -> None:
    tasks = [{"level": 1}, {"level": 2}, {"level": 3}]
    with served({"tasks": tasks}) as (server, openenv):
        play(stage, openenv, groups=[0, 0, 1, 1, 2, 3])
        sent = {(data["seed"], data["level"]) for data in server.resets_sent()}
        assert sent == {(100, 1), (101, 2), (102, 3), (103, 1)}


def test_reset_is_sent_what_the_columns_give(stage: Stage) -> None:
    given = {"reset": lambda columns: {"word": columns["word"], "seed": 3}}
    with served(given) as (server, openenv):
        play(stage, openenv, columns={"word": "w", "more": 1})
        assert server.resets_sent() == [{"seed": 3, "word": "w"}]
    with served({"reset": {"level": 4}}) as (server, openenv):
        play(stage, openenv)
        assert server.resets_sent() == [{"seed": 100, "level": 4}]


@pytest.mark.parametrize("follows", [True, False])
def test_a_group_that_begins_differently_is_warned_of_once(
    stage: Stage, caplog: pytest.LogCaptureFixture, follows: bool
) -> None:
    count = iter(range(100))

    def first(kwargs: Any) -> str:
        return f"seed {kwargs['seed']}" if follows else f"game {next(count)}"

    caplog.set_level(logging.WARNING, logger="abut")
    with served(first=first, max_sessions=1) as (_, openenv):
        play(stage, openenv, groups=[0, 0, 0])
    warning = (
        "the rollouts of one group began with different observations, 'game 0' and 'game 1', "
        "so the group's rewards compare different tasks: the environment ignores the seed\nhint: "
        "choose the task with reset= or tasks="
    )
    assert caplog.messages == ([] if follows else [warning])


# ---- pools in general


class Lending:
    """A pool of one environment."""

    def __init__(self, made: Any = None, error: Exception | None = None) -> None:
        self.made = made
        self.error = error

    async def lend(self, task: RolloutTask) -> Any:
        if self.error is not None:
            raise self.error
        return self.made


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        (Lending(error=OSError("no port")), "Lending.lend raised OSError: no port"),
        (Lending(error=EnvError("none left")), "none left"),
        (
            Lending(),
            "Lending.lend returned NoneType, which has no method 'reset'\n"
            "hint: an Env has reset(seed) and step(action), and attributes reward and alive",
        ),
    ],
)
def test_a_pool_that_lends_nothing_costs_the_rollout(
    stage: Stage, pool: Lending, text: str
) -> None:
    played = stage.play(pool, Talk, retries=0)
    assert [rollout.error for rollout in played.rollouts] == [f"EnvError: {text}", None]


def test_a_pool_may_lend_synchronous_environments(stage: Stage) -> None:
    returned: list[str] = []
    lent = env(close=lambda self: returned.append("back"))()
    assert_done(stage.play(Lending(lent)).one)
    assert returned == ["back"]


# ---- settings


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"history": "all"}, "OpenEnv(history='all'): must be 'auto', 'repeated' or 'new'"),
        ({"on_invalid": "retry"}, "OpenEnv(on_invalid='retry'): must be 'tell' or 'end'"),
        ({"on_error": "retry"}, "OpenEnv(on_error='retry'): must be 'tell' or 'fail'"),
        ({"max_sessions": 0}, "OpenEnv(max_sessions=0): must be at least 1, or None"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        OpenEnv("http://127.0.0.1:1", **given)
    assert str(raised.value) == text
