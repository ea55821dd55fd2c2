"""Rollouts of agents that do what a test says: outcomes, attempts, deadlines, what is left over."""

import asyncio
import json
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from abut.errors import RolloutError
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym, run_request
from abut.nemo_gym.run_result import Outcome
from abut.rollout.rollout import Rollout
from tests.kit.servers.fake_gym import Answer, FakeGym, Policy, Run, carrier, one_turn, verified
from tests.kit.stage.agents import check_tree, play_agents
from tests.kit.stage.rollouts import LIMIT_S, Recording

USER = [{"role": "user", "content": "hi"}]


class Scene:
    """Rows of agents, played in one batch.

    Attributes:
        gym: the fake one, which keeps what `/run` got.
        sampler: has what was sampled.
    """

    def __init__(self, stage: Any, **agents: Run) -> None:
        self.stage, self.agents = stage, agents
        self.sampler = Recording(stage.says("yes"))
        self.gym = FakeGym(agents)

    def play(
        self,
        rows: Sequence[str] | None = None,
        *,
        gym: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[Rollout]:
        """Play a row of each agent that is named; of all where none is."""
        gateway = Gateway()
        gateway.start()
        self.gym.base_url, self.gym.key = gateway.base_url, gateway.key
        with self.gym:
            agent = NemoGym(self.gym.url, check=None, **gym or {})
            named = list(self.agents) if rows is None else list(rows)
            try:
                played = play_agents(
                    self.stage,
                    *[agent] * len(named),
                    sampler=self.sampler,
                    gateway=gateway,
                    columns=[{"nemo_gym_row": a_row(name)} for name in named],
                    **{"retries": 0, "max_failed_frac": 1.0} | options,
                )
            finally:
                gateway.stop()
        return played.rollouts

    def ids(self) -> list[str]:
        """The rollout ids that `/run` got."""
        return [body["_ng_rollout_id"] for body in self.gym.bodies]


def a_row(agent: str) -> str:
    return json.dumps({"responses_create_params": {"input": "hi"}, "agent_ref": {"name": agent}})


def answers(*said: Answer) -> Run:
    """Asks once, then answers what stands there: the last one for ever."""
    left = list(said)

    async def run(policy: Policy, body: dict[str, Any]) -> Answer:
        await policy.ask(USER)
        return left.pop(0) if len(left) > 1 else left[0]

    return run


def outcomes(rollouts: Sequence[Rollout]) -> list[Any]:
    return [rollout.extras["nemo_gym_outcome"] for rollout in rollouts]


def test_a_rollout_is_the_gateways_and_its_reward_the_agents(stage: Any) -> None:
    scene = Scene(stage, a=one_turn)
    (rollout,) = scene.play()
    assert (rollout.error, rollout.reward, len(rollout.turns)) == (None, 1.0, 1)
    assert outcomes([rollout]) == ["ok"]
    assert rollout.turns[0].reward is None
    check_tree(rollout, scene.sampler.calls)


def test_tokens_of_the_reply_are_compared_and_never_trained(stage: Any) -> None:
    async def lies(policy: Policy, body: dict[str, Any]) -> Answer:
        message = await policy.ask(USER)
        message["generation_token_ids"] = [1, 2, 3]
        return verified(policy)

    async def silent(policy: Policy, body: dict[str, Any]) -> Answer:
        await policy.ask(USER)
        return 200, {"reward": 0.5, "response": {"output": []}}

    scene = Scene(stage, lies=lies, silent=silent)
    drift, quiet = scene.play()
    assert outcomes([drift, quiet]) == ["drift", "ok"]
    assert (drift.reward, quiet.reward) == (None, 0.5)
    for rollout in (drift, quiet):
        own = [c for c in scene.sampler.calls if c[0].rollout_id.startswith(rollout.rollout_id)]
        check_tree(rollout, own)


def test_masked_and_failed_rollouts_have_no_reward_and_no_zero(stage: Any) -> None:
    masked = answers((200, {"reward": 0.0, "mask_sample": True}))
    failed = answers((200, {"_ng_failure_class": "x", "_ng_failure_terminal": True}))
    scene = Scene(stage, masked=masked, failed=failed, broken=answers((500, "boom")))
    rollouts = scene.play()
    assert outcomes(rollouts) == ["masked", "failed", "failed"]
    assert [rollout.reward for rollout in rollouts] == [None, None, None]
    assert [rollout.failed for rollout in rollouts] == [False, True, True]
    assert rollouts[0].columns is not None


@pytest.mark.parametrize(
    ("more", "reward"),
    [
        ({"instance_config": {"mask_sample": True}}, None),
        ({"mask_sample": False, "instance_config": {"mask_sample": True}}, None),
        ({"mask_sample": True, "instance_config": {"mask_sample": False}}, None),
        ({"mask_sample": False, "instance_config": {"mask_sample": False}}, 0.0),
        ({"instance_config": None}, 0.0),
    ],
)
def test_a_rollout_is_masked_wherever_its_reply_says_so(
    stage: Any, more: dict[str, Any], reward: float | None
) -> None:
    (rollout,) = Scene(stage, a=answers((200, {"reward": 0.0, **more}))).play()
    assert outcomes([rollout]) == ["masked" if reward is None else "ok"]
    assert rollout.reward == reward
    assert rollout.measured is (reward is not None)


def test_on_failure_says_what_a_failed_rollout_has(stage: Any) -> None:
    """A rollout that was masked has not failed."""
    masked = answers((200, {"reward": 1.0, "mask_sample": True}))
    scene = Scene(stage, a=answers((500, "boom")), b=masked)
    failed, without = scene.play(on_failure="zero")
    assert (failed.reward, without.reward) == (0.0, None)


def test_components_are_columns_and_metrics_of_their_agent(stage: Any) -> None:
    parts = {"reward": 1.5, "reward_components": {"format": 1.0, "length": 0.5}}
    scene = Scene(stage, a=answers((200, parts)), b=answers((500, "")))
    scored, failed = scene.play()
    assert scored.extras == {
        "nemo_gym_outcome": "ok",
        "reward_format": 1.0,
        "reward_length": 0.5,
        "nemo_gym/a/reward": 1.5,
        "nemo_gym/a/reward/format": 1.0,
        "nemo_gym/a/reward/length": 0.5,
        "nemo_gym/a/turns": 1.0,
        "nemo_gym/a/seconds": scored.seconds,
        "nemo_gym/a/branched_frac": 0.0,
        **{f"nemo_gym/a/{one}_frac": float(one == "ok") for one in Outcome},
    }
    assert failed.extras["nemo_gym/b/failed_frac"] == 1.0
    assert failed.extras["nemo_gym/b/reward"] is None
    assert "reward_format" not in failed.extras


def test_a_5xx_is_tried_again_under_a_new_id(stage: Any) -> None:
    scene = Scene(stage, a=answers((500, "boom"), (200, {"reward": 1.0})))
    (rollout,) = scene.play(retries=2)
    assert rollout.error is None
    assert rollout.attempts == 2
    assert scene.ids() == [f"{rollout.rollout_id}.0", f"{rollout.rollout_id}.1"]
    assert "agent a answered with status 500: boom (after 1 calls)" in rollout.attempt_errors[0]
    own = [c for c in scene.sampler.calls if c[0].rollout_id.endswith(".1")]
    check_tree(rollout, own)  # nothing of the first attempt


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429])
def test_a_4xx_never_is(stage: Any, status: int) -> None:
    async def run(policy: Policy, body: dict[str, Any]) -> Answer:
        return status, {"detail": "no"}

    scene = Scene(stage, a=run, b=answers((status, {"detail": "no"})))
    rollouts = scene.play(retries=5)
    assert [rollout.attempts for rollout in rollouts] == [1, 1]
    assert outcomes(rollouts) == ["failed", "failed"]
    assert f"agent a answered with status {status}" in str(rollouts[0].error)


def test_a_terminal_failure_never_is_and_another_one_is(stage: Any) -> None:
    failure = {"_ng_failure_class": "environment_server_failed", "_ng_failure_message": "m"}
    scene = Scene(
        stage,
        terminal=answers((200, failure | {"_ng_failure_terminal": True})),
        other=answers((200, failure | {"_ng_failure_terminal": False})),
    )
    terminal, other = scene.play(retries=2)
    assert (terminal.attempts, other.attempts) == (1, 3)


def test_a_gym_that_was_restarted_is_found_at_its_new_ports(stage: Any) -> None:
    scene = Scene(stage)

    async def run(policy: Policy, body: dict[str, Any]) -> Answer:
        if len(scene.gym.bodies) == 1:
            scene.gym.move()
            return 0, None
        return await one_turn(policy, body)

    scene.agents["a"] = scene.gym.agents["a"] = run
    (rollout,) = scene.play(["a"], retries=1)
    assert (rollout.error, rollout.attempts) == (None, 2)
    assert "cannot be reached" in rollout.attempt_errors[0]


def with_an_agent_at(
    stage: Any, url: str, name: str = "dead", kind: str = "responses_api_agents"
) -> Scene:
    """A Gym that names a server `dead` as well, an agent, which is said to be there."""
    scene = Scene(stage, a=one_turn)
    scene.gym._more_instances.append({"process_name": name, "server_type": kind, "url": ""})
    listed = scene.gym._instances

    async def there(request: Any) -> Any:
        said = json.loads((await listed(request)).text)
        said[-1]["url"] = url
        from aiohttp import web

        return web.json_response(said)

    scene.gym._instances = there  # type: ignore[method-assign]
    return scene


@pytest.mark.parametrize("kind", ["resources_servers", "responses_api_models"])
def test_a_server_behind_an_agent_that_is_gone_is_named_before_the_next_attempt(
    stage: Any, kind: str
) -> None:
    """Gym asks it again without end, so the first attempt takes all the time that it has."""
    name = {"resources_servers": "a_resources", "responses_api_models": "policy_model"}[kind]

    async def hangs(policy: Policy, body: dict[str, Any]) -> Answer:
        await policy.ask(USER)
        await asyncio.Event().wait()
        raise AssertionError

    scene = with_an_agent_at(stage, "http://127.0.0.1:1", name, kind)
    scene.gym.agents["a"] = hangs
    (rollout,) = scene.play(["a"], retries=3, rollout_timeout_s=LIMIT_S)
    assert len(scene.gym.bodies) == 1
    assert (rollout.failed, rollout.attempts) == (True, 2)
    what = {"resources_servers": "resources server", "responses_api_models": "model server"}[kind]
    assert f"agent a of nemo_gym cannot play: its {what} {name} at http://127.0.0.1:1 does not" in (
        str(rollout.error)
    )
    assert "hint: see the log of Gym, which does not restart a server that has ended" in str(
        rollout.error
    )


def test_an_agent_whose_servers_are_there_is_asked_again(stage: Any) -> None:
    """The negative control."""
    scene = Scene(stage, a=answers((500, "boom"), (200, {"reward": 1.0})))
    scene.gym._more_instances.append(
        {"process_name": "a_resources", "server_type": "resources_servers"}
    )
    (rollout,) = scene.play(retries=3)
    assert (rollout.error, rollout.attempts) == (None, 2)


def test_an_agent_that_nobody_listens_for_fails_its_own_rows(stage: Any) -> None:
    scene = with_an_agent_at(stage, "http://127.0.0.1:1")
    good, dead = scene.play(["a", "dead"], retries=1)
    assert outcomes([good, dead]) == ["ok", "failed"]
    assert dead.attempts == 2
    assert "agent dead of nemo_gym at http://127.0.0.1:1 cannot be reached" in str(dead.error)


@pytest.mark.skipif(sys.platform != "linux", reason="a full backlog refuses connections elsewhere")
def test_an_agent_on_a_machine_that_is_silent_fails_its_own_rows(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent there goes nowhere, as to a port whose backlog is full."""
    monkeypatch.setattr(run_request, "_CONNECT_S", 0.2)
    with socket.socket() as silent, ExitStack() as stack:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(silent.getsockname())
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        good, dead = with_an_agent_at(stage, url).play(["a", "dead"], retries=1)
    assert outcomes([good, dead]) == ["ok", "failed"]
    said = f"agent dead of nemo_gym at {url} cannot be reached: ConnectionTimeoutError"
    assert dead.attempts == 2
    assert said in str(dead.error)


def test_connections_notice_a_machine_that_is_gone() -> None:
    """What comes of it takes a machine to be cut off: `test_nodes.py` does that."""
    with run_request._watched((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())) as watched:
        assert watched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            idle_s = watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            unheard_ms = watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert idle_s < unheard_ms / 1000 < 60


def test_the_head_may_go_when_its_agents_are_known(stage: Any) -> None:
    scene = Scene(stage)

    async def run(policy: Policy, body: dict[str, Any]) -> Answer:
        scene.gym.head_is_gone = True
        return await one_turn(policy, body)

    scene.gym.agents["a"] = run
    rollouts = scene.play(["a"] * 4)
    assert outcomes(rollouts) == ["ok"] * 4


def test_a_batch_has_an_end_though_agents_hang(stage: Any) -> None:
    async def hangs(policy: Policy, body: dict[str, Any]) -> Answer:
        await policy.ask(USER)
        await asyncio.Event().wait()
        raise AssertionError

    scene = Scene(stage, a=one_turn, b=hangs)
    rollouts = scene.play(
        ["a", "b", "b"], gym={"batch_timeout_s": LIMIT_S}, max_rollouts=2, retries=3
    )
    assert outcomes(rollouts) == ["ok", "failed", "failed"]
    said = f" did not finish within batch_timeout_s={LIMIT_S:g}"
    assert all("agent b of nemo_gym at http" in str(rollout.error) for rollout in rollouts[1:])
    assert all(said in str(rollout.error) for rollout in rollouts[1:])
    assert [rollout.attempts for rollout in rollouts] == [1, 1, 1]


def test_a_rollout_that_hangs_ends_by_itself_and_what_it_left_is_refused(stage: Any) -> None:
    """0.4.0 goes on sampling when the client of `/run` has left."""
    refused: list[Any] = []
    asks, done = asyncio.Event(), asyncio.Event()

    async def orphan(policy: Policy) -> None:
        said = [*USER, await policy.ask(USER), *USER]
        asks.set()
        status = 200
        while status == 200:
            status, body = await policy.post({"model": "policy", "messages": said})
        refused.append((status, body["error"]["code"]))
        done.set()

    async def run(policy: Policy, body: dict[str, Any]) -> Answer:
        if body["_ng_rollout_id"].endswith(".0"):
            leftover.append(asyncio.get_running_loop().create_task(orphan(policy)))
            await asks.wait()
            return 500, "gone"
        await done.wait()  # the second attempt plays when the first one has been told
        return await one_turn(policy, body)

    leftover: list[Any] = []
    scene = Scene(stage, a=run)
    (rollout,) = scene.play(retries=1)
    assert outcomes([rollout]) == ["ok"]
    assert refused == [(400, "rollout_over")]
    own = [c for c in scene.sampler.calls if c[0].rollout_id.endswith(".1")]
    check_tree(rollout, own)


def test_a_deadline_ends_a_rollout_with_what_there_is(stage: Any) -> None:
    async def asks_on(policy: Policy, body: dict[str, Any]) -> Answer:
        said: list[Any] = list(USER)
        while True:
            status, answer = await policy.post(
                {"model": "policy", "messages": said, "return_token_ids": True}
            )
            if status != 200:
                incomplete = {"reason": "max_output_tokens"}
                output = [carrier(message) for message in policy.answers]
                response = {"output": output, "incomplete_details": incomplete}
                return 200, {"reward": 0.25, "response": response}
            policy.answers.append(answer["choices"][0]["message"])
            said += [policy.answers[-1], *USER]

    scene = Scene(stage, a=asks_on)
    (rollout,) = scene.play(completion=200)
    assert outcomes([rollout]) == ["truncated"]
    assert rollout.reward == 0.25
    assert rollout.stop_reason == "max_completion_tokens"
    check_tree(rollout, scene.sampler.calls)


def test_a_row_that_lacks_a_field_fails_also_where_a_limit_ended_its_rollout(stage: Any) -> None:
    async def asks_on(policy: Policy, body: dict[str, Any]) -> Answer:
        said: list[Any] = list(USER)
        while True:
            status, answer = await policy.post({"model": "policy", "messages": said})
            if status != 200:
                missing = [{"loc": ["body", "expected"], "msg": "Field required"}]
                return 500, json.dumps({"detail": missing})
            said += [answer["choices"][0]["message"], *USER]

    (rollout,) = Scene(stage, a=asks_on).play(completion=200, retries=3)
    assert outcomes([rollout]) == ["failed"]
    assert (rollout.failed, rollout.attempts, rollout.reward) == (True, 1, None)
    assert "Field required" in (rollout.error or "")


def test_a_rollout_that_a_limit_ended_stays_measured_without_a_reply(stage: Any) -> None:
    """A reward function may score it: the tokens are the policy's, and the limit is ours."""

    async def raises(policy: Policy, body: dict[str, Any]) -> Answer:
        said: list[Any] = list(USER)
        while True:
            status, answer = await policy.post({"model": "policy", "messages": said})
            if status != 200:
                return 500, "no answer to parse"
            said += [answer["choices"][0]["message"], *USER]

    scene = Scene(stage, a=raises)
    (rollout,) = scene.play(completion=200, retries=3)
    assert outcomes([rollout]) == ["truncated"]
    assert (rollout.failed, rollout.attempts, rollout.reward) == (False, 1, None)
    assert rollout.stop_reason == "max_completion_tokens"
    assert rollout.measured is True
    check_tree(rollout, scene.sampler.calls)


def test_a_prompt_that_is_too_long_is_a_failure_and_no_zero(stage: Any) -> None:
    """Gym answers 200 with a reward of 0.0 and `mask_sample` false."""

    async def refused(policy: Policy, body: dict[str, Any]) -> Answer:
        status, _ = await policy.post(
            {"model": "policy", "messages": [{"role": "user", "content": "long " * 500}]}
        )
        assert status == 400
        response = {"output": [], "incomplete_details": {"reason": "max_output_tokens"}}
        return 200, {"reward": 0.0, "mask_sample": False, "response": response}

    scene = Scene(stage, a=refused)
    (rollout,) = scene.play(context=300, retries=3)
    assert outcomes([rollout]) == ["failed"]
    assert (rollout.reward, rollout.attempts) == (None, 1)
    assert "was refused because of max_context_tokens: the prompt alone is too long" in str(
        rollout.error
    )


def test_a_model_server_that_asks_another_policy_is_named(stage: Any) -> None:
    async def elsewhere(policy: Policy, body: dict[str, Any]) -> Answer:
        return 200, {"reward": 1.0}

    scene = Scene(stage, a=elsewhere)
    (rollout,) = scene.play(retries=3)
    assert rollout.attempts == 1
    assert "agent a answered, but the gateway received no call from it" in str(rollout.error)
    assert "set policy_base_url in Gym's configuration to the gateway's" in str(rollout.error)


def test_64_rollouts_of_two_agents_are_kept_apart(stage: Any) -> None:
    async def three(policy: Policy, body: dict[str, Any]) -> Answer:
        said: list[Any] = [{"role": "user", "content": policy.rollout_id}]
        for _ in range(3):
            said += [await policy.ask(said), {"role": "user", "content": "and?"}]
        return verified(policy, float(policy.rollout_id.split("-")[0][1:]))

    scene = Scene(stage, a=three, b=one_turn)
    rollouts = scene.play(["a", "b"] * 32)
    assert Counter(outcomes(rollouts)) == {"ok": 64}
    for index, rollout in enumerate(rollouts):
        own = [c for c in scene.sampler.calls if c[0].rollout_id == f"{rollout.rollout_id}.0"]
        assert len(own) == (3 if index % 2 == 0 else 1)
        assert rollout.reward == (float(index) if index % 2 == 0 else 1.0)
        check_tree(rollout, own)


def test_a_row_of_an_agent_that_is_gone_ends_the_batch(stage: Any) -> None:
    scene = Scene(stage, a=one_turn)
    with pytest.raises(ValueError, match="nemo_gym: there is no agent 'b'; the agents are: a"):
        scene.play(["b"])


def test_no_head_ends_the_batch(stage: Any) -> None:
    with pytest.raises(Exception, match="no NeMo Gym head answers at http://127"):
        play_agents(stage, NemoGym("http://127.0.0.1:1", check=None))


def test_too_many_failures_name_what_failed(stage: Any) -> None:
    scene = Scene(stage, a=answers((500, "the sandbox is full")))
    with pytest.raises(
        RolloutError, match="2 x EnvError: agent a answered with status 500: the sandbox"
    ):
        scene.play(["a", "a"], max_failed_frac=0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_timeout_s": 0}, "batch_timeout_s=0: must be more than 0, or None"),
        ({"check": "some"}, "check='some': must be 'all', 'config' or None"),
    ],
)
def test_arguments_are_checked(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NemoGym("http://127.0.0.1:11000", **given)
    with pytest.raises(ValueError, match="an address starts with http://"):
        NemoGym("127.0.0.1:11000")
