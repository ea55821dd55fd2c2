"""Rows of JSON lines as a dataset, and back as the body of `/run`."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.nemo_gym import NemoGym
from abut.nemo_gym.rows import mixed, preview, row_of
from abut.nemo_gym.run_request import run_request
from abut.nemo_gym.servers import PlayedBy
from tests.kit.servers.fake_gym import FakeGym, one_turn

pytest.importorskip("datasets")

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "max_tokens": 100}


@pytest.fixture(scope="module")
def gym() -> Iterator[NemoGym]:
    with FakeGym({"a": one_turn, "b": one_turn}) as fake:
        yield NemoGym(fake.url, check=None)


def row(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": text}, **more}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(r)}\n" for r in rows), encoding="utf-8")
    return path


def task(**columns: Any) -> RolloutTask:
    return RolloutTask(0, "r0", object, [], "seed", 7, columns=columns)  # type: ignore[arg-type]


def sent(of: dict[str, Any], played: PlayedBy | None = None, **sampling: Any) -> dict[str, Any]:
    return run_request(
        of,
        played or PlayedBy("a", "http://gym"),
        rollout_id="r0-run.0",
        sampling=SAMPLING | sampling,
        group=5,
        place=2,
    )


def test_each_line_is_kept_as_it_is(gym: NemoGym, tmp_path: Path) -> None:
    """Arrow would have given each row the other's keys, as nulls."""
    rows = [row(agent_ref={"name": "a"}, x=[{"k": 1}, "é"]), row(task_source="b_resources", y=None)]
    dataset = gym.dataset(written(tmp_path / "rows.jsonl", *rows))
    assert [json.loads(text) for text in dataset["nemo_gym_row"]] == rows
    assert dataset["nemo_gym_agent"] == ["a", "b"]
    assert dataset["environment"] == ["nemo_gym"] * 2
    assert dataset["prompt"] == ["hi", "hi"]
    kept, agent = row_of(task(**dataset[1]), "gym")
    assert (kept, agent) == (rows[1], "b")


def test_files_are_mixed_by_weight_and_no_line_is_left_out(gym: NemoGym, tmp_path: Path) -> None:
    few = written(tmp_path / "few.jsonl", *[row(f"f{k}") for k in range(3)])
    many = written(tmp_path / "many.jsonl", *[row(f"m{k}") for k in range(12)])
    dataset = gym.dataset([few, many], agent=["a", "b"])
    assert Counter(dataset["nemo_gym_agent"]) == {"a": 3, "b": 12}
    dataset = gym.dataset([few, many], agent=["a", "b"], weights=[1, 2])
    counts = Counter(dataset["prompt"])
    assert {counts[f"m{k}"] for k in range(12)} == {1}
    assert [counts[f"f{k}"] for k in range(3)] == [2, 2, 2]
    agents = dataset["nemo_gym_agent"]
    assert Counter(agents[:9]) == {"a": 3, "b": 6}  # evenly, not one file after the other


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 1.0], [5, 0.25, 1]])
def test_a_mix_has_every_line_and_the_shares_that_were_asked(weights: Any) -> None:
    files = [range(7), range(100, 109), range(200, 201)]
    found = list(mixed(files, weights))
    assert {*found} == {line for lines in files for line in lines}
    if weights is not None:
        counts = Counter(line // 100 for line in found)
        share = sum(weights) / weights[0]
        assert abs(len(found) / counts[0] - share) / share < 0.1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Expecting property name"),
        ("[]", "line 2: a row must be a JSON object, got list"),
        ("{}", "line 2: the row needs responses_create_params with an input"),
        (
            json.dumps(row(agent_ref={"name": "c"})),
            "line 2: there is no agent 'c'; the agents are: a, b\n"
            "hint: start Gym with the configuration of that agent",
        ),
        (
            json.dumps(row()),
            "line 2: the row names no agent: it has neither agent_ref nor task_source; the "
            "agents are: a, b\n"
            "hint: pass agent= (or --agent on the command line) for rows that name no agent",
        ),
    ],
)
def test_a_line_that_cannot_be_played_is_an_error_at_once(
    gym: NemoGym, tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row(agent_ref={'name': 'a'}))}\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2") as raised:
        gym.dataset(path)
    assert f"{path}, {said}" in str(raised.value)


PARAMS = "responses_create_params"


def line_of(said: Any = "hi", **params: Any) -> bytes:
    return json.dumps({PARAMS: {"input": said, **params}}).encode()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (line_of(None), f"{PARAMS}.input is null: it must be a string or a list of messages"),
        (line_of(7), f"{PARAMS}.input is 7: it must be a string or a list of messages"),
        (line_of([]), f"{PARAMS}.input is []: it must be a string or a list of messages"),
        (line_of({}), f"{PARAMS}.input is {{}}: it must be a string or a list of messages"),
        (line_of(["hi"]), f'{PARAMS}.input[0] is "hi": it must be a message (a JSON object)'),
        (line_of("\ud800"), "the line has half a surrogate pair, \\ud800, which servers refuse"),
        (line_of("caf\xe9").replace(b"\\u00e9", b"\xe9"), "the line is not UTF-8 from byte "),
        (
            line_of(metadata={"extra_body": "{"}),
            f'{PARAMS}.metadata.extra_body must be a string with a JSON object, got "{{"',
        ),
        (line_of(metadata={"extra_body": {}}), "extra_body must be a string with a JSON object"),
        (line_of(metadata=[1]), f"{PARAMS}.metadata is [1]: it must be a JSON object"),
        (b"[" * 100_000, "the line is nested too deeply"),
        (line_of(temperature=float("nan")), "the line has NaN, which is not valid JSON"),
    ],
)
def test_a_bad_line_is_named_when_it_is_read(
    gym: NemoGym, tmp_path: Path, line: bytes, said: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line_of() + b"\n\n" + line + b"\n")
    with pytest.raises(ValueError, match="line 3") as raised:
        gym.dataset(path, agent="a")
    assert type(raised.value) is ValueError
    assert f"{path}, line 3: " in str(raised.value)
    assert said in str(raised.value)


def test_lines_end_at_newlines_alone(gym: NemoGym, tmp_path: Path) -> None:
    """Other characters that end a line in Python may stand in JSON as they are."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(row("a\u2028b\x85c"), ensure_ascii=False).encode() + b"\r\n")
    assert gym.dataset(path, agent="a")["prompt"] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jsonl": []}, "jsonl is empty: pass at least one file"),
        ({"agent": ["a", "b"]}, "agent= has 2 names, but jsonl has 1 files"),
        ({"weights": [1, 2]}, "weights has 2 numbers, but there are 1 files"),
        ({"weights": [0]}, "weights has 0: each must be more than 0"),
        ({"agent": "c"}, "there is no agent 'c'"),
    ],
)
def test_arguments_that_say_nothing_are_errors(
    gym: NemoGym, tmp_path: Path, given: Any, said: str
) -> None:
    path = written(tmp_path / "rows.jsonl", row())
    with pytest.raises(ValueError, match=said):
        gym.dataset(**{"jsonl": path, "agent": "a"} | given)


def test_a_file_without_rows_is_an_error(gym: NemoGym, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no rows"):
        gym.dataset(written(tmp_path / "rows.jsonl"), agent="a")


def test_the_prompt_is_what_one_can_read() -> None:
    parts = [{"type": "input_text", "text": "what?"}]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert preview({"responses_create_params": {"input": said}}) == (
        "system: Be brief.\n\nuser: what?"
    )
    assert preview({"responses_create_params": {"input": said[1:]}}) == "what?"
    assert preview({"task_input": {"responses_create_params": {"input": "x"}}}) == "x"


def test_rows_of_a_dataset_of_ones_own_lose_the_nulls_of_arrow() -> None:
    columns = {
        "prompt": "hi",
        "responses_create_params": {"input": [{"role": "user", "content": "hi"}], "tools": None},
        "agent_ref": {"name": "a", "type": None},
        "expected": None,
    }
    assert row_of(task(**columns), "gym") == (
        {
            "responses_create_params": {"input": [{"role": "user", "content": "hi"}]},
            "agent_ref": {"name": "a"},
        },
        None,
    )


def test_a_task_without_a_row_says_where_rows_come_from() -> None:
    with pytest.raises(UnplayableRow, match=r"use train_dataset=gym\.dataset\('train\.jsonl'\)"):
        row_of(task(prompt="hi"), "gym")
    removed = RolloutTask(
        0,
        "r0",
        object,  # type: ignore[arg-type]
        [],
        "seed",
        7,
        removed_columns=("nemo_gym_row",),
    )
    with pytest.raises(UnplayableRow, match="leave remove_unused_columns=True out"):
        row_of(removed, "gym")


def test_a_row_is_posted_with_its_rollout_and_the_trainers_sampling() -> None:
    params = {
        "input": "hi",
        "tools": None,
        "metadata": None,
        "temperature": 0.0,
        "max_output_tokens": 512,
        "parallel_tool_calls": False,
    }
    body = sent({"responses_create_params": params, "expected": 3, "id": 1})
    said = body.pop("responses_create_params")
    assert json.loads(said.pop("metadata")["extra_body"]) == {"rollout_id": "r0-run.0"}
    assert said == {
        "input": "hi",
        "temperature": 0.7,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "parallel_tool_calls": False,
    }
    assert body == {
        "expected": 3,
        "id": 1,
        "_ng_task_index": 5,
        "_ng_rollout_index": 2,
        "_ng_rollout_id": "r0-run.0",
        "agent_ref": {"type": "responses_api_agents", "name": "a"},
    }
    assert params["temperature"] == 0.0  # the row itself stays


def test_a_rows_own_metadata_stays() -> None:
    own = {"extra_body": '{"stop": ["x"], "rollout_id": "mine"}', "note": "n"}
    metadata = sent(row() | {"responses_create_params": {"input": "hi", "metadata": own}})[
        "responses_create_params"
    ]["metadata"]
    assert metadata["note"] == "n"
    assert json.loads(metadata["extra_body"]) == {"stop": ["x"], "rollout_id": "r0-run.0"}
    with pytest.raises(UnplayableRow, match="extra_body must be a string with a JSON object"):
        sent({"responses_create_params": {"input": "hi", "metadata": {"extra_body": "["}}})


def test_without_settings_of_a_trainer_none_is_said() -> None:
    params = sent(row(), temperature=None, top_p=None, max_tokens=None)["responses_create_params"]
    assert {*params} == {"input", "metadata"}


def test_an_environment_server_gets_an_episode_where_it_takes_no_row() -> None:
    typed = PlayedBy("a", "http://gym", "env", "single_agent_turn")
    body = sent(row(expected=3, id=8, task_source="tools", agent_ref={"name": "a"}), typed)
    params = body["task"]["task_input"].pop("responses_create_params")
    assert params["temperature"] == 0.7
    assert body == {
        "episode_id": {"rollout_id": "r0-run.0", "attempt": 0},
        "task": {
            "task_id": {"taskset": "tools", "task_id": "8"},
            "task_input": {"task_data": {"expected": 3}},
        },
    }


def test_a_materialized_task_is_an_episode_of_an_environment_server_alone() -> None:
    task_row = {
        "task_id": {"taskset": "env:x", "task_id": "0"},
        "task_input": {"responses_create_params": {"input": "hi"}, "task_data": {"k": 1}},
    }
    legacy = PlayedBy("a", "http://gym", "env", "single_agent_turn_legacy")
    body = sent(task_row, legacy)
    assert body["task"]["task_id"] == task_row["task_id"]
    assert body["task"]["task_input"]["task_data"] == {"k": 1}
    assert body["task"]["task_input"]["responses_create_params"]["top_p"] == 0.9
    with pytest.raises(UnplayableRow, match="start the environment server"):
        sent(task_row)


def test_a_flat_row_before_an_environment_server_keeps_its_own_names() -> None:
    legacy = PlayedBy("a", "http://gym", "env", "single_agent_turn_legacy")
    body = sent(row(task_source="tools"), legacy)
    assert "agent_ref" not in body
    assert (body["_ng_task_index"], body["_ng_rollout_index"]) == (5, 2)
