"""`state`: a class whose public methods are the tools, with an object for each rollout."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut.demo.model import ASSETS
from abut.envs.signatures import UnplayableRow
from abut.errors import InvalidAction
from abut.samplers import ScriptedReplies
from tests.kit.training.example_run import blocks_of

CONFIG = abut.RolloutConfig(retries=0, max_failed_frac=1, max_turns=8)


class Cart:
    """A cart with a limit of its row."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.items: list[str] = []
        self.threads = {threading.get_ident()}

    def put(self, item: str) -> int:
        """Put something in.

        Args:
            item: Its name.
        """
        self.threads.add(threading.get_ident())
        if len(self.items) == self._most:
            raise InvalidAction("The cart is full.")
        self.items.append(item)
        return len(self.items)

    def look(self) -> list[str]:
        """Say what is in."""
        return self.items

    def _private(self) -> None: ...


def reply(messages: Sequence[Any], turn: int) -> Any:
    calls = [{"name": "put", "arguments": {"item": str(turn)}}, {"name": "look", "arguments": {}}]
    return {"content": None, "tool_calls": calls} if turn < 2 else "done"


def play(env: Any, *rows: dict[str, Any], k: int = 1) -> list[abut.Rollout]:
    sampler = ScriptedReplies(reply)
    return abut.play(env, rows, k=k, sampler=sampler, tokenizer=str(ASSETS), config=CONFIG)


def test_each_rollout_has_an_object_which_the_reward_sees() -> None:
    made: list[Cart] = []

    def reward(messages: Sequence[Any], state: Cart) -> float:
        made.append(state)
        return float(len(state.items))

    env = abut.tool_env(state=Cart, reward=reward)
    assert [tool["function"]["name"] for tool in env.tools] == ["look", "put"]
    rollouts = play(env, {"prompt": "a", "most": 1}, {"prompt": "b", "most": 2}, k=2)
    assert [r.reward for r in rollouts] == [1.0, 1.0, 2.0, 2.0]
    assert len({id(cart) for cart in made}) == 4
    assert all(len(cart.threads) == 1 for cart in made)


def test_a_tool_that_raises_invalid_action_tells_the_policy_in_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (rollout,) = play(
        abut.tool_env(state=Cart, reward=lambda messages: 1.0), {"prompt": "a", "most": 1}
    )
    told = [m["content"] for m in rollout.messages if m["role"] == "tool"]
    assert told == ["1", '["0"]', '{"error": "The cart is full."}', '["0"]']
    assert not [record for record in caplog.records if record.name == "abut.tools.toolbox"]


def test_a_row_must_have_what_the_class_needs() -> None:
    with pytest.raises(UnplayableRow, match=r"Cart.__init__ needs the column 'most'"):
        play(abut.tool_env(state=Cart, reward=lambda messages: 1.0), {"prompt": "a"})


def test_methods_and_functions_may_not_share_a_name() -> None:
    def put(item: str) -> str:
        """Put something.

        Args:
            item: Its name.
        """
        return item

    with pytest.raises(ValueError, match="two tools have the name 'put'"):
        abut.tool_env([put], state=Cart, reward=len)
    with pytest.raises(TypeError, match="state must be a class, got Cart\nhint: "):
        abut.tool_env(state=Cart(1), reward=len)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tool_env got no tools\nhint: "):
        abut.tool_env(reward=len)


def test_the_example_of_the_page_is_scored_by_its_state() -> None:
    block = next(b for b in blocks_of("how-to/tools.md") if "class Cart" in b)
    example: dict[str, Any] = {}
    exec(block, example)

    def buys(messages: Sequence[Any], turn: int) -> Any:
        if turn == 2:
            return "done"
        call = {"name": "buy", "arguments": {"item": "pen", "price": 3.0 - turn}}
        return {"content": None, "tool_calls": [call]}

    (rollout,) = abut.play(
        example["env"],
        [{"prompt": "Buy a pen.", "budget": 2.5, "wanted": ["pen"]}],
        sampler=ScriptedReplies(buys),
        tokenizer=str(ASSETS),
    )
    told = [m["content"] for m in rollout.messages if m["role"] == "tool"]
    assert told == ['{"error": "Only 2.5 is left."}', "0.5 is left."]
    assert rollout.reward == 1.0
