"""Each message of docs/troubleshooting.md is what abut says when somebody makes the mistake."""

import copy
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("openai")

import openai

import abut
from abut.demo.model import load_demo_tokenizer
from abut.envs.guarded import check_reply
from abut.rollout.config import RolloutConfig
from abut.samplers import ScriptedReplies
from abut.trl import Returns, env_reward, make_rollout_func
from scripts.docs.messages import all_messages
from tests.kit.checkout import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^### ([^\n]+)\n\n```text\n(.*?)\n```\n\n(.*?)(?=\n#|\Z)", PAGE, re.M | re.S)
SHOWN = {title: message for title, message, _ in SECTIONS}
SOURCE_ALONE = ("abut.trl needs TRL", "The server returns the wrong logprobs")
"""Nobody here is without TRL, or has such a server: found among the messages of the code."""

shared = openai.AsyncOpenAI(base_url="http://replaced", api_key="replaced", max_retries=0)


class Guess:
    reward, alive = 0.0, True

    def reset(self, seed: str) -> Any:
        return self, "Guess."

    def step(self, action: str) -> Any:
        self.alive = False
        return self, ""


def guess(**changes: Any) -> Any:
    """An environment of that name with something changed."""
    return type("Guess", (Guess,), changes)


def play(env: Any, rollouts: int = 1, *, tokenizer: Any = None, says: str = "4", **c: Any) -> Any:
    return abut.play(
        env,
        [{"prompt": "go"}] * rollouts,
        sampler=ScriptedReplies(lambda messages, turn: says),
        tokenizer=tokenizer or load_demo_tokenizer(),
        config=RolloutConfig(**{"retries": 0} | c),
    )


def asks(returns: Any, **request: Any) -> Any:
    async def solve(endpoint: Any) -> Any:
        client = shared.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
        ask = [{"role": "user", "content": "hi"}]
        await client.chat.completions.create(model="policy", messages=ask, **request)
        return returns

    return abut.agent(solve)


def without_reward() -> Any:
    class Guess:
        alive = True

        def reset(self, seed: str) -> Any:
            return self, "Guess."

        def step(self, action: str) -> Any: ...

    return Guess


def with_template(template: str | None) -> Any:
    tokenizer = copy.deepcopy(load_demo_tokenizer())
    tokenizer.chat_template = template
    return tokenizer


COUNTER = (
    "{% for m in messages %}{{ messages|length }}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def needs_level(self: Any, seed: str, *, level: int) -> Any: ...
def no_seed(self: Any) -> Any: ...
def made_with(self: Any, level: int) -> None: ...
def add(a, b): ...  # type: ignore[no-untyped-def]
def solve(endpoint: Any, question: str) -> float: ...


async def silent(endpoint: Any) -> float:
    return 1.0


silent.__name__ = "solve"


def slow(self: Any, action: str) -> Any:
    time.sleep(0.5)
    return self, ""


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "One environment object": lambda called: make_rollout_func(Guess()),
    "A constructor with arguments": lambda called: make_rollout_func(guess(__init__=made_with)),
    "reset takes no seed": lambda called: make_rollout_func(guess(reset=no_seed)),
    "step returns text only": lambda called: play(guess(step=lambda self, action: "done")),
    "No attribute reward": lambda called: play(without_reward()),
    "A missing column": lambda called: play(guess(reset=needs_level)),
    "Rollouts failed": lambda called: play(guess(step=lambda self, action: 1 / 0), 4),
    "A step takes too long": lambda called: play(guess(step=slow), step_timeout_s=0.2),
    "A function that is not an agent": lambda called: make_rollout_func(solve),
    "A tool without a docstring": lambda called: abut.tool_env([add]),
    "The agent made no call": lambda called: play(abut.agent(silent)),
    "response_format is not enforced": lambda called: play(
        asks(1.0, response_format={"type": "json_object"})
    ),
    "The agent does not return a reward": lambda called: play(asks("It is 4.")),
    "credit and branch need abut's trainer": lambda called: called(
        ["go"] * 2, Guess, credit=Returns()
    ),
    "env_reward without abut's rollout function": lambda called: env_reward(["4"]),
    "Two system messages": lambda called: called(
        [[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]],
        Guess,
        system_prompt="c",
    ),
    "The column environment": lambda called: called(["go"], {"math": Guess}),
    "The policy never sees the prompt": lambda called: called(
        ["What is two plus three?", "What is two plus four?"], Guess
    ),
    "No rollout gets beyond its first turn": lambda called: play(
        guess(step=lambda self, action: (self, "again")),
        32,
        says="a long answer that does not fit",
        max_completion_tokens=3,
    ),
    "Every rollout runs into max_turns": lambda called: play(
        guess(step=lambda self, action: (self, "again")), 32
    ),
    "No chat template": lambda called: play(Guess, tokenizer=with_template(None)),
    "The template depends on the history": lambda called: play(
        Guess, tokenizer=with_template(COUNTER)
    ),
}


@pytest.mark.parametrize("title", MISTAKES)
def test_the_mistake_gets_the_message(
    title: str, called: Any, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    with caplog.at_level(logging.WARNING, logger="abut"):
        try:
            MISTAKES[title](called)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    text = "\n".join([*said, *caplog.messages])
    assert SHOWN[title] in text, text


@pytest.mark.parametrize("title", SOURCE_ALONE)
def test_the_message_is_in_the_code(title: str) -> None:
    def could_be(message: str) -> bool:
        pattern = re.sub(r"\\{.*?\\}|\{.*?\}", ".+?", re.escape(message).replace(r"\{", "{"))
        return re.fullmatch(pattern, SHOWN[title], re.S) is not None

    assert any(could_be(message.text) for message in all_messages()), SHOWN[title]
    assert not could_be("another message")


def test_every_section_is_tried_and_says_why_and_what_to_do() -> None:
    assert set(SHOWN) == {*MISTAKES, *SOURCE_ALONE}
    assert len(SHOWN) >= 20
    for title, _, advice in SECTIONS:
        assert re.match(r"\*\*Why:\*\* .+\*\*Do:\*\*\s", advice, re.S), title


def test_without_a_mistake_there_is_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    (rollout,) = play(Guess)
    env, _ = check_reply(Guess(), "reset", Guess().reset("go"))
    assert (rollout.error, env.alive, caplog.messages) == (None, True, [])
