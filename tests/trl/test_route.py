"""Each row is played by the environment that it names."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest

import abut
from abut.envs.source import bind_all
from abut.errors import TemplateError
from abut.gym import GymEnv
from abut.template.processor import ChatTemplateProcessor
from abut.tools.environment_factory import EnvironmentFactory
from abut.trl.route import EnvRoute
from tests.kit.stage.rollouts import Recording, Stage, Talk, env

MATH, GAME = env(texts=("2 + 2",)), env(texts=("your move",))
ROUTE = EnvRoute({"math": MATH, "game": GAME})


def test_a_row_is_played_by_the_environment_it_names() -> None:
    assert ROUTE.of_row({"environment": "game", "level": 1}, "prompt 0") == (GAME, {"level": 1})
    assert ROUTE.of_row({"environment": "math"}, "prompt 1") == (MATH, {})


def test_a_single_environment_plays_every_row_and_keeps_the_column() -> None:
    columns = {"environment": "the column of somebody else"}
    assert EnvRoute(Talk).of_row(columns, "prompt 0") == (Talk, columns)


@pytest.mark.parametrize("columns", [{}, {"environment": None}], ids=["absent", "None"])
def test_a_row_that_names_none_is_an_error(columns: Any) -> None:
    with pytest.raises(ValueError, match="no column") as raised:
        ROUTE.of_row(columns, "prompt 3")
    assert str(raised.value) == (
        "prompt 3 has no column 'environment', which must name one of the environments: 'math', "
        "'game'\n"
        "hint: add the column to the dataset, or set prompt[-1][\"row\"]['environment']"
    )


def test_a_row_that_names_another_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="chess") as raised:
        ROUTE.of_row({"environment": "chess"}, "prompt 3")
    assert str(raised.value) == (
        "prompt 3 has environment='chess', but the environments are: 'math', 'game'\n"
        "hint: use the names in the column as the keys of env= in make_rollout_func"
    )


def test_a_row_that_names_several_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"has environment=\['math', 'game'\], but"):
        ROUTE.of_row({"environment": ["math", "game"]}, "prompt 3")


def test_a_row_anywhere_in_the_dataset_that_names_another_one_is_an_error(
    called: Any, hf_tokenizer: Any
) -> None:
    datasets = pytest.importorskip("datasets")
    names = ["game", "math", None, "game", "math", "game", "maths", "game"]
    dataset = datasets.Dataset.from_dict({"prompt": ["p"] * 8, "environment": names})
    with pytest.raises(ValueError, match="maths") as raised:
        ROUTE.check_column(dataset)
    assert str(raised.value) == (
        "row 6 of the dataset has environment='maths', but the environments are: 'math', 'game'\n"
        "hint: use the names in the column as the keys of env= in make_rollout_func"
    )
    ROUTE.check_column(dataset.select(range(6)))
    ROUTE.check_column(dataset.to_iterable_dataset())  # which only its batches can tell
    EnvRoute(Talk).check_column(dataset)


class ForTRL:
    """For TRL's `environment_factory`."""

    def __init__(self, kind: str = "small") -> None:
        self.kind = kind

    def reset(self, **row: Any) -> str:
        return ""

    def look(self) -> str:
        """Look around."""
        return self.kind


def annotated() -> ForTRL:
    raise AssertionError("its annotation says what it makes")


@pytest.mark.parametrize(
    "factory",
    [ForTRL, functools.partial(ForTRL, kind="large"), annotated, functools.partial(annotated)],
)
def test_a_factory_of_a_class_for_trl_is_found_without_a_call(factory: Any) -> None:
    pytest.importorskip("transformers")
    (kind,) = EnvRoute(factory).kinds
    assert isinstance(kind, EnvironmentFactory)
    assert [tool["function"]["name"] for tool in kind.tools] == ["look"]


def test_what_is_no_environment_is_named() -> None:
    with pytest.raises(TypeError) as raised:
        EnvRoute({"math": Talk, "game": Talk()})
    assert str(raised.value) == (
        "env['game']: env must be an Env class, a function without arguments that returns one, "
        "or an environment pool, got one environment object\nhint: each rollout needs its own "
        "environment, so pass the class, or lambda: Env(…)"
    )
    with pytest.raises(ValueError, match="empty") as empty:
        EnvRoute({})
    assert str(empty.value) == (
        "env is an empty mapping, so there is no environment to choose\n"
        'hint: env={"math": MathEnv, "game": GameEnv}'
    )


def test_one_processor_does_not_serve_environments_with_different_tools(
    hf_tokenizer: Any,
) -> None:
    def add(a: int) -> int:
        """Add one.

        Args:
            a: A number.
        """
        return a + 1

    def now() -> str:
        """Tell the time."""
        return "noon"

    kinds = [abut.tool_env(tools, reward=lambda messages: 1.0) for tools in ([add], [add, now])]
    given = ChatTemplateProcessor(hf_tokenizer, tools=[add, now])
    with pytest.raises(TemplateError) as refused:
        bind_all(kinds, lambda tools: given)
    assert str(refused.value) == (
        "one processor= cannot serve environments with different tools: add; add, now\nhint: "
        "leave processor= out, so that each environment's template shows its own tools"
    )
    bind_all([kinds[0], kinds[0]], lambda tools: given)
    bind_all([GymEnv(MATH), kinds[0], GAME], lambda tools: given)


class Pool:
    """Lends games."""

    def __init__(self) -> None:
        self.lent: list[int] = []

    async def lend(self, task: Any) -> Any:
        self.lent.append(task.index)
        return GAME()


def test_classes_and_pools_play_their_rows_of_one_batch(called: Any, hf_tokenizer: Any) -> None:
    pool = Pool()
    rows: Sequence[str] = ("game", "math", "math", "game")
    prompts = [[{"role": "user", "content": "go", "row": {"environment": r}}] for r in rows]
    out = called(prompts, {"math": MATH, "game": pool})
    said = [messages[1]["content"] for messages in out["messages"]]
    assert said == ["your move", "2 + 2", "2 + 2", "your move"]
    assert sorted(pool.lent) == [0, 3]


def test_environments_with_tools_each_have_a_template_that_shows_their_own(
    hf_tokenizer: Any, tokenizer: Any
) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first one.
            b: The second one.
        """
        return a + b

    def now() -> str:
        """Tell the time."""
        return "noon"

    route = EnvRoute(
        {
            "math": abut.tool_env([add], reward=lambda messages: 1.0),
            "time": abut.tool_env([now], reward=lambda messages: 2.0),
            "game": GAME,
            "gym": GymEnv(MATH),
        }
    )
    shown: list[Sequence[Any]] = []

    def processor_with(tools: Sequence[Any]) -> Any:
        shown.append(tools)
        return ChatTemplateProcessor(hf_tokenizer, tools=tools or None)

    processor, for_task = bind_all(route.kinds, processor_with)
    stage = Stage(tokenizer, processor)
    kinds = [
        route.of_row({"environment": name}, name)[0] for name in ("game", "time", "math", "time")
    ]
    tasks = [for_task(task) for task in stage.tasks(kinds, seed="Begin.")]
    rollouts = stage.engine(Recording(stage.says())).run(tasks)
    prompts = [tokenizer.decode(rollout.prompt_ids) for rollout in rollouts]
    assert [('"add"' in prompt, '"now"' in prompt) for prompt in prompts] == [
        (False, False),
        (False, True),
        (True, False),
        (False, True),
    ]
    assert [rollout.reward for rollout in rollouts][1:] == [2.0, 1.0, 2.0]
    assert len(shown) == 3, "one template for each"
