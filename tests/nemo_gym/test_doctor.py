"""What `abut doctor --nemo-gym` and the first batch find, each with what to change."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from abut.cli.__main__ import main
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.nemo_gym.checks import row_findings
from abut.nemo_gym.doctor import doctor
from tests.kit.servers.fake_gym import MODEL, Answer, FakeGym, Policy, Run, carrier, verified
from tests.kit.servers.free_port import free_port
from tests.kit.stage.agents import play_agents

KEY = "a key of sixteen characters and more"
USER = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["here"]}, "n": {"type": "integer"}},
            "required": ["place", "n"],
        },
    },
}


async def with_a_tool(policy: Policy, body: dict[str, Any]) -> Answer:
    """Two calls: one of a tool, and what comes of it."""
    params = body["responses_create_params"]
    fields = {"tools": [TOOL]} | {n: params[n] for n in ("temperature", "top_p") if n in params}
    message = await policy.ask(USER, **fields)
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"place": "here", "n": 1}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}
    await policy.ask([*USER, message, result], **fields)
    return verified(policy, 0.5)


def model(**settings: Any) -> dict[str, Any]:
    known = MODEL["responses_api_models"]["vllm_model"]
    return {"policy_model": {"responses_api_models": {"vllm_model": {**known, **settings}}}}


@pytest.fixture
def address() -> str:
    return f"http://127.0.0.1:{free_port()}/v1"


def found(gym: FakeGym, *files: Path, **options: Any) -> list[tuple[str, str, str]]:
    with gym:
        return [(f.level, f.what, f.hint) for f in doctor(gym.url, files, **options)]


def wrong(of: list[tuple[str, str, str]]) -> tuple[str, str, str]:
    (one,) = [finding for finding in of if finding[0] != "ok"]
    return one


def rows(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_a_gym_that_is_well(address: str) -> None:
    said = found(FakeGym({"a": with_a_tool}, base_url=address, key=KEY))
    assert {level for level, _, _ in said} == {"ok"}
    texts = [what for _, what, _ in said]
    assert texts[0].endswith("has 1 agents: a")
    assert "model server policy_model (vllm_model) calls" in texts[2]
    assert texts[-1] == "a probe rollout of agent a: 2 calls, one conversation, reward 0.5"
    assert not any(KEY in text for text in texts)


def test_no_head() -> None:
    (one,) = doctor("http://127.0.0.1:1")
    assert one.level == "error"
    assert "no NeMo Gym head answers at http://127.0.0.1:1" in one.what
    assert "+head_server.host" in one.hint


def test_a_head_without_agents() -> None:
    level, what, _ = wrong(found(FakeGym({})))
    assert (level, what.endswith("has 0 agents: none")) == ("error", True)


def test_tokens_that_are_off(address: str) -> None:
    off = model(return_token_id_information=False)
    gym = FakeGym({"a": with_a_tool}, base_url=address, key=KEY, config=off)
    level, what, hint = wrong(found(gym))
    assert level == "error"
    assert "policy_model (vllm_model) has return_token_id_information off" in what
    assert "vllm_model_for_training.yaml" in hint


def test_an_agent_without_a_model_server_that_is_known(address: str) -> None:
    config = {"a": {"responses_api_agents": {"harness": {}}}}
    gym = FakeGym({"a": with_a_tool}, base_url=address, key=KEY, config=config)
    assert wrong(found(gym))[:2] == (
        "warning",
        "agent a names no model_server, so it is not known where it sends its requests to the "
        "policy",
    )


def test_a_base_url_without_v1(address: str) -> None:
    gym = FakeGym({"a": with_a_tool}, base_url=address.removesuffix("/v1"), key=KEY)
    level, what, hint = wrong(found(gym))
    assert (level, "which does not end in /v1" in what) == ("error", True)
    assert "http://HOST:PORT/v1" in hint


def test_a_model_server_of_another_kind(address: str) -> None:
    config = {"policy_model": {"responses_api_models": {"openai_model": {"api_key": "k"}}}}
    gym = FakeGym({"a": with_a_tool}, base_url=address, key=KEY, config=config)
    wrongs = [what for level, what, _ in found(gym) if level == "error"]
    assert any("(openai_model) has no base_url" in what for what in wrongs)


def test_a_key_that_no_gateway_takes(address: str) -> None:
    level, what, hint = wrong(found(FakeGym({"a": with_a_tool}, base_url=address, key="none")))
    assert level == "error"
    assert "such a key has at least 16 characters, all printable ASCII" in what
    assert hint == (
        "set ABUT_GATEWAY_KEY where training starts and Gym's policy_api_key to the same value"
    )


def test_another_key_than_training_has(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABUT_GATEWAY_KEY", "another key of sixteen and more")
    level, what, _ = wrong(found(FakeGym({"a": with_a_tool}, base_url=address, key=KEY)))
    assert (level, "has an api_key that is not the gateway's key" in what) == ("error", True)


@pytest.mark.parametrize("here", [KEY, f"{KEY} not", None])
def test_a_key_that_is_a_variable_of_gyms_environment(
    address: str, monkeypatch: pytest.MonkeyPatch, here: str | None
) -> None:
    monkeypatch.delenv("ABUT_GATEWAY_KEY", raising=False)
    if here is not None:
        monkeypatch.setenv("ABUT_GATEWAY_KEY", here)
    config = {"policy_api_key": "${oc.env:ABUT_GATEWAY_KEY}"}
    gym = FakeGym({"a": with_a_tool}, base_url=address, key=KEY, config=config)
    said = found(gym)
    if here is None:
        level, what, hint = wrong(said)
        assert (level, "could not play a probe rollout: the key" in what) == ("warning", True)
        assert hint == "set ABUT_GATEWAY_KEY here to the same value"
    elif here == KEY:
        assert said[-1][:2] == (
            "ok",
            "a probe rollout of agent a: 2 calls, one conversation, reward 0.5",
        )
    else:  # which only a rollout shows
        assert wrong(said)[0] in ("error", "warning")


def test_an_address_where_something_else_is() -> None:
    with FakeGym({}) as other:
        gym = FakeGym({"a": with_a_tool}, base_url=f"{other.url}/v1", key=KEY)
        level, what, hint = wrong(found(gym))
    assert level == "warning"
    assert "nothing answers at" in what or "not an abut gateway" in what
    assert hint


def test_a_gateway_that_is_there_already_is_left_alone() -> None:
    gateway = Gateway(key=KEY)
    gateway.start()
    try:
        gym = FakeGym({"a": with_a_tool}, base_url=gateway.base_url, key=KEY)
        said = found(gym)
        assert said[-1] == (
            "ok",
            f"an abut gateway is already running at {gateway.base_url}, so no probe rollout was "
            "played",
            "",
        )
        wrong_key = FakeGym({"a": with_a_tool}, base_url=gateway.base_url, key=f"{KEY} not")
        level, what, _ = wrong(found(wrong_key))
        assert (level, "does not accept policy_api_key" in what) == ("error", True)
    finally:
        gateway.stop()


def test_an_address_of_another_machine() -> None:
    gym = FakeGym({"a": with_a_tool}, base_url="http://192.0.2.1:8100/v1", key=KEY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abut.nemo_gym.checks._ASK_S", 0.2)
        level, what, hint = wrong(found(gym))
    assert level == "warning"
    assert "could not play a probe rollout" in what
    assert "run this command on the machine that will train" in hint


def test_an_agent_that_does_not_answer(address: str) -> None:
    dead = {"process_name": "dead", "server_type": "responses_api_agents"}
    gym = FakeGym({"a": with_a_tool}, base_url=address, key=KEY, instances=[dead])
    listed = gym._instances

    async def nowhere(request: Any) -> Any:
        from aiohttp import web

        said = json.loads((await listed(request)).text)
        said[-1]["url"] = "http://127.0.0.1:1"
        return web.json_response(said)

    gym._instances = nowhere  # type: ignore[method-assign]
    said = found(gym)
    errors = [what for level, what, _ in said if level == "error"]
    assert len(errors) == 1
    assert errors[0].startswith("agent dead at http://127.0.0.1:1 does not answer")
    assert said[-1][1] == "a probe rollout of agent a: 2 calls, one conversation, reward 0.5"


PROBES: list[tuple[str, Run, str, str]] = []


def probes(level: str, said: str) -> Any:
    """An agent that has something wrong, and what is found of it."""

    def add(run: Run) -> Run:
        PROBES.append((run.__name__, run, level, said))
        return run

    return add


@probes("error", "finished without calling this gateway")
async def elsewhere(policy: Policy, body: dict[str, Any]) -> Answer:
    return 200, {"reward": 1.0}


@probes(
    "error", "could not match any call to its rollout: 1 request without a rollout id was refused"
)
async def names_nothing_known(policy: Policy, body: dict[str, Any]) -> Answer:
    await policy.judge("Something else.")
    return 200, {"reward": 1.0}


@probes("error", "failed after 1 calls: agent a answered with status 500: boom")
async def verify_fails(policy: Policy, body: dict[str, Any]) -> Answer:
    await policy.ask(USER, temperature=1.0, top_p=1.0)
    return 500, "boom"


@probes("error", "returned tokens that this gateway did not sample")
async def other_tokens(policy: Policy, body: dict[str, Any]) -> Answer:
    message = await policy.ask(USER, temperature=1.0, top_p=1.0)
    return 200, {
        "reward": 1.0,
        "response": {"output": [{**carrier(message), "prompt_token_ids": [1, 2]}]},
    }


@probes("warning", "returned no tokens")
async def no_tokens(policy: Policy, body: dict[str, Any]) -> Answer:
    await policy.ask(USER, temperature=1.0, top_p=1.0)
    return 200, {"reward": 1.0}


@probes("warning", "made 2 conversations of 2 calls (new); with a trainer that takes one row")
async def forgets(policy: Policy, body: dict[str, Any]) -> Answer:
    await policy.ask(USER, temperature=1.0, top_p=1.0)
    await policy.ask([{"role": "user", "content": "ho"}], temperature=1.0, top_p=1.0)
    return verified(policy)


@probes("warning", "sent temperature=0.0 instead of 1.0")
async def greedy(policy: Policy, body: dict[str, Any]) -> Answer:
    await policy.ask(USER, temperature=0.0, top_p=1.0)
    return verified(policy)


@pytest.mark.parametrize(
    ("run", "level", "said"), [p[1:] for p in PROBES], ids=[p[0] for p in PROBES]
)
def test_what_a_probe_rollout_finds(
    address: str, tmp_path: Path, run: Run, level: str, said: str
) -> None:
    row = {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "a"}}
    path = rows(tmp_path / "rows.jsonl", row)
    found_level, what, hint = wrong(found(FakeGym({"a": run}, base_url=address, key=KEY), path))
    assert (found_level, said in what) == (level, True), what
    assert hint or "boom" in what


def test_agents_that_name_no_rollout_are_known_by_their_history(address: str) -> None:
    """As in training; each of them is asked at the same time."""

    async def refines(policy: Policy, body: dict[str, Any]) -> Answer:
        policy.rollout_id = None
        talk = body["responses_create_params"]["input"]
        answer = await policy.ask(talk, temperature=1.0, top_p=1.0)
        quoted = [{"role": "user", "content": f"Fix this: {answer['content']}"}]
        await policy.ask(quoted, temperature=1.0, top_p=1.0)
        return verified(policy)

    names = [f"a{k}" for k in range(12)]
    settings = {"model_server": {"name": "policy_model"}}
    config = {n: {"responses_api_agents": {"proof_refinement_agent": settings}} for n in names}
    gym = FakeGym(dict.fromkeys(names, refines), base_url=address, key=KEY, config=config)
    said = found(gym)
    assert {level for level, *_ in said} == {"ok", "warning"}
    warned = [what for level, what, _ in said if level == "warning"]
    assert warned == [
        f"a probe rollout of agent {name} made 2 conversations of 2 calls (new); with a trainer "
        "that takes one row per rollout, only one of them is trained"
        for name in sorted(names)
    ]


def test_an_agent_that_hangs(address: str, tmp_path: Path) -> None:
    async def hangs(policy: Policy, body: dict[str, Any]) -> Answer:
        import asyncio

        await policy.ask(USER, temperature=1.0, top_p=1.0)
        await asyncio.Event().wait()
        raise AssertionError

    gym = FakeGym({"a": hangs}, base_url=address, key=KEY)
    level, what, _ = wrong(found(gym, timeout_s=2.0))
    assert level == "warning"  # the row is made up: of its own it may do better
    assert "it did not answer within 2 s" in what
    assert "--no-play" in what


def test_rows_say_what_is_refused_and_what_the_trainer_says() -> None:
    params = {"input": "hi", "seed": 1, "temperature": 0.1, "instructions": "x", "tools": None}
    said = list(row_findings([{"responses_create_params": params}] * 2))
    assert [(f.level, f.what) for f in said] == [
        (
            "error",
            "2 of 2 rows have responses_create_params.seed, which every model server refuses (422)",
        ),
        (
            "warning",
            "2 of 2 rows have responses_create_params.instructions, which NeMo Gym 0.4.0 "
            "silently drops",
        ),
        ("ok", "rows set temperature (2), but the policy is sampled with the trainer's settings"),
    ]
    assert list(row_findings([{"responses_create_params": {"input": "hi"}}])) == []


def test_the_command_says_each_finding_and_has_a_status(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "a"}}
    path = rows(tmp_path / "good.jsonl", good)
    with FakeGym({"a": with_a_tool, "b": with_a_tool}, base_url=address, key=KEY) as gym:
        assert main(["doctor", "--nemo-gym", gym.url, "--dataset", str(path)]) == 0
        said = capsys.readouterr().out
        assert f"ok   {path}: 1 rows of a\n" in said
        assert "agent b at" not in said  # no row is of it
        bad = rows(tmp_path / "bad.jsonl", {**good, "agent_ref": {"name": "c"}})
        assert main(["doctor", "--nemo-gym", gym.url, "--dataset", str(bad)]) == 1
        said = capsys.readouterr().out
        assert "FAIL" in said
        assert "there is no agent 'c'; the agents are: a, b" in said
        assert "\n     hint: start Gym with the configuration of that agent" in said
        assert main(["doctor", "--nemo-gym", gym.url, "--timeout", "0"]) == 1


def test_the_first_batch_looks_too(stage: Any, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    path = rows(tmp_path / "rows.jsonl", {"responses_create_params": {"input": "hi"}})
    gateway = Gateway(key=KEY)
    gateway.start()
    try:
        with FakeGym({"a": with_a_tool}, base_url=gateway.base_url, key=KEY) as fake:
            gym = NemoGym(fake.url)
            columns = [dict(row) for row in gym.dataset(path, agent="a")]
            script = stage.says('<tool_call>\n{"name": "look", "arguments": '
                                '{"place": "here", "n": 1}}\n</tool_call>')  # fmt: skip
            for batch in (1, 2):  # once
                played = play_agents(stage, gym, script=script, gateway=gateway, columns=columns)
                assert played.one.extras["nemo_gym_outcome"] == "ok"
                assert len(fake.bodies) == 1 + batch
            assert "-probe-" in f"-{fake.bodies[0]['_ng_rollout_id']}"
    finally:
        gateway.stop()


def test_a_probe_is_in_no_group_of_training(stage: Any, address: str, tmp_path: Path) -> None:
    """Servers that score a whole group would compare what the probe said with its rollouts."""
    pytest.importorskip("datasets")
    row = {"responses_create_params": {"input": "hi"}}
    path = rows(tmp_path / "rows.jsonl", row)
    gateway = Gateway(key=KEY)
    gateway.start()
    try:
        with FakeGym({"a": with_a_tool}, base_url=gateway.base_url, key=KEY) as fake:
            gym = NemoGym(fake.url)
            columns = [dict(row) for row in gym.dataset(path, agent="a")]
            arguments = '{"place": "here", "n": 1}'
            call = f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'
            script = stage.says(call)
            play_agents(stage, gym, script=script, gateway=gateway, columns=columns)
            again = NemoGym(fake.url)
            again.dataset(path, agent="a")
            play_agents(stage, again, script=script, gateway=gateway, columns=columns)
    finally:
        gateway.stop()
    probe, own, other, _ = [body["_ng_task_index"] for body in fake.bodies]
    assert own == 0
    assert len({probe, other, own}) == 3
    assert 2**30 <= min(probe, other) <= max(probe, other) < 2**31


def test_the_doctor_plays_nothing_where_it_is_told_so(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeGym({"a": with_a_tool}, base_url=address, key=KEY) as gym:
        assert main(["doctor", "--nemo-gym", gym.url, "--no-play"]) == 0
        said = capsys.readouterr().out
    assert "model server policy_model (vllm_model) calls" in said
    assert "probe rollout" not in said
    assert gym.bodies == []


def test_the_command_takes_a_judge_that_is_the_policy(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model_of = {"type": "responses_api_models", "name": "policy_model"}
    config = {"a_resources": {"resources_servers": {"r": {"judge_model_server": model_of}}}}
    with FakeGym({"a": with_a_tool}, base_url=address, key=KEY, config=config) as gym:
        asked = ["doctor", "--nemo-gym", gym.url, "--no-play"]
        assert main(asked) == 1
        assert main([*asked, "--judge", "policy"]) == 0


def test_a_probe_that_fails_of_itself_ends_no_training(
    stage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a script says may be more than a verifier bears; a row that is refused is for good."""
    pytest.importorskip("datasets")
    path = rows(tmp_path / "rows.jsonl", {"responses_create_params": {"input": "hi"}})
    gateway = Gateway(key=KEY)
    gateway.start()
    statuses = [500, 200, 422]

    async def fails(policy: Policy, body: dict[str, Any]) -> Answer:
        await policy.ask(USER)
        status = statuses.pop(0)
        return verified(policy) if status == 200 else (status, "boom")

    try:
        with FakeGym({"a": fails}, base_url=gateway.base_url, key=KEY) as fake:
            gym = NemoGym(fake.url)
            columns = [dict(row) for row in gym.dataset(path, agent="a")]
            played = play_agents(stage, gym, gateway=gateway, columns=columns)
            assert played.one.extras["nemo_gym_outcome"] == "ok"
            assert "a probe rollout of agent a failed after 1 calls" in caplog.text
            gym = NemoGym(fake.url)
            gym.dataset(path, agent="a")
            with pytest.raises(Exception, match="agent a answered with status 422"):
                play_agents(stage, gym, gateway=gateway, columns=columns)
    finally:
        gateway.stop()


@pytest.mark.parametrize("check", ["all", "config", None])
def test_what_cannot_train_ends_before_the_first_batch(
    stage: Any, tmp_path: Path, check: Any
) -> None:
    pytest.importorskip("datasets")
    path = rows(tmp_path / "rows.jsonl", {"responses_create_params": {"input": "hi"}})
    gateway = Gateway(key=KEY)
    gateway.start()
    off = model(return_token_id_information=False, api_key="not the key of the gateway")
    try:
        with FakeGym({"a": with_a_tool}, base_url="http://127.0.0.1:1/v1", config=off) as fake:
            gym = NemoGym(fake.url, check=check)
            columns = [dict(row) for row in gym.dataset(path, agent="a")]
            with pytest.raises(Exception, match=r"return_token|failed") as raised:
                play_agents(stage, gym, gateway=gateway, columns=columns, retries=0)
            assert len(fake.bodies) == (1 if check is None else 0)
    finally:
        gateway.stop()
    if check is not None:
        said = str(raised.value)
        assert "return_token_id_information off" in said
        assert "has an api_key that is not the gateway's key" in said
        assert KEY not in said
