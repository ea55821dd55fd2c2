"""Names from the agent's client to the loss: which conversations are rows, and with what."""

import itertools
from pathlib import Path
from typing import Any

import openai
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from abut import AgentResult, Endpoint, agent  # noqa: E402
from tests.kit.clients.trained import ROLLOUTS, Trained  # noqa: E402
from tests.kit.stage.agents import LOOKUP, user  # noqa: E402

SAYS = ("White opens.", "Black answers.", "White goes on.", "A fair game.", "A title.")
TITLE, JUDGE = SAYS[4], SAYS[3]


async def ask(endpoint: Endpoint, messages: list[Any], **more: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        reply = await client.chat.completions.create(model="m", messages=messages, **more)
    return {"role": "assistant", "content": reply.choices[0].message.content}


def a_game(*rewards: dict[str, float | None]) -> Any:
    """Two players, a judge and a title; in each rollout these rewards, in the order of their ends.

    The players hear the same, so that only their names tell them apart.
    """
    of_rollout = itertools.cycle(rewards)

    @agent
    async def game(endpoint: Endpoint) -> AgentResult:
        white, black = endpoint.named("white"), endpoint.named("black")
        opening: list[Any] = [user("play")]
        opening += [await ask(white, opening, tools=[LOOKUP]), user("go on")]
        await ask(black, [user("play")], tools=[LOOKUP])
        await ask(white, opening, tools=[LOOKUP])
        await ask(endpoint.named("judge", train=False), [user("Who won?")])
        await ask(endpoint, [user("A title?")])
        return AgentResult(0.5, rewards=next(of_rollout))

    return game


def advantages(trained: Trained) -> list[dict[str | None, list[float]]]:
    """Of each rollout, by the names of its conversations."""
    batch = trained.batch
    found: list[dict[str | None, list[float]]] = [{} for _ in range(ROLLOUTS)]
    for row, (k, j) in enumerate(batch.places):
        found[k][batch.conversations[k][j].name] = batch.advantages[row]
    return found


def test_players_are_rows_with_advantages_of_their_own_and_a_judge_is_none(tmp_path: Path) -> None:
    game = a_game({"white": 1.0, "black": -2.0}, {"white": 3.0, "black": -2.0})
    trained = Trained(game, SAYS, tmp_path)
    trained.check(3, untrained=[JUDGE])
    found = advantages(trained)
    low, high = sorted(found, key=lambda names: names["white"])
    assert low["white"] == pytest.approx([-0.7071] * 2, abs=1e-3)
    assert high["white"] == pytest.approx([0.7071] * 2, abs=1e-3)
    for of_rollout in found:
        assert of_rollout.keys() == {"white", "black", None}
        assert of_rollout["black"] == [0.0], "both lost alike"
        assert of_rollout[None] == [0.0], "both rollouts have one reward"


def test_a_conversation_without_a_score_is_no_row(tmp_path: Path) -> None:
    game = a_game({"white": 1.0, "black": None}, {"white": 2.0, "black": None})
    trained = Trained(game, SAYS, tmp_path)
    trained.check(2, untrained=[JUDGE, SAYS[1]])
    assert {frozenset(names) for names in advantages(trained)} == {frozenset(("white", None))}


def test_a_row_without_a_score_trains_nothing(tmp_path: Path) -> None:
    """TRL needs it all the same."""

    @agent
    async def unscored(endpoint: Endpoint) -> AgentResult:
        await ask(endpoint.named("white"), [user("play")])
        return AgentResult(0.5, rewards={"white": None})

    trained = Trained(unscored, SAYS, tmp_path)
    assert trained.rows == []


def test_what_was_not_measured_trains_nothing_whatever_its_parts_earned(tmp_path: Path) -> None:
    @agent
    async def broke(endpoint: Endpoint) -> AgentResult:
        await ask(endpoint.named("white"), [user("play")])
        await ask(endpoint.named("black"), [user("play")])
        return AgentResult(1.0, measured=False, rewards={"white": 1.0, "black": 2.0})

    trained = Trained(broke, SAYS, tmp_path)
    assert trained.rows == []
    assert [len(rows) for rows in trained.batch.conversations] == [1, 1]


def test_a_title_is_left_out_where_the_config_says_so(tmp_path: Path) -> None:
    trained = Trained(a_game({"white": 1.0}), SAYS, tmp_path, auxiliary="leave_out")
    trained.check(2, untrained=[JUDGE, TITLE])
