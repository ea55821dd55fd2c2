"""A probe is written with the template of the run, beside the demo's that its script needs."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")

import abut
from abut.cli.__main__ import main
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from tests.kit.servers.fake_gym import FakeGym, one_turn
from tests.kit.servers.free_port import free_port
from tests.kit.stage.agents import play_agents
from tests.kit.stage.rollouts import Stage

KEY = "a key of sixteen characters and more"
REFUSES = (
    "{%- for message in messages if message.role in ('developer', 'system') -%}"
    "{{ raise_exception('there is no role ' + message.role) }}{%- endfor -%}"
)
HINT = "set replace_developer_role_with_system: true in the model server"


@pytest.fixture
def strict(tokenizer: Any, hf_tokenizer: Any) -> Stage:
    """A run whose template takes users' messages and answers alone."""
    template = REFUSES + hf_tokenizer.chat_template
    return Stage(tokenizer, abut.ChatTemplateProcessor(hf_tokenizer, chat_template=template))


def a_row(folder: Path, role: str) -> Path:
    said = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "hi"}]
    path = folder / f"{role}.jsonl"
    path.write_text(json.dumps({"responses_create_params": {"input": said}}), encoding="utf-8")
    return path


@pytest.mark.parametrize(("role", "hinted"), [("developer", True), ("system", False)])
def test_a_row_that_the_runs_template_cannot_write_ends_before_the_first_batch(
    strict: Stage, tmp_path: Path, role: str, hinted: bool
) -> None:
    gateway = Gateway(key=KEY)
    gateway.start()
    try:
        with FakeGym({"a": one_turn}, base_url=gateway.base_url, key=KEY) as fake:
            gym = NemoGym(fake.url)
            columns = [dict(row) for row in gym.dataset(a_row(tmp_path, role), agent="a")]
            with pytest.raises(Exception, match="a probe rollout of agent a") as raised:
                play_agents(strict, gym, gateway=gateway, columns=columns, retries=0)
            assert len(fake.bodies) == 1
    finally:
        gateway.stop()
    said = str(raised.value)
    assert "that the chat template of this run cannot write" in said
    assert "there is no role" in said
    assert (HINT in said) == hinted


def test_a_row_that_it_can_write_is_played(strict: Stage, tmp_path: Path) -> None:
    """The negative control."""
    gateway = Gateway(key=KEY)
    gateway.start()
    try:
        with FakeGym({"a": one_turn}, base_url=gateway.base_url, key=KEY) as fake:
            gym = NemoGym(fake.url)
            columns = [dict(row) for row in gym.dataset(a_row(tmp_path, "user"), agent="a")]
            played = play_agents(strict, gym, gateway=gateway, columns=columns, retries=0)
            assert played.one.reward == 1.0
    finally:
        gateway.stop()


def test_the_doctor_has_the_template_of_the_tokenizer_that_it_is_given(
    hf_tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    hf_tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(REFUSES + hf_tokenizer.chat_template, "utf-8")
    address = f"http://127.0.0.1:{free_port()}/v1"
    with FakeGym({"a": one_turn}, base_url=address, key=KEY) as gym:
        asked = ["doctor", "--nemo-gym", gym.url, "--agent", "a", "--dataset"]
        path = str(a_row(tmp_path, "developer"))
        assert main([*asked, path]) == 0
        assert main([*asked, path, "--tokenizer", str(folder)]) == 1
        assert HINT in capsys.readouterr().out
        assert main([*asked, path, "--tokenizer", str(tmp_path / "none")]) == 1
