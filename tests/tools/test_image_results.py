"""Images among the results of tools, and in what a class for TRL says at its reset."""

from typing import Any

import pytest

pytest.importorskip("PIL")
pytest.importorskip("transformers")

import numpy as np

from abut.envs.task import RolloutTask
from abut.errors import TemplateError
from abut.images import Image
from abut.parts import Scaffold
from abut.tools.environment_factory import _content, _history_and_last, _joined
from abut.tools.tool_messages import ToolAnswers
from abut.tools.toolbox import JSON_TEXTS

PIXELS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
SHOWN = {"type": "image", "image": Image.of(PIXELS)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_one_message_for_all_answers_keeps_their_images() -> None:
    class OneAnswer:
        def opening(self, messages: Any) -> Any:
            return [Scaffold("look")]

        def increment(self, messages: Any) -> Any:
            if len(messages) > 1:
                raise TemplateError("one answer alone")
            return []

    answers = ToolAnswers(OneAnswer(), [{"function": {"name": "look"}}])  # type: ignore[arg-type]
    first = {"role": "tool", "name": "look", "content": [SHOWN, text("a")]}
    second = {"role": "tool", "name": "look", "content": "b"}
    assert answers.written([first]) == [first]
    (together,) = answers.written([first, second])
    assert together["content"] == [text("look: "), SHOWN, text("a"), text("look: "), text("b")]
    (texts,) = answers.written([second, second])
    assert texts["content"] == "look: b\nlook: b"


@pytest.mark.parametrize("result", [JSON_TEXTS.result, _content])
def test_a_result_shows_images_and_all_else_is_text(result: Any) -> None:
    assert result(PIXELS) == [SHOWN]
    assert result([text("a"), SHOWN]) == [text("a"), SHOWN]
    assert result("a") == "a"
    assert isinstance(result(np.zeros((2, 2))), str)


def test_what_reset_shows_stands_behind_the_last_message() -> None:
    assert _joined("a", "b") == "ab"
    assert _joined("a", [SHOWN]) == [text("a"), SHOWN]
    assert _joined("", [SHOWN]) == [SHOWN]
    assert _joined([SHOWN], "b") == [SHOWN, text("b")]
    last = {"role": "user", "content": [SHOWN, text("a")]}
    task = RolloutTask(0, "r0", dict, [last], "", 0)  # type: ignore[arg-type]
    assert _history_and_last(task) == ([], last)
