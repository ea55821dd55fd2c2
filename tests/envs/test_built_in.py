"""The built-in environments: deterministic, dense, and never broken by what a model says."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abut.envs import CopyRowEnv, EchoEnv, WordGuessEnv
from abut.envs.built_in import WORDS, feedback, parse_guess

ENVS = [CopyRowEnv, EchoEnv, WordGuessEnv]
SEEDED = [CopyRowEnv, WordGuessEnv]


def play(env: Any, actions: list[str], seed: str = "s", **keywords: int) -> list[Any]:
    """All texts of an episode, then its reward."""
    env, text = env.reset(seed, **keywords)
    said = [text]
    for action in actions:
        if not env.alive:
            break
        env, text = env.step(action)
        said.append(text)
    return [*said, env.reward]


def solved_by(answer: Any, env: Any, episode_seed: int = 0) -> float:
    env, text = env.reset("s", episode_seed=episode_seed)
    while env.alive:
        env, text = env.step(answer(text))
    return float(env.reward)


@pytest.mark.parametrize("env_class", ENVS)
@given(seed=st.text(), actions=st.lists(st.text(), min_size=20, max_size=20))
def test_any_text_is_an_action(env_class: Any, seed: str, actions: list[str]) -> None:
    env = env_class()
    *texts, reward = play(env, actions, seed)
    assert all(isinstance(text, str) for text in texts)
    assert 0.0 <= reward <= 1.0
    assert not env.alive


@pytest.mark.parametrize("env_class", ENVS)
def test_an_episode_repeats_under_its_seed_also_on_a_used_env(env_class: Any) -> None:
    used = env_class()
    first = play(used, ["a", "stone", "", "2222"])
    assert play(used, ["a", "stone", "", "2222"]) == first
    assert play(env_class(), ["a", "stone", "", "2222"]) == first


@pytest.mark.parametrize("env_class", SEEDED)
def test_another_seed_or_episode_seed_is_another_episode(env_class: Any) -> None:
    silent = [""] * 20
    by_episode = {str(play(env_class(), silent, episode_seed=k)) for k in range(50)}
    by_seed = {str(play(env_class(), silent, seed=str(k))) for k in range(50)}
    assert len(by_episode) > 20
    assert len(by_seed) > 20


def test_envs_do_not_depend_on_hash_randomization() -> None:
    code = (
        "from abut.envs import CopyRowEnv, WordGuessEnv\n"
        "g = WordGuessEnv(); g.reset('x', episode_seed=5)\n"
        "print(g.secret, CopyRowEnv().reset('x', episode_seed=5)[1])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1


def test_echo_says_back_what_it_hears() -> None:
    assert play(EchoEnv(turns=2), ["one", "two", "three"], seed="zero") == ["zero", "one", "two", 1]


def test_echo_rewards_only_turns_in_which_something_was_said() -> None:
    assert play(EchoEnv(turns=4), ["one", " \n", "", "four"])[-1] == 0.5


def test_copying_each_row_earns_everything() -> None:
    assert solved_by(lambda text: text.removeprefix("Say "), CopyRowEnv()) == pytest.approx(1.0)


def test_the_same_answer_always_earns_about_one_in_four() -> None:
    rewards = [solved_by(lambda _: "2222", CopyRowEnv(), k) for k in range(500)]
    assert sum(rewards) / len(rewards) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("answer", "overlap"),
    [
        ("2222", 1.0),
        ("2", 0.25),
        ("2000", 0.25),
        ("22 22", 0.8),
        ("22222222", 0.5),
        ("Say 2222", 0.5),
        ("0000", 0.0),
        ("", 0.0),
    ],
)
def test_overlap_counts_the_row_and_charges_for_the_rest(answer: str, overlap: float) -> None:
    assert CopyRowEnv().overlap(answer, "2") == pytest.approx(overlap)


def test_whitespace_around_an_answer_costs_nothing() -> None:
    rewards = {solved_by(lambda text: f" {text.split()[1]}\n", CopyRowEnv(turns=k)) for k in (1, 2)}
    assert rewards == {1.0}


def test_the_words_are_distinct_and_have_five_letters() -> None:
    assert len(set(WORDS)) == len(WORDS) > 200
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in WORDS)


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("stone", "stone", "GGGGG"),
        ("plumb", "stone", "XXXXX"),
        ("notes", "stone", "YYYYY"),
        ("sheep", "stone", "GXYXX"),  # the second e is one too many
        ("eerie", "stone", "XXXXG"),  # the right place is marked before the left ones
        ("sassy", "glass", "YYXGX"),
    ],
)
def test_feedback_marks_a_letter_as_often_as_the_secret_has_it(
    guess: str, secret: str, marks: str
) -> None:
    assert feedback(guess, secret) == marks


@pytest.mark.parametrize(
    ("action", "guess"),
    [
        ("stone", "stone"),
        ("STONE.", "stone"),
        ("My guess: stone", "stone"),
        ("not [crane], rather [ Stone ]", "stone"),
        ("<guess>stone</guess> it is, I think", "stone"),
        ("I think that it is stone", "stone"),
        ("[stones]", None),
        ("[st ne]", None),
        ("four", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_a_guess_is_found_in_what_a_model_says(action: str, guess: str | None) -> None:
    assert parse_guess(action) == guess


def test_a_solved_game_ends_and_earns_more_than_any_unsolved_one() -> None:
    env = WordGuessEnv()
    rewards = []
    for misses in range(6):
        env.reset("s")
        for _ in range(misses):
            env.step("zzzzz")
        _, text = env.step(f"[{env.secret}]")
        assert text == f"{env.secret} is right."
        assert not env.alive
        rewards.append(env.reward)
    assert rewards == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    assert min(rewards) > 0.5 * 4.5 / 5


def test_the_reward_of_an_unsolved_game_is_that_of_its_best_guess() -> None:
    env = WordGuessEnv()
    env.reset("s")
    env.secret = "stone"
    _, text = env.step("store")
    assert text == "S T O R E\nG G G X G\nGuesses left: 5."
    assert env.reward == pytest.approx(0.4)
    env.step("plumb")
    assert env.reward == pytest.approx(0.4)


def test_a_malformed_guess_costs_a_guess_and_is_told_so() -> None:
    env = WordGuessEnv(guesses=2)
    env.reset("s")
    assert env.step("ok")[1] == "That is not a word of five letters. Guesses left: 1."
    _, text = env.step("\N{SNOWMAN}")
    assert text.endswith(f"No guesses left. The word was {env.secret}.")
    assert (env.alive, env.reward) == (False, 0.0)
