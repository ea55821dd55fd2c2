"""`verifiers_env`: which environments and options it takes, and what it says of others."""

import json
from typing import Any

import pytest

from abut.errors import AbutError
from abut.verifiers import verifiers_env


def seat_of(agent: Any, name: str) -> Any:
    return getattr(agent._env.config, name)


def test_seats_play_in_this_process_by_default() -> None:
    for name, seat in (("abut_sums", "agent"), ("abut_duel", "player1"), ("abut_talk", "agent")):
        spec = seat_of(verifiers_env(name), seat)
        assert (spec.harness.id, spec.runtime.type) == ("abut_chat", "subprocess")


def test_a_harness_that_executes_commands_needs_a_runtime() -> None:
    with pytest.raises(ValueError, match="would run the policy's commands") as raised:
        verifiers_env("abut_shell")
    assert str(raised.value) == (
        "the harness 'bash' of seat worker of abut_shell would run the policy's commands on "
        'this machine\nhint: pass runtime="docker", or runtime="subprocess" to allow this'
    )
    with pytest.raises(ValueError, match="would run the policy's commands"):
        verifiers_env("abut_sums", harness="bash")
    for runtime in ("docker", "subprocess", {"type": "docker", "image": "python:3.12"}):
        spec = seat_of(verifiers_env("abut_shell", runtime=runtime), "worker")
        assert spec.harness.id == "bash"
        assert spec.runtime.type == (runtime if isinstance(runtime, str) else runtime["type"])
    for settings in ({"seats": {"worker": {"runtime": {"type": "subprocess"}}}},):
        assert seat_of(verifiers_env("abut_shell", **settings), "worker").harness.id == "bash"


def test_a_harness_that_needs_a_container_does_not_run_here() -> None:
    with pytest.raises(ValueError, match="needs a container"):
        verifiers_env("abut_sums", harness="codex", runtime="subprocess")


@pytest.mark.parametrize(
    "settings",
    [
        {"config": {"retries": {"max_retries": 1}}},
        {"seats": {"agent": {"retries": {"max_retries": 2}}}},
        {"seats": {"agent": {"retries": {"rules": [{"type": "EnvError", "max_retries": 1}]}}}},
    ],
)
def test_retries_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"RolloutConfig\(retries=…\)"):
        verifiers_env("abut_sums", **settings)


def test_seats_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match="hint: the seats are player0, player1"):
        verifiers_env("abut_duel", seats={"player2": {}})
    with pytest.raises(ValueError, match="train has 'white', which is not a seat of abut_duel"):
        verifiers_env("abut_duel", train=["player0", "white"])
    with pytest.raises(ValueError, match="train is empty"):
        verifiers_env("abut_duel", train=[])


def test_a_model_needs_an_endpoint_and_an_endpoint_a_model() -> None:
    client = {"base_url": "http://127.0.0.1:1/v1", "api_key_var": "THEIR_API_KEY"}
    for settings, lacks in (({"model": "m"}, "no client"), ({"client": client}, "no model")):
        with pytest.raises(ValueError, match=lacks):
            verifiers_env("abut_duel", seats={"player1": settings})
    other = {"player1": {"model": "m", "client": client}}
    with pytest.raises(ValueError, match="hint: the policy's seats are player0"):
        verifiers_env("abut_duel", seats=other, train="player1")


def test_options_of_the_other_api_are_errors() -> None:
    with pytest.raises(TypeError) as raised:
        verifiers_env("abut_sums", args={"n": 1})
    assert str(raised.value) == (
        "args= is for the old API's load_environment, but 'abut_sums' is for verifiers 0.4\n"
        "hint: pass config= instead"
    )


def test_what_is_no_environment_is_an_error() -> None:
    with pytest.raises(TypeError, match="not an environment of verifiers"):
        verifiers_env(3)
    with pytest.raises(ImportError, match="abut_nowhere"):
        verifiers_env("abut_nowhere")
    with pytest.raises(ImportError, match="neither a Taskset in __all__ nor a load_environment"):
        verifiers_env("json")


def test_an_environment_of_the_old_api_says_which_version_it_needs(tmp_path: Any) -> None:
    import sys

    (tmp_path / "abut_old_one.py").write_text("def load_environment(): ...\n")
    sys.path.append(str(tmp_path))
    try:
        with pytest.raises(ImportError) as raised:
            verifiers_env("abut-old-one")
    finally:
        sys.path.remove(str(tmp_path))
    text = str(raised.value)
    assert text.startswith("'abut-old-one' is an environment for the old API")
    assert text.endswith("hint: pip install 'verifiers<0.4'")


def test_a_loaded_environment_keeps_its_taskset() -> None:
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    env = load_environment(resolve_env_config({"taskset": {"id": "abut_duel"}}))
    env.taskset = env.taskset.take(3)
    duel = verifiers_env(env, seats={"player0": {"max_turns": 4}}, name="mine")
    assert duel.name == "mine"
    assert len(duel.dataset()) == 3
    assert seat_of(duel, "player0").max_turns == 4
    assert seat_of(duel, "player0").harness.id == "abut_chat"
    assert env.config.player0.harness.id == "null"  # the user's own stays as it is
    with pytest.raises(
        TypeError,
        match="config= works only if you pass an id, but this environment is already loaded",
    ):
        verifiers_env(env, config={})


def test_the_dataset_has_tasks_ids_and_the_name() -> None:
    sums = verifiers_env("abut_sums", name="sums")
    rows = sums.dataset(3)
    assert rows.column_names == ["prompt", "environment", "row_id", "verifiers_task"]
    assert rows["row_id"][:] == ["sum-0", "sum-1", "sum-2"]
    assert rows["environment"][:] == ["sums"] * 3
    assert rows["prompt"][1] == "What is 1 + 1?"
    assert json.loads(rows["verifiers_task"][1])["answer"] == "2"
    shuffled = sums.dataset(5, shuffle=True, seed=3)["row_id"][:]
    assert shuffled == sums.dataset(5, shuffle=True, seed=3)["row_id"][:]
    assert shuffled != sums.dataset(5, shuffle=True, seed=4)["row_id"][:]
    assert len(sums.dataset()) == 8


def test_a_taskset_without_end_needs_a_number() -> None:
    duel = verifiers_env("abut_duel")
    with pytest.raises(ValueError, match="abut_duel has an endless stream of tasks"):
        duel.dataset()
    assert duel.dataset(4)["row_id"][:] == ["0", "1", "2", "3"]
    assert sorted(duel.dataset(4, shuffle=True)["row_id"][:]) == ["0", "1", "2", "3"]


def test_a_task_that_needs_a_container_is_refused_in_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums = verifiers_env("abut_sums")
    monkeypatch.setattr(sums._rows._type, "NEEDS_CONTAINER", True)
    with pytest.raises(ValueError, match='hint: pass runtime="docker"'):
        sums.dataset()


def test_it_stays_in_its_process() -> None:
    import pickle

    with pytest.raises(TypeError, match="call it in the process that trains"):
        pickle.dumps(verifiers_env("abut_sums"))
    assert issubclass(AbutError, Exception)
