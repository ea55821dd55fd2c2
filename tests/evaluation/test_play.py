"""Rollouts without a trainer: every kind of environment, policy and row that `play` takes."""

import asyncio
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.demo.model import ASSETS
from abut.errors import EnvError, SamplerError
from abut.evaluation import PlayInterrupted
from abut.records import read_records
from abut.samplers import SampleRequest, ScriptedReplies, ScriptedSampler
from abut.samplers.settings import SamplingSettings

pytest.importorskip("transformers", reason="the tokenizer is transformers'")

DEMO = str(ASSETS)


class Guess:
    """Ends when the word of the prompt is said, or after two turns; the reward is 1 for it."""

    def __init__(self) -> None:
        self.reward = 0.0
        self.alive = True
        self.guesses: list[str] = []

    def reset(self, seed: str, episode_seed: int = 0) -> tuple[Any, str]:
        self.word = seed.split()[-1]
        return self, f"Which word? ({episode_seed})"

    def step(self, action: str) -> tuple[Any, str]:
        self.guesses.append(action)
        self.reward = float(action == self.word)
        self.alive = not self.reward and len(self.guesses) < 2
        return self, "no"


def rows(*words: str) -> list[dict[str, Any]]:
    return [{"prompt": f"the word is {word}"} for word in words]


def said(rollout: abut.Rollout) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] == "assistant"]


def test_rollouts_come_row_by_row_each_k_times() -> None:
    """The replies depend on the prompt, so a rollout in the wrong place has another reward."""

    def reply(messages: Sequence[Any], turn: int) -> str:
        return "a" if turn == 0 else "b"

    rollouts = abut.play(
        Guess, rows("a", "b", "c"), k=2, sampler=ScriptedReplies(reply), tokenizer=DEMO
    )
    assert [r.index for r in rollouts] == list(range(6))
    assert [r.reward for r in rollouts] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert [said(r) for r in rollouts[::2]] == [["a"], ["a", "b"], ["a", "b"]]


def test_the_draws_of_a_row_are_those_of_an_evaluation_and_differ_by_row() -> None:
    """All rollouts of a row have its episode, and each draws its own samples."""
    requests: list[SampleRequest] = []

    def script(request: SampleRequest) -> Sequence[int]:
        requests.append(request)
        return [request.stop_token_ids[0]]

    config = abut.RolloutConfig(max_completion_tokens=50, max_turns=1)
    one, other = (
        abut.play(
            Guess,
            rows("a", "b"),
            k=2,
            sampler=ScriptedSampler(script),
            tokenizer=DEMO,
            config=config,
        )
        for _ in range(2)
    )
    shown = [r.messages[0]["content"] for r in one]
    assert shown[0] == shown[1] != shown[2] == shown[3]
    assert shown == [r.messages[0]["content"] for r in other]
    seeds = [request.seed for request in requests]
    assert sorted(seeds[:4]) == sorted(seeds[4:])
    assert len(set(seeds[:4])) == 4


def test_a_row_of_scripted_replies_is_exact() -> None:
    """Its tokens are the template's own render of the conversation, up to the last stop token."""
    from transformers import AutoTokenizer

    (rollout,) = abut.play(
        Guess, rows("b"), sampler=ScriptedReplies(["a <b>", "b"]), tokenizer=DEMO
    )
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    whole = tokenizer.apply_chat_template(rollout.messages[:4], tokenize=False)
    assert rollout.columns is not None
    ids = np.concatenate([rollout.columns.prompt_ids, rollout.columns.completion_ids]).tolist()
    assert tokenizer.decode(ids) == whole.rstrip("\n")
    sampled = rollout.columns.env_mask.astype(bool)
    assert (rollout.columns.logprobs[sampled] == 0).all()
    assert rollout.sampled_tokens == sampled.sum()


def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: one.
        b: the other.
    """
    return a + b


def test_a_reply_calls_a_tool_and_reads_its_result() -> None:
    heard: list[Any] = []

    def reply(messages: Sequence[Any], turn: int) -> Any:
        heard.append(messages[-1]["content"])
        if turn == 0:
            return {"tool_calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}]}
        return f"it is {messages[-1]['content']}"

    env = abut.tool_env([add], reward=lambda messages: 0.25)
    (rollout,) = abut.play(
        env,
        [{"prompt": [{"role": "user", "content": "2 + 3?"}]}],
        sampler=ScriptedReplies(reply),
        tokenizer=DEMO,
    )
    assert heard == ["2 + 3?", "5"]
    assert said(rollout)[-1] == "it is 5"
    assert rollout.reward == 0.25


def asks(endpoint: abut.Endpoint, text: str) -> str:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        f"{endpoint.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def test_an_agent_is_played_behind_a_gateway_that_stops() -> None:
    pytest.importorskip("aiohttp")
    bases: list[str] = []

    @abut.agent
    def agent(endpoint: abut.Endpoint, prompt: Any) -> float:
        bases.append(endpoint.base_url)
        return float(asks(endpoint, prompt) == "word b")

    def reply(messages: Sequence[Any], turn: int) -> str:
        return f"word {messages[-1]['content'][-1]}"

    rollouts = abut.play(agent, rows("b", "c"), sampler=ScriptedReplies(reply), tokenizer=DEMO, k=2)
    assert [r.reward for r in rollouts] == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(bases[0], timeout=5)


def test_rows_name_their_environments() -> None:
    class Never(Guess):
        def step(self, action: str) -> tuple[Any, str]:
            super().step(action)
            self.reward = -1.0
            return self, ""

    named = [row | {"environment": name} for row, name in zip(rows("a", "a"), "gn", strict=True)]
    rollouts = abut.play(
        {"g": Guess, "n": Never}, named, sampler=ScriptedReplies(["a", "a"]), tokenizer=DEMO
    )
    assert [r.reward for r in rollouts] == [1.0, -1.0]


def test_rows_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "word a"}\n\n{"prompt": "word b"}\n')
    rollouts = abut.play(Guess, path, sampler=ScriptedReplies(["a", "x"]), tokenizer=DEMO)
    assert [r.reward for r in rollouts] == [1.0, 0.0]


def test_a_model_plays_without_dropout_and_trains_on() -> None:
    pytest.importorskip("torch")
    from tests.kit.training.models import rank_model

    tokenizer, model = rank_model(attention_dropout=0.9)
    model.train()
    config = abut.RolloutConfig(max_turn_tokens=8, max_turns=2)
    settings = SamplingSettings(temperature=0.5)

    def played() -> list[abut.Rollout]:
        return abut.play(
            Guess,
            rows("a", "b"),
            k=2,
            sampler=model,
            tokenizer=tokenizer,
            sampling=settings,
            config=config,
        )

    one, other = played(), played()
    assert model.training
    ids = [r.columns.completion_ids.tolist() for r in one if r.columns is not None]
    assert ids == [r.columns.completion_ids.tolist() for r in other if r.columns is not None]
    assert len(ids) == 4


def test_it_plays_inside_a_running_loop() -> None:
    """As in a notebook, whose cells run on one."""

    async def cell() -> list[abut.Rollout]:
        return abut.play(Guess, rows("a"), sampler=ScriptedReplies(["a"]), tokenizer=DEMO)

    assert [r.reward for r in asyncio.run(cell())] == [1.0]


def test_records_say_where_a_rollout_belongs(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    abut.play(
        Guess,
        rows("a", "b"),
        k=2,
        sampler=ScriptedReplies(["a", "b"]),
        tokenizer=DEMO,
        recorder=path,
    )
    records = list(read_records(path))
    assert [(r["group"], r["place"]) for r in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {r["mode"] for r in records} == {"eval"}
    assert records[2]["columns"]["prompt"] == "the word is b"


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to a process of one's own")
def test_ctrl_c_keeps_the_rollouts_that_ended(tmp_path: Path) -> None:
    """Two rollouts end; the third is in its step."""
    ended = threading.Event()

    class Slow(Guess):
        def step(self, action: str) -> tuple[Any, str]:
            if self.word == "c":
                os.kill(os.getpid(), signal.SIGINT)
                ended.wait(20)
            return super().step(action)

    config = abut.RolloutConfig(max_rollouts=1)
    with pytest.raises(PlayInterrupted) as interrupted:
        abut.play(
            Slow,
            rows("a", "a", "c"),
            sampler=ScriptedReplies(["a"]),
            tokenizer=DEMO,
            config=config,
            recorder=tmp_path / "eval.jsonl",
        )
    ended.set()
    assert [r.reward for r in interrupted.value.rollouts] == [1.0, 1.0]
    assert str(interrupted.value) == "2 of 3 rollouts had ended"
    assert isinstance(interrupted.value, KeyboardInterrupt)
    assert len(list(read_records(tmp_path / "eval.jsonl"))) == 2


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: play_with(tokenizer=None), TypeError, "tokenizer= is missing"),
    (lambda: play_with(sampler="http://localhost:1", tokenizer=None), TypeError, "tokenizer="),
    (lambda: play_with(sampling=SamplingSettings()), TypeError, "its own settings"),
    (lambda: play_with(sampler=None), TypeError, "sampler must be"),
    (lambda: play_with(k=0), ValueError, "k=0"),
    (lambda: play_with(rows={"prompt": "x"}), TypeError, "rows must be"),
    (lambda: play_with(rows=[{"question": "x"}]), ValueError, "no column 'prompt'"),
    (lambda: play_with(sampler=ScriptedReplies([])), SamplerError, "has 0 replies"),
    (lambda: play_with(sampler=ScriptedReplies([3])), SamplerError, "3 is not a reply"),  # type: ignore[list-item]
    (lambda: play_with(sampler=ScriptedReplies([{}])), SamplerError, "is not a reply"),
    (lambda: ScriptedReplies("hello"), TypeError, "list of replies"),
]


def play_with(rows: Any = ({"prompt": "word a"},), **arguments: Any) -> Any:
    given = {"sampler": ScriptedReplies(["a"]), "tokenizer": DEMO} | arguments
    return abut.play(Guess, rows, **given)


@pytest.mark.parametrize(("call", "kind", "text"), WRONG)
def test_wrong_arguments_are_named(call: Callable[[], Any], kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        play_with(rows=path)
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is not a JSON object"):
        play_with(rows=path)


def test_too_many_failures_raise_and_fewer_are_among_the_rollouts() -> None:
    class Broken(Guess):
        def step(self, action: str) -> tuple[Any, str]:
            if self.word == "b":
                raise OSError("gone")
            return super().step(action)

    arguments: dict[str, Any] = {"sampler": ScriptedReplies(["a", "a"]), "tokenizer": DEMO}
    one, other = abut.play(Broken, rows("a", "b"), **arguments)
    assert (one.reward, one.failed, other.reward, other.failed) == (1.0, False, None, True)
    with pytest.raises(abut.RolloutError, match="1 of 1 rollouts failed") as raised:
        abut.play(Broken, rows("b"), **arguments)
    assert isinstance(raised.value.__cause__, EnvError)


def test_scripted_replies_play_an_environment_that_shows_images() -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("torch")
    from tests.kit.training.vision import qwen3_vl

    shown = abut.Image.of(np.zeros((4, 4, 3), np.uint8))

    class Picture:
        reward, alive = 0.0, True

        def reset(self, seed: str) -> Any:
            return self, [{"type": "image", "image": shown}, {"type": "text", "text": seed}]

        def step(self, action: str) -> Any:
            self.reward, self.alive = float(action == "black"), False
            return self, ""

    sampler = ScriptedReplies(["black"])
    processor = qwen3_vl().processor
    (rollout,) = abut.play(Picture, [{"prompt": "Which?"}], sampler=sampler, tokenizer=processor)
    assert (rollout.error, rollout.reward) == (None, 1.0)
    assert [span.image for span in rollout.images] == [shown]
