"""A gateway without a trainer: rollouts that clients open, and who ends them."""

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from abut.gateway.server import standalone
from abut.gateway.server.gateway import Gateway
from abut.records.read import read_records
from abut.rollout.rollout import Rollout
from tests.kit.servers.fake_server import FakeServer
from tests.kit.stage.agents import LOOKUP, a_call, ask, check_tree, post, says, serving, user
from tests.kit.stage.rollouts import Recording, Stage, eventually, own_threads


class Kept:
    """A recorder that keeps."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        self.rollouts.append(rollout)


def test_the_first_request_opens_a_rollout_and_its_end_returns_it(
    stage: Stage, hf_tokenizer: Any
) -> None:
    sampler, kept = says(stage, a_call(a="x"), "It is x."), Kept()
    with serving(sampler, hf_tokenizer, kept) as gateway:
        endpoint = gateway.endpoint("game-1")
        assert endpoint.base_url.endswith("/r/game-1/v1")
        messages = [user("What?")]
        message, _ = ask(gateway, messages, "game-1", tools=[LOOKUP])
        call = message["tool_calls"][0]
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "x"}]
        ask(gateway, messages, "game-1", tools=[LOOKUP])
        assert endpoint.calls == 2
        with pytest.raises(RuntimeError, match="in the gateway's process"):
            _ = pickle.loads(pickle.dumps(endpoint)).calls
        rollout = gateway.end("game-1", 0.5, extras={"moves": 2})
        assert (rollout.reward, rollout.extras, len(rollout.turns)) == (0.5, {"moves": 2}, 2)
        check_tree(rollout, sampler.calls)
        assert kept.rollouts == [rollout]
        status, answer, _ = post(
            f"{endpoint.base_url}/chat/completions", endpoint.api_key, {"messages": messages}
        )
        assert (status, answer["error"]["code"]) == (400, "rollout_over")
        assert answer["error"]["message"] == "this rollout is over"
        with pytest.raises(ValueError, match="this rollout is over"):
            gateway.end("game-1")
        with pytest.raises(ValueError, match="the gateway has no rollout 'game-2'"):
            gateway.end("game-2")
    assert "abut-gateway" not in own_threads()


def test_requests_without_a_name_are_told_apart_by_their_history(
    stage: Stage, hf_tokenizer: Any
) -> None:
    """Four agents with one question at once: each goes on with its own rollout."""
    sampler, kept = says(stage, "one", "two", "three"), Kept()
    with serving(sampler, hf_tokenizer, kept) as gateway:
        talks: list[list[Any]] = [[user("go")] for _ in range(4)]
        names: list[set[str]] = [set() for _ in range(4)]
        for turn in range(3):
            for talk, name in zip(talks, names, strict=True):
                message, id_ = ask(gateway, talk)
                talk += [message, user(f"and {turn}")]
                name.add(id_)
        assert [len(name) for name in names] == [1] * 4
        assert len(set.union(*names)) == 4
        for number, name in enumerate(names):
            gateway.end(next(iter(name)), float(number))
    assert [rollout.reward for rollout in kept.rollouts] == [0.0, 1.0, 2.0, 3.0]
    for rollout in kept.rollouts:
        assert (len(rollout.turns), rollout.branches) == (3, [])
        check_tree(rollout, [c for c in sampler.calls if c[0].rollout_id == rollout.rollout_id])


@pytest.mark.parametrize("attempt", range(10))
def test_equal_agents_at_once_are_never_mixed_up(
    stage: Stage, hf_tokenizer: Any, attempt: int
) -> None:
    """Sixteen agents with one question, whose turns begin together: sixteen straight rollouts."""
    agents, turns = 16, 3
    sampler, kept = says(stage, "one", "two", "three"), Kept()
    with serving(sampler, hf_tokenizer, kept) as gateway:
        at_once = threading.Barrier(agents)

        def play(number: int) -> None:
            talk: list[Any] = [user("go")]
            for turn in range(turns):
                at_once.wait(60)
                message, _ = ask(gateway, talk)
                talk += [message, user(f"and {turn}")]

        with ThreadPoolExecutor(agents) as pool:
            list(pool.map(play, range(agents)))
    assert sorted(len(rollout.turns) for rollout in kept.rollouts) == [turns] * agents
    assert [rollout.branches for rollout in kept.rollouts] == [[]] * agents


def test_what_is_live_when_the_gateway_stops_is_recorded(
    stage: Stage, hf_tokenizer: Any, tmp_path: Any
) -> None:
    path = tmp_path / "rollouts.jsonl"
    with serving(says(stage), hf_tokenizer, path) as gateway:
        ask(gateway, [user("a")], "a")
        ask(gateway, [user("b")], "b")
        gateway.end("a", 1)
    records = {record["rollout_id"]: record for record in read_records([path])}
    assert {id_: record["reward"] for id_, record in records.items()} == {"a": 1.0, "b": None}
    assert len({record["run_id"] for record in records.values()}) == 1
    assert all(record["turns"] for record in records.values())


def test_a_rollout_that_nobody_asks_any_more_ends(stage: Stage, hf_tokenizer: Any) -> None:
    kept = Kept()
    with serving(says(stage), hf_tokenizer, kept, idle_s=0.05) as gateway:
        ask(gateway, [user("a")], "a")
        assert eventually(lambda: len(kept.rollouts) == 1)
        assert (kept.rollouts[0].rollout_id, kept.rollouts[0].reward) == ("a", None)


@pytest.mark.parametrize("form", ["rollouts.jsonl", "rollouts"])
def test_a_reward_that_comes_after_an_idle_end_is_recorded(
    stage: Stage, hf_tokenizer: Any, tmp_path: Any, form: str
) -> None:
    path = tmp_path / form
    with serving(says(stage), hf_tokenizer, path, idle_s=0.05) as gateway:
        ask(gateway, [user("a")], "a")
        serves = gateway.registry.standalone
        assert serves is not None
        assert eventually(lambda: "a" in serves._idle)
        url = gateway.endpoint("a").base_url.removesuffix("/v1")
        body = {"messages": [user("a")]}
        status, answer, _ = post(f"{url}/v1/chat/completions", gateway.key, body)
        assert (status, answer["error"]["code"]) == (400, "rollout_over")
        assert answer["error"]["message"] == "this rollout is over: no request arrived for 0.05 s"
        status, answer, _ = post(f"{url}/end", gateway.key, {"reward": 0.75})
        assert (status, answer["reward"], answer["turns"]) == (200, 0.75, 1)
        status, answer, _ = post(f"{url}/end", gateway.key, {"reward": 1.0})
        assert (status, answer["error"]["message"]) == (400, "this rollout is over")
    (record,) = read_records([path])
    assert (record["rollout_id"], record["rewards"]) == ("a", {"reward": 0.75})


def test_after_an_hour_a_reward_for_an_idle_rollout_is_refused(
    stage: Stage, hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(says(stage), hf_tokenizer, Kept(), idle_s=0.05) as gateway:
        for rollout in ("a", "b"):
            ask(gateway, [user("a")], rollout)
        serves = gateway.registry.standalone
        assert serves is not None
        assert eventually(lambda: "a" in serves._idle and "b" in serves._idle)
        url = gateway.endpoint("a").base_url.removesuffix("/v1")
        status, answer, _ = post(f"{url}/end", gateway.key, {"reward": 0.75})
        assert (status, "no method write_scores" in answer["error"]["message"]) == (400, True)
        monkeypatch.setattr(standalone, "KEPT_S", -1.0)
        status, answer, _ = post(f"{url}/end", gateway.key, {"reward": 0.75})
        assert (status, answer["error"]["message"]) == (400, "this rollout is over")


def test_it_is_ended_over_http_too(stage: Stage, hf_tokenizer: Any) -> None:
    kept = Kept()
    with serving(says(stage), hf_tokenizer, kept) as gateway:
        ask(gateway, [user("a")], "a")
        url = gateway.endpoint("a").base_url.removesuffix("/v1") + "/end"
        for body, said in (
            ({"reward": "high"}, "must be a finite number"),
            ({"reward": True}, "must be a finite number"),
            ({"reward": float("nan")}, "must be a finite number"),
            ({"reward": 10**400}, "must be a finite number"),
            ({"extras": [1]}, "extras must be an object"),
        ):
            status, answer, _ = post(url, gateway.key, body)
            assert status == 400
            assert said in answer["error"]["message"]
        assert post(url, "no key at all that fits", {"reward": 1})[0] == 400
        assert kept.rollouts == []
        status, answer, _ = post(url, gateway.key, {"reward": 0.25})
        assert (status, answer["rollout_id"], answer["reward"], answer["turns"]) == (
            200,
            "a",
            0.25,
            1,
        )
        assert post(url, gateway.key, {"reward": 1})[0] == 400
    assert [rollout.reward for rollout in kept.rollouts] == [0.25]


def test_the_client_s_settings_hold(hf_tokenizer: Any) -> None:
    from abut.samplers.vllm import VLLMServerSampler

    with FakeServer(models=[{"id": "tiny", "max_model_len": 512}]) as server:
        sampler = VLLMServerSampler(server.url, temperature=0.7)
        with Gateway(sampler=sampler, tokenizer=hf_tokenizer) as gateway:
            ask(gateway, [user("a")], "a", temperature=0, seed=5, top_p=0.5, max_tokens=3)
            ask(gateway, [user("a")], "b", presence_penalty=1.5)
            url = f"{gateway.base_url}/chat/completions"
            status, answer, _ = post(url, gateway.key, {"messages": [user("a")], "temperature": -1})
            assert (status, answer["error"]["param"]) == (400, "temperature")
            assert "temperature=-1: must be at least 0" in answer["error"]["message"]
    first, second = server.requests
    asked = ("temperature", "seed", "top_p", "max_tokens", "presence_penalty")
    assert [first[name] for name in asked] == [0, 5, 0.5, 3, 0.0]
    assert [second[name] for name in ("temperature", "presence_penalty")] == [0.7, 1.5]


def test_the_sampler_forgets_a_rollout_that_has_ended(hf_tokenizer: Any) -> None:
    """Else a server's sampler holds its place and the names of its pictures until it stops."""
    from abut.samplers.vllm import VLLMServerSampler

    forgotten: list[str] = []

    class Forgets(VLLMServerSampler):
        def forget(self, rollout_id: str) -> None:
            super().forget(rollout_id)
            forgotten.append(rollout_id)

    with FakeServer(models=[{"id": "tiny", "max_model_len": 512}]) as server:
        with Gateway(sampler=Forgets(server.url), tokenizer=hf_tokenizer) as gateway:
            for name in ("a", "b"):
                ask(gateway, [user("a")], name, temperature=0)
            assert forgotten == []
            gateway.end("a", 1.0)
            assert forgotten == ["a"]
        assert forgotten == ["a", "b"], "it stops"


def test_a_sampler_that_fails_ends_the_rollout_and_no_other(
    stage: Stage, hf_tokenizer: Any
) -> None:
    class Failing(Recording):
        async def sample(self, request: Any) -> Any:
            if request.rollout_id == "b":
                raise OSError("the server burns")
            return await super().sample(request)

    kept = Kept()
    with serving(Failing(stage.says()), hf_tokenizer, kept) as gateway:
        ask(gateway, [user("a")], "a")
        endpoint = gateway.endpoint("b")
        url = f"{endpoint.base_url}/chat/completions"
        status, answer, _ = post(url, endpoint.api_key, {"messages": [user("b")]})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        ask(gateway, [user("c")], "c")
        gateway.end("b", 1.0)
    failed = [rollout for rollout in kept.rollouts if rollout.failed]
    assert [(rollout.rollout_id, rollout.reward) for rollout in failed] == [("b", None)]
    assert failed[0].error == "OSError: the server burns"


def test_what_is_being_sampled_is_answered_before_the_gateway_stops(
    stage: Stage, hf_tokenizer: Any
) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    class Slow(Recording):
        async def sample(self, request: Any) -> Any:
            loops.append(asyncio.get_running_loop())
            asked.set()
            await goes_on.wait()
            return await super().sample(request)

    gateway, answers = serving(Slow(stage.says()), hf_tokenizer), []
    with gateway:
        client = threading.Thread(
            target=lambda: answers.append(ask(gateway, [user("a")], "a")[0]["content"])
        )
        client.start()
        assert eventually(asked.is_set)
        loops[0].call_soon_threadsafe(loops[0].call_later, 0.2, goes_on.set)
    client.join(60)
    assert answers == ["yes"]


def test_a_rollout_whose_calls_were_all_refused_is_recorded_with_the_reason(
    stage: Stage, hf_tokenizer: Any
) -> None:
    kept = Kept()
    with serving(says(stage), hf_tokenizer, kept) as gateway:
        url = f"{gateway.endpoint('a').base_url}/chat/completions"
        key = gateway.endpoint("a").api_key
        typed = {"messages": [user("a")], "response_format": {"type": "json_object"}}
        assert post(url, key, {"messages": 7})[0] == 400
        assert post(url, "the key of somebody else", typed)[0] == 400
        assert post(url, key, typed)[0] == 400
        assert post(url, "the key of somebody else", {})[0] == 400
        gateway.end("a")
        assert post(url, key, typed)[0] == 400  # which does not open it again
    (rollout,) = kept.rollouts
    assert rollout.failed
    assert (rollout.error or "").startswith(
        "no call was answered; the last one was refused: response_format is not enforced"
    )


def test_settings_that_do_not_fit_are_refused(stage: Stage, hf_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="has no sampler"), Gateway():
        pass
    with pytest.raises(ValueError, match="without a trainer"):
        Gateway(tokenizer=hf_tokenizer)
    with pytest.raises(ValueError, match="sampler= needs tokenizer="):
        Gateway(sampler=says(stage))
    with pytest.raises(TypeError, match="must have a method `async sample"):
        Gateway(sampler=object(), tokenizer=hf_tokenizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="idle_s=0"):
        Gateway(sampler=says(stage), tokenizer=hf_tokenizer, idle_s=0)
    unbound = Gateway(sampler=says(stage), tokenizer=hf_tokenizer)
    with pytest.raises(ValueError, match="a rollout has no token limit"), unbound:
        pass
    assert "abut-gateway" not in own_threads()
