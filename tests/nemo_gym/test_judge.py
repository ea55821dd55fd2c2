"""A judge that is the policy: refused before training, or answered and never trained."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")

from abut.errors import EnvError, SamplerError
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.nemo_gym.checks import judge_findings
from abut.nemo_gym.doctor import doctor
from abut.nemo_gym.servers import Servers
from tests.kit.servers.fake_gym import MODEL, Answer, FakeGym, Policy, verified
from tests.kit.servers.free_port import free_port
from tests.kit.stage.agents import check_tree, play_agents
from tests.kit.stage.nemo_gym import gym_servers, versions
from tests.kit.stage.rollouts import Recording

USER = [{"role": "user", "content": "hi"}]
KEY = "a key of sixteen characters and more"
POLICY = {"type": "responses_api_models", "name": "policy_model"}


async def judged(policy: Policy, body: dict[str, Any]) -> Answer:
    """A right answer needs no judge; for every other one the policy's model server is asked."""
    await policy.ask(USER)
    if json.loads(body["right"]):
        return verified(policy)
    status, said = await policy.judge("Is it right?")
    return verified(policy, 0.5) if status == 200 else (500, said)


def resources(**settings: Any) -> dict[str, Any]:
    return {"a_resources": {"resources_servers": {"math_with_judge": settings}}}


class Scene:
    """Four rows of one agent, of which every second has to be judged."""

    def __init__(self, stage: Any, folder: Path, gateway: Gateway, **config: Any) -> None:
        self.stage, self.gateway = stage, gateway
        self.sampler = Recording(stage.says("yes"))
        self.gym = FakeGym(
            {"a": judged}, base_url=gateway.base_url, key=gateway.key, config=resources(**config)
        )
        rows = [
            {"responses_create_params": {"input": "hi"}, "right": json.dumps(k % 2 == 0)}
            for k in range(4)
        ]
        self.path = folder / "rows.jsonl"
        self.path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def play(self, sampler: Any = None, **options: Any) -> list[Any]:
        with self.gym:
            gym = NemoGym(self.gym.url, **options)
            columns = [dict(row) for row in gym.dataset(self.path, agent="a")]
            played = play_agents(
                self.stage, *[gym] * 4, sampler=sampler or self.sampler, gateway=self.gateway,
                columns=columns, retries=0, max_failed_frac=1.0,
            )  # fmt: skip
        return played.rollouts


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway(key=KEY)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.mark.parametrize("check", ["all", "config"])
def test_a_judge_that_is_the_policy_ends_before_the_first_batch(
    stage: Any, tmp_path: Path, gateway: Gateway, check: Any
) -> None:
    scene = Scene(stage, tmp_path, gateway, judge_model_server=POLICY)
    with pytest.raises(Exception, match="a_resources") as raised:
        scene.play(check=check)
    said = str(raised.value)
    assert (
        "resources server a_resources calls policy_model, named in its field judge_model_server, "
        "which is the policy that is trained"
    ) in said
    assert (
        "hint: give judge_model_server its own model server, or use NemoGym(..., "
        'judge="policy"), which answers the judge from the policy without training on it'
    ) in said
    assert scene.gym.bodies == []


@pytest.mark.parametrize("check", ["all", "config"])
def test_its_answers_are_the_policys_and_in_no_row(
    stage: Any, tmp_path: Path, gateway: Gateway, check: Any
) -> None:
    scene = Scene(stage, tmp_path, gateway, judge_model_server=POLICY)
    rollouts = scene.play(check=check, judge="policy")
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.5, 1.0, 0.5]
    own = [c for c in scene.sampler.calls if c[0].rollout_id.startswith("r")]
    judges = [c for c in scene.sampler.calls if c[0].rollout_id.startswith("judge-")]
    assert (len(own), len(judges)) == (4, 2)
    for rollout in rollouts:
        mine = [c for c in own if c[0].rollout_id.startswith(rollout.rollout_id)]
        check_tree(rollout, mine)
        assert rollout.extras["rollout/judge_calls"] == 0.5
        assert not rollout.branches


def test_equal_questions_of_a_judge_have_seeds_of_their_own(
    stage: Any, tmp_path: Path, gateway: Gateway
) -> None:
    scene = Scene(stage, tmp_path, gateway, judge_model_server=POLICY)
    scene.play(check=None, judge="policy")
    seeds = {c[0].seed for c in scene.sampler.calls if c[0].rollout_id.startswith("judge-")}
    assert len(seeds) == 2
    assert {c[0].prompt_ids.tobytes() for c in scene.sampler.calls} != {b""}


def test_without_it_such_a_request_is_refused_and_so_it_is_after_the_batch(
    stage: Any, tmp_path: Path, gateway: Gateway
) -> None:
    """The negative control: what is checked before the first batch is what would go wrong."""
    scene = Scene(stage, tmp_path, gateway, judge_model_server=POLICY)
    rollouts = scene.play(check=None)
    assert [rollout.reward for rollout in rollouts] == [1.0, None, 1.0, None]
    assert "the request names no rollout" in str(rollouts[1].error)
    assert gateway.registry.judge is None


def test_a_sampler_that_fails_at_a_judge_ends_the_batch(
    stage: Any, tmp_path: Path, gateway: Gateway
) -> None:
    scene = Scene(stage, tmp_path, gateway, judge_model_server=POLICY)

    class Fails(Recording):
        async def sample(self, request: Any) -> Any:
            if request.rollout_id.startswith("judge-"):
                raise SamplerError("the server is gone")
            return await super().sample(request)

    with pytest.raises(SamplerError, match="the server is gone"):
        scene.play(Fails(stage.says("yes")), check=None, judge="policy")
    assert gateway.registry.judge is None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"judge_model_server": POLICY}, "judge_model_server"),
        ({"user_model_server": POLICY}, "user_model_server"),
        ({"judge_model_server": POLICY, "should_use_judge": True}, "judge_model_server"),
        ({"judge_base_url": "${policy_base_url}"}, "judge_base_url"),
        ({"judge_model_server": {**POLICY, "name": "same"}}, "judge_model_server"),
        ({"judge_model_server": POLICY, "should_use_judge": False}, None),
        ({"judge_model_server": POLICY, "enable_llm_judge": False}, None),
        ({"judge_model_server": {**POLICY, "name": "another"}}, None),
        ({"judge_base_url": "http://judge/v1"}, None),
        ({}, None),
    ],
)
def test_what_asks_the_policy_beside_the_agent_is_found(
    settings: dict[str, Any], field: str | None
) -> None:
    other = {"responses_api_models": {"vllm_model": {"base_url": "http://judge/v1"}}}
    gym = FakeGym({"a": judged}, base_url="http://gateway/v1")
    config = gym.config | resources(**settings) | {"same": MODEL, "another": other}
    instance = {"process_name": "a", "server_type": "responses_api_agents", "url": "http://a"}
    servers = Servers([instance], config)
    found = list(judge_findings(servers, ["a"], judge=None))
    assert [one.level for one in found] == ([] if field is None else ["error"])
    assert all(f"named in its field {field}" in one.what for one in found)
    answered = list(judge_findings(servers, ["a"], judge="policy"))
    assert [one.level for one in answered] == ["ok"] * len(found)


def test_the_doctor_says_so_too(tmp_path: Path) -> None:
    gym = FakeGym(
        {"a": judged},
        base_url=f"http://127.0.0.1:{free_port()}/v1",
        key=KEY,
        config=resources(judge_model_server=POLICY),
    )
    rows = tmp_path / "rows.jsonl"
    row = {"responses_create_params": {"input": "hi"}, "right": "false"}
    rows.write_text(json.dumps(row), encoding="utf-8")
    with gym:
        errors = [f.what for f in doctor(gym.url, [rows], agent="a") if f.level == "error"]
        said = list(doctor(gym.url, [rows], agent="a", judge="policy"))
    assert len(errors) == 1
    assert "calls policy_model, named in its field judge_model_server" in errors[0]
    assert [f.what for f in said if f.level == "error"] == []
    assert said[-1].what == "a probe rollout of agent a: 1 calls, one conversation, reward 0.5"


def test_several_processes_cannot_have_it(stage: Any, gateway: Gateway) -> None:
    gateway.registry.join_run("run0", rank=1)
    with (
        FakeGym({"a": judged}) as fake,
        pytest.raises(EnvError, match="works only with one process"),
    ):
        play_agents(stage, NemoGym(fake.url, judge="policy"), gateway=gateway, rank=1)


@pytest.mark.nemo_gym
@pytest.mark.parametrize("version", versions() or ["none"])
def test_a_real_judge_scores_with_the_policy(
    stage: Any, tmp_path: Path, gateway: Gateway, version: str
) -> None:
    """Its default configuration names `policy_model`; only where its template lies is said here."""
    name = "equivalence_llm_judge"
    agent, template = f"{name}_simple_agent", tmp_path / "judge.txt"
    template.write_text("Judge: {generated_answer} and {expected_answer}, {question}", "utf-8")
    own = {"judge_prompt_template_fpath": str(template)}
    overrides = {name: {"resources_servers": {name: own}}}

    def says(request: Any) -> Any:
        prompt = stage.tokenizer.decode(request.prompt_ids.tolist())
        if "Judge: " not in prompt:
            return stage.says("yes" if request.rollout_id.startswith("r0-") else "no")(request)
        return stage.says("[[A=B]]" if "Judge: yes" in prompt else "[[A!=B]]")(request)

    with gym_servers(
        version,
        gateway.base_url,
        KEY,
        tmp_path / "gym",
        environments=[name],
        overrides=overrides,
    ) as servers:
        gym = NemoGym(servers.head_url, judge="policy")
        columns = [dict(row) for row in gym.dataset(servers.file(name), agent=agent)][:2]
        sampler = Recording(says)
        played = play_agents(
            stage, gym, gym, sampler=sampler, gateway=gateway, columns=columns, retries=0
        )
        refuses = NemoGym(servers.head_url)
        refuses.dataset(servers.file(name), agent=agent)
        with pytest.raises(Exception, match=f"resources server {name} calls policy_model"):
            play_agents(stage, refuses, gateway=gateway, columns=columns[:1])
    assert [rollout.reward for rollout in played.rollouts] == [1.0, 0.0]
    for rollout in played.rollouts:
        check_tree(
            rollout, [c for c in sampler.calls if c[0].rollout_id.startswith(rollout.rollout_id)]
        )
        assert rollout.extras["rollout/judge_calls"] == 1.0


def test_another_judge_is_an_error() -> None:
    with pytest.raises(ValueError, match="judge='gpt': must be 'policy' or None"):
        NemoGym("http://127.0.0.1:1", judge="gpt")  # type: ignore[arg-type]
