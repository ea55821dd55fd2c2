"""The row `dialects` compares what the engine is asked in each of them before it counts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import ResultsDiffer, Row
from benchmarks.rows import dialects
from benchmarks.rows.gateway import case
from benchmarks.scale import Scale
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

pytest.importorskip("aiohttp")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

ANSWERS: dict[str, Any] = {
    "/v1/chat/completions": {
        "choices": [{"message": {"role": "assistant", "tool_calls": [{"id": "a"}]}}],
        "usage": {"total_tokens": 7},
    },
    "/v1/messages": {
        "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}],
        "usage": {"input_tokens": 3, "output_tokens": 4},
    },
    "/v1/responses": {
        "output": [{"type": "function_call", "call_id": "a", "name": "search", "arguments": "{}"}],
        "usage": {"total_tokens": 7},
    },
    "/v1beta/models/policy:generateContent": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [{"functionCall": {"id": "a", "name": "search", "args": {}}}],
                }
            }
        ],
        "usageMetadata": {"totalTokenCount": 7},
    },
}


class Answering:
    """A server that reports one CPU second per call."""

    def __init__(self, differs: str = "") -> None:
        self.prompt = [1, 2]
        self.asked: list[str] = []
        self.calls = 0
        self._differs = differs

    def post(self, content: bytes, address: str, key: str) -> tuple[Any, dict[str, str]]:
        path = address.removeprefix("http://there/r/0")
        self.asked.append(path)
        self.calls += 1
        return ANSWERS[path], {}

    def clock(self) -> float:
        return float(self.calls)

    def prompts(self) -> list[list[int]]:
        asked, self.asked = self.asked, []
        return [[1, 3] if path == self._differs else [1, 2] for path in asked]


def held(server: Any) -> dict[str, Sequence[Any]]:
    url = "http://there/r/0/v1"
    talks = {
        name: [kind(server, url, "key") for _ in range(3)]
        for name, kind in dialects.DIALECTS.items()
    }
    for same in zip(*talks.values(), strict=True):
        dialects._grow(same, 1, Replies(1, 300, pool_bytes=20_000))
    server.asked.clear()
    return talks


def test_a_call_of_each_dialect_is_counted_and_the_first_is_not() -> None:
    server = Answering()
    new = Replies(1, 300, pool_bytes=20_000)
    seconds = dialects._asked_all(server, held(server), new)  # type: ignore[arg-type]
    assert {name: seconds.pop(name) for name in dialects.DIALECTS} == dict.fromkeys(
        dialects.DIALECTS, 1.0
    )
    assert {*seconds} == {dialects.parsed(name) for name in dialects.DIALECTS}
    assert all(taken > 0 for taken in seconds.values())


@pytest.mark.parametrize("path", [*ANSWERS][1:])
def test_another_prompt_in_one_dialect_fails_the_row(path: str) -> None:
    server = Answering(differs=path)
    new = Replies(1, 300, pool_bytes=20_000)
    with pytest.raises(ResultsDiffer, match=r"prompt of 2 tokens: abut and .* differ"):
        dialects._asked_all(server, held(server), new)  # type: ignore[arg-type]


def test_each_dialect_needs_a_time_and_a_ratio_to_parsing() -> None:
    row = Row("dialects", "answer")
    taken = {name: [2e-3] for name in dialects.DIALECTS} | {"Messages": [2.4e-3]}
    taken |= {dialects.parsed(name): [4e-4] for name in dialects.DIALECTS}
    row.add(case(30_000), taken)
    dialects._require(row)
    found = {need.what.partition(",")[0]: (need.value, need.bound) for need in row.needs}
    assert found["Messages"] == (2.4e-3, 1.2e-3)
    ratio = "÷ one json.loads of its body"
    assert found[f"Messages {ratio}"] == (pytest.approx(6.0), 1.3)
    assert found[f"Responses {ratio}"] == (pytest.approx(5.0), 1.3)
    assert len(row.needs) == 8


@pytest.mark.slow
def test_all_dialects_ask_the_engine_the_same(qwen3: Any) -> None:
    workbench = Workbench(Path(qwen3.name_or_path), Scale.quick(), {})
    row = dialects.measure(workbench)
    both = [side for name in dialects.DIALECTS for side in (name, dialects.parsed(name))]
    cases = [case(length) for length in workbench.scale.dialect_lengths]
    sides = [(length, side) for length in cases for side in both]
    assert [(figure.case, figure.side) for figure in row.figures] == sides
