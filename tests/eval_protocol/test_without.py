"""Where Eval Protocol is not installed, and what importing abut takes of it: nothing."""

import importlib.util
import subprocess
import sys

import pytest

import abut
from abut.eval_protocol import create_openenv_vllm_rollout_func, eval_test, prune_logs


def test_importing_the_room_imports_nothing_of_the_package() -> None:
    code = (
        "import sys, abut.eval_protocol\n"
        "print([n for n in ('eval_protocol', 'litellm', 'openai', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "eval_protocol" else found(name)
    )
    for call in (
        lambda: eval_test("tests.mine"),
        lambda: create_openenv_vllm_rollout_func(None, None, None),
        lambda: prune_logs(keep_steps=1),
    ):
        with pytest.raises(abut.errors.MissingExtraError) as raised:
            call()
        assert str(raised.value) == (
            "abut.eval_protocol needs eval_protocol: pip install 'abut[eval_protocol]'"
        )
