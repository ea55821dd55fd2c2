"""What is an environment, and what is said where it is none."""

import functools
import math
import threading
from typing import Any

import pytest

from abut.envs.attributes import env_alive, env_reward_value
from abut.envs.foreign import close_env
from abut.envs.guarded import check_reply, is_async, make_env
from abut.envs.signatures import accepted_keywords, check_env_factory
from abut.errors import EnvError
from abut.template.processor import ChatTemplateProcessor
from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, assert_done, asynced, env


def reply_error(returned: Any, method: str = "step") -> str:
    with pytest.raises(EnvError) as raised:
        check_reply(Talk(), method, returned)
    return str(raised.value)


# ---- classes and factories


@pytest.mark.parametrize("factory", [Talk, Talk().__class__, lambda: Talk()])
def test_a_class_or_a_factory_makes_environments(factory: Any) -> None:
    assert isinstance(make_env(check_env_factory(factory)), Talk)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            Talk(),
            "env must be an Env class, a function without arguments that returns one, or an "
            "environment pool, got one environment object\nhint: each rollout needs its own "
            "environment, so pass the class, or lambda: Env(…)",
        ),
        (
            "Talk",
            "env must be an Env class, a function without arguments that returns one, or an "
            "environment pool, got str\nhint: each rollout needs its own environment, so pass "
            "the class, or lambda: Env(…)",
        ),
        (
            env(step=None),
            "env=Talk has no method 'step'\n"
            "hint: an Env has reset(seed) and step(action), and attributes reward and alive",
        ),
    ],
)
def test_what_is_no_factory_is_refused(given: Any, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        check_env_factory(given)
    assert str(raised.value) == text


class Sized(Talk):
    def __init__(self, size: int, level: int = 0) -> None:
        super().__init__()


def test_a_class_that_needs_arguments_is_refused_before_anything_is_played() -> None:
    with pytest.raises(TypeError) as raised:
        check_env_factory(Sized)
    assert str(raised.value) == (
        "env=Sized needs the arguments size, but abut creates an environment for each rollout "
        "without arguments\nhint: env=functools.partial(Sized, size=…)"
    )
    assert isinstance(make_env(check_env_factory(functools.partial(Sized, size=3))), Sized)


def test_a_reset_without_a_seed_is_refused_with_its_line() -> None:
    def reset(self: Any) -> Any: ...

    with pytest.raises(TypeError) as raised:
        check_env_factory(env(reset=reset))
    said, hint, line = str(raised.value).splitlines()
    assert said == "env=Talk: reset does not accept a seed, but abut calls reset(seed)"
    assert hint == "hint: write def reset(self, seed), even if you do not use the seed"
    assert f'File "{__file__}", line {reset.__code__.co_firstlineno}' in line


def test_a_reset_that_a_decorator_gives_the_seed_is_taken() -> None:
    def reset(self: Any) -> Any: ...

    @functools.wraps(reset)
    def seeded(self: Any, *seed: str) -> Any:
        return Talk.reset(self, seed[0])

    assert check_env_factory(env(reset=seeded))


STRICT = """{% for m in messages -%}
{% if m.role not in ("system", "user", "assistant", "tool") -%}
{{ raise_exception("no role " + m.role) }}
{%- endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@BOTH
def test_a_role_that_the_template_does_not_know_is_the_mistake_of_the_environment(
    tokenizer: Any, hf_tokenizer: Any, twin: Any
) -> None:
    stage = Stage(tokenizer, ChatTemplateProcessor(hf_tokenizer, chat_template=STRICT))
    typo = env(texts=([{"role": "user", "content": "a"}], [{"role": "usr", "content": "b"}]))
    failed, well = stage.play(twin(typo), Talk, retries=0).rollouts
    assert not well.failed
    assert failed.error is not None
    said, *_, hint = failed.error.splitlines()
    assert said.startswith("EnvError: Talk.step replied with a message of the role 'usr': ")
    assert hint == "hint: use the role 'user' or 'tool'"
    assert ", in " in failed.attempt_tracebacks[0], "file, line and name of the method"


def raising() -> Any:
    raise OSError("no port")


def nothing() -> Any:
    return None


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (raising, "raising() raised OSError: no port"),
        (
            nothing,
            "nothing() returned NoneType, which has no method 'reset'\n"
            "hint: an Env has reset(seed) and step(action), and attributes reward and alive",
        ),
    ],
)
def test_a_factory_that_makes_none_costs_its_own_rollout(
    stage: Stage, factory: Any, text: str
) -> None:
    rollouts = stage.play(factory, Talk, retries=0).rollouts
    assert [r.error for r in rollouts] == [f"EnvError: {text}", None]


# ---- keywords of reset


def test_reset_gets_the_columns_that_it_names() -> None:
    def plain(seed: str) -> None: ...
    def named(seed: str, level: int, episode_seed: int = 0, other: int = 0) -> None: ...
    def all_of_them(seed: str, **columns: Any) -> None: ...

    columns = {"level": 3, "seed": "from the row", "unused": 1}
    for reset, expected in (
        (plain, {}),
        (named, {"level": 3, "episode_seed": 7}),
        (all_of_them, {"level": 3, "unused": 1, "episode_seed": 7}),
        (int, {}),  # nothing to look into
    ):
        assert accepted_keywords(reset, columns, 7) == expected


def test_columns_and_episode_seed_reach_reset(stage: Stage) -> None:
    got: list[Any] = []

    def reset(self: Any, seed: str, *, level: int, episode_seed: int) -> Any:
        got.append((seed, level, episode_seed))
        return Talk.reset(self, seed)

    stage.play(env(reset=reset), task={"seed": "s", "columns": {"level": 2}, "episode_seed": 5})
    assert got == [("s", 2, 5)]


class Needs(Talk):
    """Cannot be reset without a level."""

    def reset(self, seed: str, *, level: int, other: int = 0) -> Any:  # type: ignore[override]
        return Talk.reset(self, seed)


@BOTH
def test_a_column_that_reset_needs_and_the_row_lacks_ends_the_batch(
    stage: Stage, twin: Any
) -> None:
    """No episode of such a row can ever be played, so it is none of the failures."""
    columns = {"prompt": "p", "levle": 3}
    with pytest.raises(ValueError, match="column") as raised:
        stage.play(Talk, needing(twin), Talk, task={"columns": columns}, max_failed_frac=1.0)
    assert str(raised.value) == (
        "Needs.reset needs the column 'level', but the row of prompt 1 only has the columns: "
        "'prompt', 'levle'\nhint: add the column to the dataset, or set "
        "prompt[-1]['row']['level'], or give the parameter a default"
    )


def needing(twin: Any) -> Any:
    if twin is not asynced:
        return Needs

    async def reset(self: Any, seed: str, *, level: int) -> Any: ...

    return env(asynced(Needs), reset=reset)


def test_a_decorator_may_fill_in_what_the_signature_asks_for(stage: Stage) -> None:
    @functools.wraps(Needs.reset)
    def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        return Needs.reset(self, *args, **{"level": 1} | kwargs)

    assert stage.play(env(reset=reset)).one.error is None


def test_an_error_inside_of_reset_is_none_of_the_row(stage: Stage) -> None:
    def reset(self: Any, seed: str) -> Any:
        raise TypeError("bad operand for 'level'")

    rollout = stage.play(env(reset=reset), Talk, retries=0).rollouts[0]
    assert rollout.error == "EnvError: Talk.reset raised TypeError: bad operand for 'level'"


# ---- replies


def test_a_reply_is_text_or_messages() -> None:
    talk = Talk()
    for reply in "text", "", [], [{"role": "tool", "name": "f", "content": "x"}]:
        assert check_reply(talk, "step", (talk, reply)) == (talk, reply)


def test_a_reply_may_be_text_blocks_as_a_prompt_may(stage: Stage) -> None:
    """Alone, which is a user turn, or as the content of messages; a newline joins them, as vLLM."""
    blocks = [{"type": "text", "text": "go"}, {"type": "text", "text": "on"}]
    rows = []
    for texts in (["go\non"], [blocks], [[{"role": "user", "content": blocks}]]):
        rollout = stage.play(env(texts=texts)).one
        assert rollout.error is None
        rows.append([*rollout.columns.prompt_ids, *rollout.columns.completion_ids])
    assert rows[0] == rows[1] == rows[2]
    prompt = {"messages": [{"role": "user", "content": blocks}]}
    silent = stage.play(env(texts=[""]), task=prompt).one
    assert list(silent.columns.prompt_ids) == list(rollout.columns.prompt_ids)


PAIR = "Talk.step must return (env, reply), got "


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, PAIR + "NoneType: 'None'\nhint: return (self, text)"),
        ("text", PAIR + "str: 'text'\nhint: return (self, text)"),
        ((1, 2, 3), PAIR + "tuple of 3: ['int', 'int', 'int']\nhint: return (self, text)"),
        (
            ("o", 1.0, True, False, {}),
            PAIR + "tuple of 5: ['str', 'float', 'bool', 'bool', 'dict']\nhint: step returns "
            "five values, as in Gym: wrap the environment in abut.gym.GymEnv",
        ),
        (
            ("text", Talk()),
            "Talk.step returned str without the attribute 'reward'\nhint: the first item of "
            "the pair must be the environment, usually self",
        ),
        (
            (type("Half", (), {"reward": 0.0})(), "text"),
            "Talk.step returned Half without the attribute 'alive'\nhint: the first item of "
            "the pair must be the environment, usually self",
        ),
        (
            (type("Mute", (), {"reward": 0.0, "step": 1})(), "text"),
            "Talk.step returned Mute without the attribute 'alive'\nhint: set self.alive to "
            "True in reset, and to False in the step that ends the episode",
        ),
        (
            (type("Mute", (), {"alive": True, "step": 1})(), "text"),
            "Talk.step returned Mute without the attribute 'reward'\nhint: set self.reward in "
            "reset and step; None means no score",
        ),
        (
            (type("Half", (), {"reward": 0.0, "alive": True})(), "text"),
            "Talk.step returned Half without the attribute 'step'\nhint: the first item of the "
            "pair must be the environment, usually self",
        ),
        (
            (Talk(), [{"type": "image", "image": "…"}]),
            "Talk.step replied with an invalid image: the text '…' is not an image\n"
            "hint: an image is an abut.Image, a PIL image, a uint8 array (H, W, 3), bytes, a "
            "pathlib.Path or a data: URL",
        ),
        (
            (Talk(), [{"type": "video", "video": b""}]),
            "Talk.step replied with content of the type 'video', but abut does not accept video\n"
            "hint: send single frames of the video as images",
        ),
        (
            (Talk(), [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
            "Talk.step replied with content of the type 'input_audio', but abut does not accept "
            "audio\nhint: send a transcript of the audio as text",
        ),
        (
            (Talk(), [{"role": "user", "content": [{"type": "file", "file": {}}]}]),
            "Talk.step replied with content of the type 'file', but abut accepts only text and "
            "images\nhint: send only blocks of type 'text' or 'image'",
        ),
        (
            (Talk(), [{"role": "tool", "content": [{"type": "image_url", "image_url": {}}]}]),
            "Talk.step replied with an invalid image: a block of type 'image_url' has no key "
            "'image_url'\nhint: an image is an abut.Image, a PIL image, a uint8 array (H, W, "
            "3), bytes, a pathlib.Path or a data: URL",
        ),
        (
            (Talk(), 5),
            "Talk.step must reply with a str or a list of messages, got int: '5'\n"
            "hint: return (self, text), or a list of messages",
        ),
        (
            (Talk(), [{"role": "user", "content": "a"}, {"role": "tool"}]),
            'message 1 of the reply of Talk.step has no content\nhint: write {"role": '
            '"tool", "content": "text"}; the content may be ""',
        ),
        (
            (Talk(), [{"role": "tool", "content": {"board": "x"}}]),
            "message 0 of the reply of Talk.step must be text, got dict: \"{'board': 'x'}\"\n"
            "hint: json.dumps(value) turns it into text",
        ),
        (
            (Talk(), {"board": "x"}),
            "Talk.step must reply with a str or a list of messages, got dict: \"{'board': "
            '\'x\'}"\nhint: json.dumps(observation) turns it into text; a message is {"role": '
            '"user", "content": "text"}',
        ),
        (
            (Talk(), [{"board": "x"}]),
            "Talk.step must reply with a str or a list of messages, got list of 1: ['dict']\n"
            'hint: json.dumps(observation) turns it into text; a message is {"role": '
            '"user", "content": "text"}',
        ),
        (
            (Talk(), {"role": "user", "content": "x"}),
            "Talk.step must reply with a str or a list of messages, got dict: "
            "\"{'role': 'user', 'content': 'x'}\"\n"
            "hint: a single message needs a list around it: return self, [message]",
        ),
    ],
)
def test_what_is_no_reply_is_named(returned: Any, text: str) -> None:
    assert reply_error(returned) == text


async def later() -> Any: ...


@pytest.mark.filterwarnings("error")
def test_half_async_environments_are_named(stage: Stage) -> None:
    hint = "hint: make reset and step both `async def`"
    assert reply_error(later(), "reset") == f"Talk.reset returned an awaitable\n{hint}"
    half = env(asynced(Talk), reset=Talk.reset)
    rollouts = stage.play(half, Talk, retries=0).rollouts
    assert rollouts[0].error == f"EnvError: Talk.reset is not async, but step is\n{hint}"
    assert rollouts[1].error is None


def test_the_silence_of_an_env_is_an_empty_user_turn(stage: Stage) -> None:
    rollout = stage.play(env(texts=["ask", ""])).one
    said = [message["content"] for message in rollout.messages if message["role"] == "user"]
    assert said[:2] == ["ask", ""]
    text = stage.tokenizer.decode(rollout.columns.completion_ids)
    assert "<|im_start|>user\n<|im_end|>" in text


def test_an_env_that_says_nothing_first_leaves_the_first_word_to_the_policy(stage: Stage) -> None:
    rollout = stage.play(env(reset=lambda self, seed: (self, ""))).one
    assert rollout.messages[0] == {"role": "user", "content": ""}


def test_alive_must_be_said(stage: Stage) -> None:
    hint = "hint: set alive in reset and step; if alive is a method, mark it with @property"
    for alive, got in (None, "NoneType: 'None'"), (lambda: True, "function: '<function"):

        def step(self, action, alive=alive):
            self.alive = alive
            return self, "go on"

        error = stage.play(env(step=step), Talk, retries=0).rollouts[0].error or ""
        assert error.startswith(f"EnvError: Talk.alive must be True or False, got {got}")
        assert error.endswith(hint)


def test_an_env_that_reset_leaves_dead_is_named(stage: Stage) -> None:
    def dead(self, seed):
        self.alive = False
        return self, "hi"

    assert stage.play(env(reset=dead), Talk, retries=0).rollouts[0].error == (
        "EnvError: Talk.alive is False after reset\nhint: reset must set alive to True, even "
        "if the environment was used before"
    )


def test_one_env_for_two_rollouts_is_refused(stage: Stage) -> None:
    """The one that has it plays until the other is over: one after the other it may serve both."""
    one_is_over = threading.Event()

    class Hears(Recording):
        def forget(self, rollout_id: str) -> None:
            if rollout_id != "r1":
                one_is_over.set()

    def step(self: Any, action: str) -> Any:
        assert one_is_over.wait(60)
        return Talk.step(self, action)

    shared = env(step=step)()
    envs, sampler = (lambda: shared, Talk, lambda: shared), Hears(stage.says())
    errors = [r.error for r in stage.play(*envs, sampler=sampler, retries=0).rollouts]
    assert [error for error in errors if error] == [
        "EnvError: the factory returned the same Talk for two rollouts at once\n"
        "hint: each rollout needs its own environment; pass the class, or lambda: Env(…)"
    ]


def test_one_env_may_serve_one_rollout_after_the_other(stage: Stage) -> None:
    def reset(self: Any, seed: str) -> Any:
        self.__init__()
        return Talk.reset(self, seed)

    shared = env(reset=reset)()
    played = stage.play(lambda: shared, lambda: shared, retries=0, max_rollouts=1)
    for rollout in played.rollouts:
        assert_done(rollout)


def test_messages_are_copied_for_an_env_uses_them_again(stage: Stage) -> None:
    message = {"role": "user", "content": "same"}

    def step(self, action):
        message["content"] += "!"
        self.alive = len(message["content"]) < 7
        return self, [message]

    rollout = stage.play(env(step=step)).one
    said = [m["content"] for m in rollout.messages if m["content"].startswith("same")]
    assert said == ["same!", "same!!", "same!!!"]


def test_the_wrong_return_of_a_step_is_in_the_rollout(stage: Stage) -> None:
    for cls in env(step=lambda self, action: 1), env(reset=lambda self, seed: 1):
        error = stage.play(cls, Talk, retries=0).rollouts[0].error or ""
        assert error.startswith("EnvError: Talk.")
        assert error.endswith("must return (env, reply), got int: '1'\nhint: return (self, text)")


# ---- attributes


def reward_of(reward: Any) -> float | None:
    return env_reward_value(env(reward=reward))


def test_a_reward_is_a_number_or_nothing() -> None:
    assert [reward_of(r) for r in (1, 0.5, True, "2")] == [1.0, 0.5, 1.0, 2.0]
    assert reward_of(None) is None
    assert math.isnan(reward_of(float("nan")) or 0.0), "which the episode warns of, and drops"


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        ("much", "type.reward must be a number or None, got str: 'much'"),
        ([1, 2], "type.reward must be a number or None, got list of 2: ['int', 'int']"),
        (
            float("-inf"),
            "type.reward is -inf, but a group's baseline needs finite rewards\nhint: set "
            "reward to None for an episode without a score",
        ),
    ],
)
def test_what_is_no_reward_is_named(reward: Any, text: str) -> None:
    with pytest.raises(EnvError) as raised:
        reward_of(reward)
    assert str(raised.value) == text


def test_an_alive_that_is_no_truth_value_is_named() -> None:
    class Vector:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    assert env_alive(env(alive=1)) is True
    with pytest.raises(EnvError) as raised:
        env_alive(env(alive=Vector()))
    assert str(raised.value) == "type.alive raised ValueError: ambiguous"


def test_async_is_what_has_an_async_step() -> None:
    assert [is_async(Talk()), is_async(asynced(Talk)())] == [False, True]


def test_closing_takes_what_there_is() -> None:
    closed: list[str] = []

    async def close(self: Any) -> None:
        closed.append("async")

    for cls in Talk, env(close=lambda self: closed.append("sync")), env(close=close):
        close_env(cls())
    assert closed == ["sync", "async"]
