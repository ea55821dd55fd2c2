"""Each row is played by the environment that it names."""

from collections.abc import Sequence
from typing import Any

import pytest

from abut.env_route import EnvRoute
from stage import Talk, env

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
        "prompt 3 has no column 'environment', which chooses one of the environments: 'math', "
        "'game'\nhint: add the column to the dataset, or prompt[-1][\"row\"]['environment']"
    )


def test_a_row_that_names_another_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="chess") as raised:
        ROUTE.of_row({"environment": "chess"}, "prompt 3")
    assert str(raised.value) == (
        "prompt 3 has environment='chess', but the environments are: 'math', 'game'\n"
        "hint: make_rollout_func takes them by the names that the column has"
    )


def test_what_is_no_environment_is_named() -> None:
    with pytest.raises(TypeError) as raised:
        EnvRoute({"math": Talk, "game": Talk()})
    assert str(raised.value) == (
        "env['game']: env must be an Env class, a factory without arguments or an environment "
        "pool, got one environment object\n"
        "hint: each rollout needs an environment of its own; pass the class, or lambda: Env(…)"
    )
    with pytest.raises(ValueError, match="empty") as empty:
        EnvRoute({})
    assert str(empty.value) == (
        "env is an empty mapping: no environment can be chosen\n"
        'hint: {"math": MathEnv, "game": GameEnv}'
    )


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
