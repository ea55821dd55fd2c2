"""Which records are meant."""

from typing import Any

import pytest

from abut.records.filter import parse_filter

RECORD: dict[str, Any] = {
    **{"reward": 0.25, "advantage": None, "step": 100, "group": 3, "place": 1, "rank": 0},
    **{"attempts": 2, "seconds": 1.5, "episode_seed": 7, "time": 1.0, "turns": [{}] * 4},
    **{"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "env_mask": [1, 0, 1]},
    **{"error": "EnvError: step Timeout", "mode": "train", "stop_reason": "error"},
    **{"rollout_id": "train-100-0-1-ab", "run_id": "ab", "seed": "s", "traceback": None},
    **{"messages": [{"role": "user", "content": "Guess a: word"}]},
    **{"rewards": {"f": 0.5, "g": None}, "columns": {"level": 3, "name": "Ann", "tag": "3"}},
}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "reward<0.5 step:100 error:timeout turns>3",
        "reward<=0.25 reward>=0.25 reward=0.25 reward!=0.3",
        "tokens=5 completion_tokens:3 sampled_tokens<3 attempts>1",
        "mode=train mode!=eval error:ENVERROR text:guess text:a:",
        "advantage:none traceback=none reward!=none",
        "rewards.f>=0.5 rewards.g:none rewards.h=none",
        "columns.level:3 columns.name:ann columns.name=Ann columns.none:none",
        "rollout_id:train-100",
    ],
)
def test_conditions_that_hold(words: str) -> None:
    assert parse_filter(words)(RECORD)


@pytest.mark.parametrize(
    "words",
    [
        "reward<0.5 step:101",
        "advantage>0",
        "advantage<0",
        "advantage=0",
        "error:none",
        "error=EnvError",
        "rewards.g<1",
        "columns.name>3",
        "turns<4",
        "text:nothing",
    ],
)
def test_conditions_that_do_not(words: str) -> None:
    assert not parse_filter(words)(RECORD)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reward", "'reward' is no condition on a record"),
        ("rewrd<1", "'rewrd<1': a record has no 'rewrd'"),
        ("reward<high", "'reward<high': reward is a number, and 'high' is none"),
        ("error>3", "'error>3' orders texts"),
        ("reward<none", "'reward<none' compares with none"),
        ("rewards.<1", "'rewards.<1' is no condition on a record"),
        ("columns:1", "'columns:1': a record has no 'columns'"),
    ],
)
def test_what_is_no_condition_is_named(words: str, said: str) -> None:
    with pytest.raises(ValueError, match="hint") as raised:
        parse_filter(words)
    assert str(raised.value).startswith(said)
