"""The error tree, the settings of rollouts, and what is said about a tokenizer or an extra."""

import ast
import pickle
import subprocess
import sys
import traceback
from dataclasses import fields
from typing import Any

import pytest

import abut
from abut import errors
from abut.errors import trace_of
from abut.pretrained import tokenizer_json
from abut.rollout.config import RolloutConfig

TREE = {
    "TokenizerError": ValueError,
    "ControlTokenError": ValueError,
    "TrajectoryError": ValueError,
    "SeamError": ValueError,
    "TemplateError": ValueError,
    "ImageError": ValueError,
    "EnvError": RuntimeError,
    "InvalidAction": ValueError,
    "SamplerError": RuntimeError,
    "RolloutError": RuntimeError,
    "TeacherError": RuntimeError,
    "TeacherUnavailable": ConnectionError,
    "MissingExtraError": ImportError,
}


@pytest.mark.parametrize(("name", "builtin"), TREE.items())
def test_each_error_is_ours_and_the_builtin_and_can_be_pickled(name: str, builtin: type) -> None:
    error = getattr(abut.errors, name)("text\nhint: cure")
    assert isinstance(error, abut.AbutError)
    assert isinstance(error, builtin)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), "text\nhint: cure")


def test_the_tree_is_complete() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes == {"AbutError", *TREE}
    assert all(name in str(errors.__doc__) for name in TREE)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"max_turns": 0}, "max_turns=0: must be at least 1, or None"),
        ({"branch": "first"}, "branch='first': must be 'all', 'longest', 'last', 'random' or None"),
        ({"max_env_steps": 0}, "max_env_steps=0: must be at least 1"),
        ({"max_requests": 0}, "max_requests=0: must be at least 1"),
        ({"max_turn_tokens": 0}, "max_turn_tokens=0: must be at least 1, or None"),
        ({"max_completion_tokens": 0}, "max_completion_tokens=0: must be at least 1, or None"),
        ({"max_context_tokens": 0}, "max_context_tokens=0: must be at least 1, or None"),
        ({"max_rollouts": 0}, "max_rollouts=0: must be at least 1, or None"),
        ({"reset_timeout_s": 0}, "reset_timeout_s=0: must be more than 0 seconds"),
        ({"step_timeout_s": 0}, "step_timeout_s=0: must be more than 0 seconds"),
        ({"turn_timeout_s": 0}, "turn_timeout_s=0: must be more than 0 seconds"),
        ({"rollout_timeout_s": -1}, "rollout_timeout_s=-1: must be more than 0 seconds"),
        ({"log_every_s": 0}, "log_every_s=0: must be more than 0 seconds, or None"),
        ({"retries": -1}, "retries=-1: must be 0 or more"),
        ({"max_failed_frac": 1.5}, "max_failed_frac=1.5: must be between 0 and 1"),
        ({"on_failure": "ignore"}, "on_failure='ignore': must be 'unscored', 'zero' or 'raise'"),
        ({"reward": "mean"}, "reward='mean': must be 'last' or 'sum'"),
    ],
)
def test_a_setting_that_no_batch_could_run_with_is_refused(setting: Any, text: str) -> None:
    with pytest.raises(ValueError, match="RolloutConfig") as raised:
        RolloutConfig(**setting)
    assert str(raised.value) == f"RolloutConfig.{text}"


def test_each_setting_has_a_help_text_and_the_default_of_the_design() -> None:
    assert all(field.metadata["help"].endswith(".") for field in fields(RolloutConfig))
    assert {field.name: field.default for field in fields(RolloutConfig)} == {
        "max_turns": None,
        "max_turn_tokens": None,
        "max_completion_tokens": None,
        "max_context_tokens": None,
        "reset_timeout_s": 120,
        "step_timeout_s": 60,
        "turn_timeout_s": 300,
        "rollout_timeout_s": 900,
        "retries": 1,
        "on_failure": "unscored",
        "max_failed_frac": 0.5,
        "reward": "last",
        "max_rollouts": None,
        "max_env_steps": 64,
        "max_requests": 256,
        "branch": None,
        "auxiliary": "train",
        "streams": (),
        "max_calls": None,
        "max_rollout_tokens": None,
        "log_every_s": None,
        "seed": 0,
    }


def test_a_slow_tokenizer_is_named() -> None:
    with pytest.raises(abut.TokenizerError) as raised:
        tokenizer_json(object())
    assert str(raised.value) == (
        "object is not a fast tokenizer: it has no backend_tokenizer\nhint: pass a tokenizer "
        "that has a tokenizer.json, or its name or folder"
    )


def test_the_tokenizer_of_a_multimodal_processor_is_found(hf_tokenizer: Any) -> None:
    multimodal = type("Processor", (), {"tokenizer": hf_tokenizer})()
    assert tokenizer_json(multimodal) == tokenizer_json(hf_tokenizer)


WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
try:
    exec(sys.argv[2])
except ImportError as error:
    from abut.errors import MissingExtraError
    assert isinstance(error, MissingExtraError), error
    print(error, end="")
"""


@pytest.mark.parametrize(
    ("missing", "code", "text"),
    [
        (
            "transformers",
            "import abut; abut.Tokenizer.from_pretrained('nothing')",
            "loading a tokenizer by name or folder needs transformers: pip install 'abut[hf]'\n"
            "hint: Tokenizer.from_file('tokenizer.json') works without transformers",
        ),
        (
            "jinja2",
            "import abut; from abut.demo.model import load_demo_tokenizer as load; "
            "abut.ChatTemplateProcessor(load())",
            "chat templates need jinja2 3.1 or later: pip install 'abut[hf]'",
        ),
        (
            "torch",
            "import abut.samplers.transformers",
            "abut.samplers.transformers needs transformers and torch: pip install 'abut[trl]'",
        ),
        (
            "aiohttp",
            "import abut.samplers.vllm",
            "abut.samplers.vllm needs aiohttp: pip install 'abut[vllm]'",
        ),
        (
            "websockets",
            "import abut.openenv",
            "abut.openenv needs websockets: pip install 'abut[openenv]'",
        ),
        (
            "aiohttp,torch,transformers,trl,tqdm,datasets,accelerate,websockets,gymnasium",
            "import abut, abut.trl, abut.rollout.engine, abut.records.record, abut.gym, "
            "abut.template.processor",
            "",
        ),
    ],
)
def test_an_extra_that_is_missing_is_named(missing: str, code: str, text: str) -> None:
    command = [sys.executable, "-c", WITHOUT, missing, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (text, 0), done.stderr


@pytest.mark.parametrize("own", [True, False])
def test_a_traceback_is_told_without_parsing_its_lines(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python does so for the marks below a line; of threads that parse at once one can fail."""
    parsed: list[str] = []

    def parse(text: str, *args: object) -> ast.AST:
        parsed.append(text)
        raise SyntaxError

    monkeypatch.setattr(ast, "parse", parse)

    def fail() -> None:
        try:
            [int(word) for word in ("1", "x")]
        except ValueError as cause:
            raise abut.errors.EnvError("worse" + "") from ExceptionGroup("some", [cause])

    with pytest.raises(abut.errors.EnvError) as raised:
        fail()
    told = trace_of(raised.value, own=own)
    assert "worse" in told
    assert ("invalid literal" in told) is not own
    assert parsed == []
    traceback.format_exception(raised.value)  # the control
    assert parsed
