"""mypy says which environments `make_rollout_func` takes, in the user's code, before anything runs.

One call for each of the environments of `user_envs.py`, all checked in one run of `mypy --strict`.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from abut.trl.route import EnvRoute

ROOT = Path(__file__).parents[2]
USER_ENVS = Path(__file__).with_name("user_envs.py")

CONFIG = """
[mypy]
strict = true
follow_imports = silent
[mypy-numpy.*,torch.*,transformers.*,trl.*,tokenizers.*,aiohttp.*]
follow_imports = skip
ignore_missing_imports = true
"""

GOOD = [
    "MyEnv",
    "Scored",
    "Typed",
    "Async",
    "Untyped",
    "EchoEnv",
    "CopyRowEnv",
    "WordGuessEnv",
    "make",
    "either(True)",
    "lambda: MyEnv(level)",
    "lambda: Async()",
    "lambda: MyEnv() if level else Scored()",
    "functools.partial(MyEnv, 3)",
    "functools.partial(Told, level=3)",
    "Pool()",
    "ScoredPool()",
    'OpenEnv("http://localhost:8000")',
    'GymEnv(lambda: __import__("gymnasium").make("CartPole-v1"))',
    "tools",
    "from_environment_factory(Counter)",
    "from_environment_factory(lambda: Counter())",
    "Counter",
    "Silent",
    '{"a": MyEnv, "b": Async, "c": lambda: Told(3), "d": Pool(), "e": tools, "f": Counter}',
    "named()",
    "typed",
]
BAD = [
    "MyEnv()",
    "Async()",
    "Counter()",
    "3",
    "None",
    '"http://localhost:8000"',
    "[MyEnv]",
    "Told",  # its constructor needs a level
    "Stepless",
    "AsyncStepless",
    "Resetless",
    "Halves",
    "Gymlike",
    "NoReward",
    "OnlyText",
    "Pool",
    "lambda: 3",
    "lambda level: MyEnv(level)",
    "lambda: Stepless()",
    "multiply",
    '{"a": MyEnv()}',
    '{"a": MyEnv, "b": 3}',
    '{MyEnv: "a"}',
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy says of each snippet, and of what stands before them all."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "mypy.ini").write_text(CONFIG)
    head = USER_ENVS.read_text()
    lines = [f"make_rollout_func({env})" for env in GOOD + BAD]
    (folder / "user.py").write_text(head + "\n".join(lines) + "\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--no-pretty", "user.py"],
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "python"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    said: dict[str, list[str]] = {env: [] for env in ["", *GOOD, *BAD]}
    first = head.count("\n") + 1
    for line in ran.stdout.splitlines():
        if found := re.match(r"user\.py:(\d+): error: (.*)", line):
            number = int(found[1]) - first
            said[(GOOD + BAD)[number] if number >= 0 else ""].append(found[2])
    return said


def test_the_environments_themselves_are_well_typed(errors: dict[str, list[str]]) -> None:
    assert errors[""] == []


@pytest.mark.parametrize("env", GOOD)
def test_an_environment_that_is_played_passes(env: str, errors: dict[str, list[str]]) -> None:
    assert errors[env] == []


@pytest.mark.parametrize("env", BAD)
def test_what_is_no_environment_is_refused(env: str, errors: dict[str, list[str]]) -> None:
    assert errors[env]
    of_env = 'Argument 1 to "make_rollout_func"' if not env.startswith("{") else "Dict entry"
    assert all(error.startswith(of_env) for error in errors[env])


@pytest.mark.parametrize("env", GOOD)
def test_what_passes_is_taken(env: str) -> None:
    for module in "transformers", "websockets":
        pytest.importorskip(module)
    EnvRoute(eval(env, runpy.run_path(str(USER_ENVS))))
