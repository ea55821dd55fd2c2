"""Versions of TRL: too old, too new, missing, and those that count None as 0."""

import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut.trl.version
from abut.errors import MissingExtraError, RolloutError
from abut.trl import make_rollout_func
from tests.kit.stage.rollouts import Talk, env
from tests.kit.training.trl_run import CONFIG, Vowels


@pytest.fixture
def trl_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    def be(text: str) -> None:
        monkeypatch.setattr(abut.trl.version, "version", lambda name: text)

    return be


def test_an_old_trl_is_refused_and_a_new_one_warned_of(trl_version: Any) -> None:
    trl_version("0.29.0")
    with pytest.raises(MissingExtraError) as raised:
        make_rollout_func(Talk)
    assert str(raised.value) == (
        "abut.trl needs TRL 0.29.1 or later, found 0.29.0\nhint: pip install 'trl>=0.29.1'"
    )
    trl_version("2.0.0.dev0")
    with pytest.warns(UserWarning, match="tested only up to") as caught:
        make_rollout_func(Talk)
    assert (
        str(caught[0].message)
        == "found TRL 2.0.0.dev0, but abut.trl was tested only up to TRL 1.16"
    )
    for tested in "0.29.1", "1.16.3":
        trl_version(tested)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_rollout_func(Talk)


def test_without_trl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(abut.trl.version, "version", missing)
    with pytest.raises(MissingExtraError) as raised:
        make_rollout_func(Talk)
    assert str(raised.value) == "abut.trl needs TRL: pip install 'abut[trl]'"


def test_a_trl_that_counts_none_as_zero_raises_on_failure(
    called: Any, trl_version: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trl_version("1.5.0")
    with pytest.raises(RolloutError, match=r"rollout train-0-0-[0-7]-\w+ failed after 1 attempts"):
        called(["a"] * 8, env(Vowels, made=2), config=CONFIG)
    told, failure = caplog.messages
    assert "ValueError: boom" in failure
    assert told == (
        "TRL 1.5.0 counts a reward of None as 0, so a failed rollout will stop training; TRL 1.6 "
        "and later leave failed rollouts out"
    )
