"""TRL's environment classes: the same conversation, token for token, as in TRL's own loop."""

import asyncio
import copy
import json
import logging
import signal
import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.envs.task import RolloutTask  # noqa: E402
from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.template.processor import ChatTemplateProcessor  # noqa: E402
from abut.tools.environment_factory import makes_environment_for_trl  # noqa: E402
from abut.trl import from_environment_factory, make_rollout_func, scored_only  # noqa: E402
from tests.kit.data.templates import CHATML, SHOWN  # noqa: E402
from tests.kit.stage.rollouts import LIMIT_S, Batched, Recording, Stage, Talk, assert_done  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402
from tests.kit.training.ranks import run_ranks  # noqa: E402


class Guess:
    """As TRL's documentation has them: guess a number that only the row knows."""

    made: "list[Guess]"

    def __init__(self) -> None:
        self.calls: list[Any] = []
        type(self).made.append(self)

    def reset(self, secret: int, **row: Any) -> str | None:
        self.secret, self.row = secret, row
        self.calls.clear()
        return f"\nThe number has {len(str(secret))} digits." if secret else None

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: Your guess.

        Returns:
            Whether it is higher or lower.
        """
        self.calls.append(number)
        if number < 0:
            raise ValueError(f"{number} is negative")
        return "right" if number == self.secret else "higher" if number < self.secret else "lower"

    async def tries(self) -> dict[str, Any]:
        """
        Count the guesses.

        Returns:
            Their number and the last one.
        """
        self.calls.append("tries")
        return {"tries": len(self.calls), "last": None}

    def get_reward(self) -> float:
        return 1.0 / len(self.calls) if self.secret in self.calls else 0.0

    def _hidden(self) -> None:
        raise AssertionError("no tool")


@pytest.fixture
def guess() -> Any:
    """A class of its own for each test, which knows what was made of it."""
    return type("Guess", (Guess,), {"made": []})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def guessed(number: int) -> str:
    return call("guess", number=number)


# What the policy says in the turns of each row, by the number that it looks for.
TURNS = {
    42: [
        "Let me see.\n" + guessed(50) + "\n" + guessed(-1) + "\n" + call("look"),
        call("tries"),
        guessed(42),
        "It is 42.",
    ],
    7: [guessed(9), '<tool_call>\n{"name": "guess", "arguments": }\n</tool_call>', "never said"],
    0: ["I do not know."],
}

THINKING = {
    42: [
        "<think>\nHigher than 40?\n\nPerhaps.\n</think>\n\nLet me see.\n" + guessed(50),
        "<think>\nLower.\n</think>\n\n" + guessed(41) + "\n" + call("look"),
        "<think>\n\n</think>\n\n" + guessed(42),
        "<think>\nRight.\n</think>\n\nIt is 42.",
    ],
    7: [
        "<think> Nine? </think>" + guessed(9),
        '<think>\nNo.\n</think>\n\n<tool_call>\n{"name": "guess", "arguments": }\n</tool_call>',
    ],
    0: ["<think>\n\n  Hm.  \n\n</think>\n\n\n  I do not know.  \n"],
}


class Both:
    """One batch of `GRPOTrainer`, with TRL's own loop and with ours, on the same words."""

    def __init__(self, tokenizer: Any, model: Any, folder: Path, guess: Any) -> None:
        self.tokenizer, self.model, self.folder, self.guess = tokenizer, model, folder, guess
        self.thinking = False
        self.say(TURNS)

    def say(self, turns: dict[int, list[str]]) -> None:
        """Have the policy say other words in the turns of each row."""
        self.ids = {
            secret: [[*self.tokenizer.encode(text), self.tokenizer.eos_token_id] for text in texts]
            for secret, texts in turns.items()
        }

    def spoken(self, prompt_ids: Any) -> list[int]:
        """What the policy says after a prompt."""
        text = self.tokenizer.decode(prompt_ids)
        secret = int(text.partition("Row ")[2].partition(".")[0])
        return self.ids[secret][text.count("<|im_start|>assistant") - 1]

    def play(self, *, columns: bool, **how: Any) -> Any:
        """Play and score one batch; returns what `_generate` gave, and the rewards."""
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
        from trl.chat_template_utils import get_training_chat_template

        tokenizer = copy.deepcopy(self.tokenizer)
        if not columns:  # TRL changes to this template by itself
            tokenizer.chat_template = get_training_chat_template(tokenizer)
        rows = [{"prompt": [{"role": "user", "content": f"Row {n}."}], "secret": n} for n in TURNS]
        if not columns:
            for row in rows:
                row["prompt"][0]["row"] = {"secret": row.pop("secret")}
        trainer = GRPOTrainer(
            model=self.model(),
            args=GRPOConfig(
                output_dir=str(self.folder),
                per_device_train_batch_size=6,
                num_generations=2,
                max_completion_length=512,
                shuffle_dataset=False,
                chat_template_kwargs={"enable_thinking": self.thinking},
                **CPU,
            ),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            **how,
        )
        generate, rewards = trainer._generate, trainer._calculate_rewards
        kept = SimpleNamespace()

        def keep(prompts: Any) -> Any:
            kept.generated = generate(prompts)
            return kept.generated

        def keep_rewards(*args: Any) -> Any:
            kept.rewards = rewards(*args)
            return kept.rewards

        def say(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            return [list(self.spoken(ids)) for ids in prompt_ids], None

        trainer._generate, trainer._calculate_rewards = keep, keep_rewards
        trainer._generate_single_turn = say
        trainer._generate_and_score_completions([row for row in rows for _ in range(2)])
        kept.metrics = [
            (name, values[0])
            for name, values in trainer._metrics["train"].items()
            if name.startswith("tools/")
        ]
        kept.prompt_ids, kept.completion_ids, kept.mask = kept.generated[:3]
        kept.calls = sorted(
            (environment.secret, environment.calls)
            for environment in self.guess.made
            if hasattr(environment, "secret")
        )
        self.guess.made.clear()
        return kept


@pytest.fixture
def both(qwen3: Any, tiny_model: Any, tmp_path: Path, guess: Any) -> Both:
    def model() -> Any:
        return tiny_model(
            vocab_size=len(qwen3),
            hidden_size=16,
            eos_token_id=qwen3.eos_token_id,
            pad_token_id=qwen3.pad_token_id,
        )

    return Both(qwen3, model, tmp_path, guess)


def test_the_same_words_give_the_rows_of_trls_own_loop(both: Both) -> None:
    theirs = both.play(columns=True, environment_factory=both.guess)

    rollout_func = make_rollout_func(
        both.guess, sampler=Batched(lambda request: both.spoken(request.prompt_ids))
    )
    seen: list[Any] = []

    said: list[Any] = []
    metrics: dict[str, float] = {}

    def reward_func(
        environments: Any, env_reward: Any, completions: Any, messages: Any, **kwargs: Any
    ) -> Any:
        seen.extend(environments)
        said.extend(completions)
        for heard, completion in zip(messages, completions, strict=True):
            assert heard[-len(completion) :] == completion
        metrics.update(
            (name, values[0])
            for name, values in kwargs["log_metric"].__self__._pending_metrics.items()
            if name.startswith("tools/")
        )
        return env_reward

    reward_func.__abut_scored_only__ = True  # type: ignore[attr-defined]
    ours = both.play(columns=False, rollout_func=rollout_func, reward_funcs=reward_func)

    assert said == theirs.generated[3]
    by_tool = {name: metrics.pop(name) for name in list(metrics) if name.count("/") == 2}
    assert metrics == pytest.approx(dict(theirs.metrics))  # TRL divides in float32
    assert sum(v for name, v in by_tool.items() if "call_frequency" in name) <= 12 / 6
    assert "tools/failure_frequency/guess" in by_tool
    assert metrics["tools/call_frequency"] == 12 / 6
    assert metrics["tools/failure_frequency"] == 4 / 12
    assert ours.prompt_ids == theirs.prompt_ids
    assert ours.completion_ids == theirs.completion_ids
    assert ours.mask == theirs.mask
    assert ours.rewards.tolist() == theirs.rewards.tolist()
    assert ours.calls == theirs.calls
    assert sorted({tuple(calls) for _, calls in ours.calls}, key=str) == [
        (),
        (50, -1, "tries", 42),
        (9,),
    ]
    assert sorted(set(ours.rewards.flatten().tolist())) == [0.0, 0.25]
    texts = [both.tokenizer.decode(ids) for ids in ours.completion_ids]
    errors = "<tool_response>\n{'error': '-1 is negative'}\n</tool_response>\n"
    errors += "<tool_response>\n{'error': 'Tool look not found.'}\n</tool_response>"
    assert sum(errors in text for text in texts) == 2
    assert {type(environment).__name__ for environment in seen} == {"Guess"}
    assert len(seen) == 6


@pytest.mark.slow
def test_ranks_with_unequal_calls_log_what_trls_own_loop_does(qwen3: Any, tmp_path: Path) -> None:
    found = []
    for loop in ("trl", "ours"):
        (tmp_path / loop).mkdir()
        found += run_ranks("tools", tmp_path / loop, loop)
    assert found[0]["tools/call_frequency"] == (1 + 3) / 2
    assert found[0]["tools/failure_frequency"] == 1 / (1 + 3)
    assert found == [pytest.approx(found[0])] * 4


def test_the_same_thoughts_give_the_completions_of_trls_own_loop(both: Both) -> None:
    both.thinking = True
    both.say(THINKING)
    theirs = both.play(columns=True, environment_factory=both.guess)

    said: list[Any] = []

    @scored_only
    def reward_func(completions: Any, **kwargs: Any) -> Any:
        said.extend(completions)
        return [0.0] * len(completions)

    sampler = Batched(lambda request: both.spoken(request.prompt_ids))
    rollout_func = make_rollout_func(both.guess, sampler=sampler)
    ours = both.play(columns=False, rollout_func=rollout_func, reward_funcs=reward_func)

    assert said == theirs.generated[3]
    assert ours.completion_ids == theirs.completion_ids
    assert said[0][0]["reasoning_content"] == "Higher than 40?\n\nPerhaps."


def test_methods_of_one_environment_run_one_at_a_time_in_the_order_of_the_calls(
    hf_tokenizer: Any,
) -> None:
    """Functions that are no methods do not wait for them."""
    now, most, order = [0], [0], []
    free = threading.Event()

    class Counts:
        def reset(self) -> None: ...

        def count(self, number: int) -> str:
            """Count.

            Args:
                number: which call it is.
            """
            now[0] += 1
            most[0] = max(most[0], now[0])
            order.append(number)
            if number == 0:
                assert free.wait(10), "the function waited for the methods"
            now[0] -= 1
            return str(number)

    def other() -> str:
        """Set the event that the first method waits for."""
        free.set()
        return "set"

    source = from_environment_factory(Counts, tools=[other], format="hermes")
    hf_tokenizer = copy.deepcopy(hf_tokenizer)
    hf_tokenizer.chat_template = SHOWN + CHATML
    processor = ChatTemplateProcessor(hf_tokenizer, tools=source.tools)
    episode = source.bind(processor).make(RolloutTask(0, "r0", source, [], "go", 1))
    calls = "".join([*(call("count", number=k) for k in range(6)), call("other")])

    async def play() -> Any:
        await episode.reset("go")
        answers = (await episode.step(calls))[1]
        await episode.close()
        return answers

    said = [message["content"] for message in asyncio.run(play())]
    assert said == ["0", "1", "2", "3", "4", "5", "set"]
    assert (most[0], order) == (1, [0, 1, 2, 3, 4, 5])


def test_an_environment_is_made_called_and_scored_on_one_thread(
    hf_tokenizer: Any,
) -> None:
    class Notes:
        """A database that may be used only where it was made."""

        def __init__(self) -> None:
            self.base = sqlite3.connect(":memory:")
            self.base.execute("create table notes (text)")

        def reset(self) -> None:
            self.base.execute("delete from notes")

        def note(self, text: str) -> str:
            """Note a text.

            Args:
                text: what to keep.
            """
            self.base.execute("insert into notes values (?)", (text,))
            return "noted"

        def get_reward(self) -> float:
            return float(self.base.execute("select count(*) from notes").fetchone()[0])

    source = from_environment_factory(Notes, format="hermes")
    hf_tokenizer = copy.deepcopy(hf_tokenizer)
    hf_tokenizer.chat_template = SHOWN + CHATML
    processor = ChatTemplateProcessor(hf_tokenizer, tools=source.tools)

    async def play(text: str) -> float | None:
        episode = source.bind(processor).make(RolloutTask(0, "r0", source, [], text, 1))
        await episode.reset(text)
        for _ in range(3):
            (answer,) = (await episode.step(call("note", text=text)))[1]
            assert answer["content"] == "noted"
        await episode.score_episode([])
        await episode.close()
        return episode.reward

    async def play_all() -> list[float | None]:
        return await asyncio.gather(*(play(f"row {k}") for k in range(16)))

    assert asyncio.run(play_all()) == [3.0] * 16


def test_a_method_that_outlasts_its_deadline_still_has_the_object(hf_tokenizer: Any) -> None:
    now, most, hang = [0], [0], threading.Event()

    class Hangs:
        def reset(self) -> None: ...

        def hold(self) -> str:
            """Hold the object until the event."""
            now[0] += 1
            most[0] = max(most[0], now[0])
            assert hang.wait(600)
            now[0] -= 1
            return "held"

    source = from_environment_factory(Hangs, format="hermes", timeout_s=LIMIT_S)
    hf_tokenizer = copy.deepcopy(hf_tokenizer)
    hf_tokenizer.chat_template = SHOWN + CHATML
    processor = ChatTemplateProcessor(hf_tokenizer, tools=source.tools)
    episode = source.bind(processor).make(RolloutTask(0, "r0", source, [], "go", 1))

    async def play() -> list[str]:
        await episode.reset("go")
        said = [m["content"] for m in (await episode.step(call("hold")))[1]]
        asyncio.get_running_loop().call_later(0.2, hang.set)  # while the second call waits
        said += [m["content"] for m in (await episode.step(call("hold")))[1]]
        await episode.close()
        return said

    late = "{'error': 'TimeoutError: no answer within 6 s'}"
    assert asyncio.run(play()) == [late, "held"]
    assert most[0] == 1


# ---- what is taken for one


def test_only_a_class_with_reset_and_tools_and_no_step_is_taken_for_one(guess: Any) -> None:
    class NoTools:
        def reset(self) -> None: ...

    assert makes_environment_for_trl(guess)
    assert not makes_environment_for_trl(type("Steps", (guess,), {"step": Guess.guess}))

    class Misspelled:
        def reset(self, seed: str) -> Any: ...

        def stpe(self, action: str) -> Any: ...

    for other in Talk, NoTools, Misspelled, guess(), lambda: guess():
        assert not makes_environment_for_trl(other)


def test_a_class_is_not_made_and_a_factory_is_made_once(guess: Any) -> None:
    source = from_environment_factory(guess)
    assert guess.made == []
    assert [tool["function"]["name"] for tool in source.tools] == ["guess", "tries"]
    assert from_environment_factory(lambda: guess()).tools == source.tools
    assert len(guess.made) == 1


def test_no_schema_has_self(guess: Any) -> None:
    """transformers leaves `self` out only where it is bound, before 5."""

    class Static(guess):
        @staticmethod
        def half(x: float) -> float:
            """Halve.

            Args:
                x: A number.
            """
            return x / 2

    source = from_environment_factory(Static)
    parameters = {
        tool["function"]["name"]: list(tool["function"]["parameters"]["properties"])
        for tool in source.tools
    }
    assert parameters == {"guess": ["number"], "half": ["x"], "tries": []}


# ---- without TRL's trainer


@pytest.fixture
def play(hf_tokenizer: Any, tokenizer: Any) -> Any:
    def played(source: Any, *turns: str, **task: Any) -> Any:
        processor = ChatTemplateProcessor(hf_tokenizer, tools=source.tools)
        stage = Stage(tokenizer, processor)
        sampler = Recording(lambda request: stage.says(turns[request.turn])(request))
        engine = stage.engine(sampler, retries=0, max_failed_frac=1)
        given = {"messages": [], "seed": "Begin.", "episode_seed": 7, "columns": {"secret": 5}}
        (base,) = stage.tasks([Talk], **given | task)
        made: RolloutTask = source.bind(processor).complete(base)
        (rollout,) = engine.run([made])
        return rollout

    return played


def user(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **keys}


def test_a_class_that_asks_for_signals_is_told_what_bounds_it(
    play: Any, guess: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Alarmed(guess):
        def guess(self, number: int) -> str:
            """Set an alarm.

            Args:
                number: Your guess.
            """
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            raise AssertionError

    with caplog.at_level(logging.WARNING):
        play(from_environment_factory(Alarmed, format="hermes"), guessed(5), "done")
    (record,) = [r for r in caplog.records if r.name == "abut.tools.toolbox"]
    assert record.getMessage().endswith(
        "hint: a tool does not run on the main thread, so it cannot use signals; "
        "abut.trl.from_environment_factory(timeout_s=…) limits how long the calls of a "
        "turn may take"
    )


@pytest.mark.parametrize(
    ("messages", "secret", "opening"),
    [
        ([user("first"), user("Go.", name="ann")], 5, [user("first"), user("Go.*", name="ann")]),
        ([user("Go.")], 0, [user("Go.")]),
        ([], 5, [user("Begin.*")]),
        (
            [{"role": "system", "content": "S"}],
            0,
            [{"role": "system", "content": "S"}, user("Begin.")],
        ),
    ],
)
def test_what_reset_says_is_written_behind_the_last_message(
    play: Any, guess: Any, messages: Any, secret: int, opening: Any
) -> None:
    rollout = play(
        from_environment_factory(guess), "Done.", messages=messages, columns={"secret": secret}
    )
    assert_done(rollout)
    expected = [
        {**m, "content": m["content"].replace("*", "\nThe number has 1 digits.")} for m in opening
    ]
    assert rollout.messages[:-1] == expected
    assert guess.made[0].row == {"prompt": messages or "Begin."}


def test_a_column_seed_is_not_the_question(play: Any, guess: Any) -> None:
    columns = {"prompt": "Go.", "seed": 42, "secret": 0}
    rollout = play(from_environment_factory(guess), "Done.", seed="42", columns=columns)
    assert rollout.messages[0] == user("Go.")
    assert guess.made[0].row == {"prompt": "Go.", "seed": 42}


def test_a_message_without_content_fails_its_own_rollout(play: Any, guess: Any) -> None:
    rollout = play(from_environment_factory(guess), "Done.", messages=[{"role": "user"}])
    assert "message 0 (user)" in rollout.error


def test_the_environment_of_the_last_attempt_is_kept(guess: Any, called: Any) -> None:
    """The constructor of the first one returns while the second one plays."""
    plays, late = threading.Event(), threading.Event()

    class Slow(guess):
        def __init__(self) -> None:
            super().__init__()
            if len(self.made) == 1:
                plays.wait(600)
                late.set()

        def reset(self, **row: Any) -> None:
            self.secret = 0
            plays.set()
            assert late.wait(600)
            time.sleep(0.05)  # for the first one to be handed over

    config = RolloutConfig(reset_timeout_s=LIMIT_S, max_failed_frac=1)
    out = called([[user("Go.")]], Slow, config=config)
    assert out["error"] == [None]
    assert out["environments"] == [guess.made[1]]


def test_every_batch_has_environments_where_some_row_could(guess: Any, called: Any) -> None:
    kinds = {"guess": guess, "talk": Talk}
    out = called([[user("Go.", row={"environment": "talk"})]], kinds)
    assert out["environments"] == [None]
    assert "environments" not in called([[user("Go.")]], Talk)


def test_a_reward_of_its_own_and_more_tools(play: Any, guess: Any) -> None:
    def double(x: int) -> int:
        """Double.

        Args:
            x: A number.
        """
        return 2 * x

    async def judge(environment: Any) -> float:
        return float(environment.secret)

    source = from_environment_factory(guess, tools=[double], reward=judge)
    rollout = play(source, call("double", x=4) + guessed(1), "Done.")
    assert [m["content"] for m in rollout.messages if m["role"] == "tool"] == ["8", "higher"]
    assert rollout.reward == 5.0


@pytest.mark.parametrize("method", ["reset", "get_reward", "reward"])
def test_what_an_environment_raises_fails_its_rollout_and_names_it(
    play: Any, guess: Any, method: str
) -> None:
    def broken(self: Any, **row: Any) -> Any:
        raise OSError("no port")

    if method == "reward":
        source = from_environment_factory(guess, reward=broken)
    else:
        source = from_environment_factory(type("Guess", (guess,), {method: broken}))
    name = "the reward of Guess" if method == "reward" else f"Guess.{method}"
    assert play(source, "Done.").error == f"EnvError: {name} raised OSError: no port"


def test_without_get_reward_there_is_no_score(play: Any) -> None:
    class Quiet:
        def reset(self) -> None: ...

        def look(self) -> list[Any]:
            """Look."""
            return [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

        def show(self) -> list[Any]:
            """Show."""
            return [{"type": "image", "image": None}]

        def film(self) -> list[Any]:
            """Film."""
            return [{"type": "text", "text": "a"}, {"type": "video", "video": b"abc"}]

    source = from_environment_factory(Quiet)
    rollout = play(source, call("look"), "Done.")
    assert rollout.reward is None
    assert rollout.messages[2]["content"] == "ab"
    assert play(source, call("show"), "Done.").error == (
        "EnvError: a tool or reset returned a list whose items are not text or image blocks\n"
        'hint: return a string, or [{"type": "image", "image": picture}, …]'
    )
    assert play(source, call("film"), "Done.").error == (
        "EnvError: a tool or reset returned content of type 'video', but abut does not accept "
        "video\n"
        "hint: send single frames of the video as images"
    )


def test_what_is_no_environment_is_refused() -> None:
    class Nothing:
        pass

    class NoTools:
        def reset(self) -> None: ...

    with pytest.raises(TypeError) as raised:
        from_environment_factory(Nothing)
    assert str(raised.value) == (
        "Nothing has no method 'reset'\n"
        "hint: pass a class or factory as for GRPOTrainer(environment_factory=…)"
    )
    with pytest.raises(ValueError, match="no tools") as refused:
        from_environment_factory(NoTools)
    assert str(refused.value) == (
        "NoTools has no tools\nhint: add a public method; each one except reset and get_reward "
        "is a tool"
    )
