"""`inspect_task`: which task, which samples; and what cannot be trained."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from abut.agents.protocol import is_agent
from tests.kit.stage.rollouts import Stage

pytest.importorskip("inspect_ai")

from inspect_ai import SampleSource, Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    ContentAudio,
    ContentImage,
    ContentText,
)

from abut.envs.signatures import UnplayableRow
from abut.errors import EnvError
from abut.inspect_ai import inspect_task
from tests.kit.stage.inspect_tasks import play_tasks, sums

FILE = """
from inspect_ai import Task, task
from inspect_ai.dataset import json_dataset
from inspect_ai.scorer import includes
from beside import WORD

@task
def letters(word=WORD):
    return Task(dataset=json_dataset("rows.jsonl"), scorer=includes(), metadata={"word": word})
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WORD = 'boat'\n")
    (tmp_path / "rows.jsonl").write_text('{"input": "b?", "target": "1"}\n')
    (tmp_path / "letters.py").write_text(FILE)
    return tmp_path / "letters.py"


@task
def counted(first: int = 1) -> Task:
    return Task(dataset=[Sample(input=f"{first}?"), Sample(input="2?")])


def test_a_task_is_an_object_a_function_a_name_or_in_a_file(task_file: Path) -> None:
    assert inspect_task(sums()).name == "sums"
    assert list(inspect_task(counted, task_args={"first": 7}).dataset()["prompt"]) == ["7?", "2?"]
    assert inspect_task("counted").name == "counted"
    path, word = list(sys.path), {"word": "car"}
    in_file = inspect_task(f"{task_file}@letters", task_args=word)
    assert in_file.dataset()["prompt"][0] == "b?"
    assert in_file._task.metadata == word
    assert inspect_task(str(task_file)).name == "letters"  # the only one
    assert sys.path == path


def test_a_task_of_a_package_is_found_by_its_name() -> None:
    agent = inspect_task("inspect_evals/agent_threat_bench_memory_poison", reward="x")
    assert agent.name == "inspect_evals/agent_threat_bench_memory_poison"


def test_something_that_is_not_a_task_is_refused(task_file: Path) -> None:
    with pytest.raises(TypeError, match=r"inspect_task\(7\): int is not a Task of Inspect\nhint: "):
        inspect_task(7)
    with pytest.raises(TypeError, match="str is not a Task of Inspect"):
        inspect_task(lambda: "no")
    with pytest.raises(
        ValueError, match=r"inspect_task\('no/such'\): Inspect does not know this task"
    ):
        inspect_task("no/such")
    with pytest.raises(ValueError, match=r"the tasks of letters.py are letters\nhint: name one"):
        inspect_task(f"{task_file}@words")
    with pytest.raises(FileNotFoundError):
        inspect_task("nowhere.py@letters")
    with pytest.raises(ValueError, match="task_args needs a function or a name"):
        inspect_task(sums(), task_args={"a": 1})
    with pytest.raises(ValueError, match="time_limit=0: must be more than 0 seconds"):
        inspect_task(sums(), time_limit=0)


def test_samples_that_are_made_while_the_task_runs_are_refused() -> None:
    source = SampleSource.from_samples([Sample(input="1?")])
    with pytest.raises(
        ValueError,
        match=r"sums creates its samples while it runs \(SampleSource\), but training",
    ):
        inspect_task(sums(dataset=source))


def test_it_is_an_agent_and_its_dataset_has_ids() -> None:
    agent = inspect_task(sums(), name="mine")
    assert is_agent(agent)
    rows = agent.dataset()
    assert rows.column_names == ["prompt", "environment", "inspect_sample"]
    assert list(rows["environment"]) == ["mine", "mine"]
    assert list(rows["inspect_sample"]) == ['"2+2"', '"3+3"']
    assert list(inspect_task(counted).dataset()["inspect_sample"]) == ["1", "2"]


def test_samples_are_chosen_as_inspect_chooses_them() -> None:
    def ids(**chosen: Any) -> list[Any]:
        task = sums(dataset=[Sample(id=k, input=f"{k}?") for k in range(1, 6)])
        return [json.loads(id_) for id_ in inspect_task(task, **chosen).dataset()["inspect_sample"]]

    assert ids(limit=2) == [1, 2]
    assert ids(limit=(1, 3)) == [2, 3]
    assert ids(sample_id=4) == [4]
    assert ids(sample_id=[5, 1]) == [5, 1]
    with pytest.raises(ValueError, match=r"sums has no sample '4': it has 1, 2, 3, 4, 5, …"):
        ids(sample_id="4")
    with pytest.raises(
        ValueError, match=r"sums has no samples\nhint: check its dataset, limit and"
    ):
        ids(limit=0)


def test_a_dataset_is_cut_and_shuffled_with_a_seed() -> None:
    agent = inspect_task(sums(dataset=[Sample(input=f"{k}?") for k in range(20)]))
    assert list(agent.dataset(3)["prompt"]) == ["0?", "1?", "2?"]
    drawn = [list(agent.dataset(5, shuffle=True, seed=s)["prompt"]) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_two_samples_of_one_id_are_refused() -> None:
    samples = [Sample(id=1, input="a"), Sample(id="1", input="b")]
    with pytest.raises(ValueError, match="sums has two samples with the id '1'"):
        inspect_task(sums(dataset=samples))


def test_a_conversation_is_shown_with_its_roles() -> None:
    messages = [ChatMessageSystem(content="Count."), ChatMessageUser(content="2+2?")]
    agent = inspect_task(sums(dataset=[Sample(input=messages)]))
    assert list(agent.dataset()["prompt"]) == ["system: Count.\n\nuser: 2+2?"]


def test_a_sandbox_on_this_machine_has_to_be_asked_for() -> None:
    of_sample = [Sample(input="1?", sandbox="local")]
    for made in (sums(sandbox="local"), sums(dataset=of_sample)):
        with pytest.raises(ValueError, match='sums has the sandbox "local", which runs') as raised:
            inspect_task(made)
        assert (
            'hint: pass sandbox="docker" to run them in containers, or sandbox="local" to '
            "allow this"
        ) in str(raised.value)
        inspect_task(made, sandbox="local")
        inspect_task(made, sandbox="docker")


def test_sound_is_refused_in_the_dataset() -> None:
    content = [ContentText(text="What?"), ContentAudio(audio="a.mp3", format="mp3")]
    agent = inspect_task(sums(dataset=[Sample(id="x", input=[ChatMessageUser(content=content)])]))
    with pytest.raises(ValueError, match="sample 'x' of sums has content of type 'audio'"):
        agent.dataset()


def test_a_row_of_another_dataset_ends_the_batch(stage: Stage) -> None:
    agent = inspect_task(sums(), log_dir=None)
    with pytest.raises(UnplayableRow, match="needs the column 'inspect_sample' of its dataset"):
        play_tasks(stage, rows=[(agent, {"prompt": "hi"})])
    with pytest.raises(
        UnplayableRow, match=r"sums has no sample 'no'\nhint: create the dataset again with"
    ):
        play_tasks(stage, rows=[(agent, {"prompt": "hi", "inspect_sample": '"no"'})])


def test_an_image_is_refused_where_the_policy_takes_none(stage: Stage) -> None:
    content = [ContentText(text="What?"), ContentImage(image="data:image/png;base64,AA==")]
    agent = inspect_task(sums(dataset=[Sample(id="x", input=[ChatMessageUser(content=content)])]))
    with pytest.raises(EnvError, match="sample 'x' of sums has an image, but the policy does") as e:
        play_tasks(stage, agent)
    assert "hint: train a vision-language model, or leave the sample out with sample_id=" in str(
        e.value
    )


def test_the_task_of_the_user_stays_as_it_is(stage: Stage) -> None:
    task = sums(setup=None, metadata={"mine": 1})
    before = {name: vars(task)[name] for name in vars(task)}
    agent = inspect_task(task, log_dir=None)
    play_tasks(stage, agent)
    assert vars(task) == before


def test_it_stays_in_its_process() -> None:
    import pickle

    with pytest.raises(TypeError, match="InspectTask cannot be pickled"):
        pickle.dumps(inspect_task(sums()))


def test_limits_of_a_sample_are_whole_seconds_and_the_smallest_holds() -> None:
    def limit(own: int | None, given: float | None, run: float | None) -> int | None:
        return inspect_task(sums(time_limit=own), time_limit=given)._time_limit_s(run)

    assert limit(None, None, None) is None
    assert limit(None, None, 6.2) == 7
    assert limit(5, None, 6.2) == 5
    assert limit(5, 0.5, 900.0) == 1
