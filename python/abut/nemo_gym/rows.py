"""Rows of NeMo Gym's JSON lines as a dataset, and back.

Invariant: a row comes out of the dataset as it was in the file. Arrow would add a null for each key
that only other rows have, and servers refuse such nulls, so the dataset holds a row as one string.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from abut.agents.dataset_agent import JsonRow, content_text, row_text
from abut.agents.dataset_agent import preview as text_preview
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.nemo_gym.servers import Servers

ROW = "nemo_gym_row"
"""The dataset's column of rows."""
AGENT = "nemo_gym_agent"
"""The dataset's column of agent names."""
PARAMS = "responses_create_params"

File: TypeAlias = str | os.PathLike[str]

_EXTRA = "extra_body"
# An escape that may be half a surrogate pair. Characters that are not escaped are whole.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def lines_of(path: File, servers: Servers, agent: str | None) -> list[JsonRow]:
    """Return the rows of a file, each with its agent.

    Args:
        path: a file of JSON lines.
        servers: the servers, with the agents.
        agent: the agent of rows that do not name one.

    Raises:
        ValueError: a line is not a row, or its agent does not exist; names the line.
        OSError: the file cannot be read.
    """
    found = []
    # As bytes, so that a line that is not UTF-8 has a number in its error, and because JSON may
    # contain characters at which text files split lines.
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = _decoded(line).strip()
                row = _read(text)
                check_row(row)
                name = servers.agent_of(row, agent)
            except ValueError as error:
                hint = "" if "hint:" in str(error) else _hint(str(error))
                raise ValueError(f"{path}, line {number}: {error}{hint}") from None
            found.append(JsonRow(preview(row), text, {AGENT: name}))
    if not found:
        raise ValueError(f"{path} has no rows")
    return found


def check_row(row: Any) -> None:
    """Refuse a row that agents could not play.

    Raises:
        ValueError: the row is not valid; says why.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a row must be a JSON object, got {type(row).__name__}")
    params = params_of(row)
    if not isinstance(params, dict) or "input" not in params:
        raise ValueError(f"the row needs {PARAMS} with an input")
    said = params["input"]
    if not isinstance(said, str) and not (isinstance(said, list) and said):
        raise _wrong("input", said, "a string or a list of messages")
    for index, message in enumerate(said if isinstance(said, list) else ()):
        if not isinstance(message, dict):
            raise _wrong(f"input[{index}]", message, "a message (a JSON object)")
    extra_body(params)


def extra_body(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's parameters for the model server, which Gym takes only in metadata.

    Raises:
        ValueError: Gym would not take them.
    """
    metadata = params.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise _wrong("metadata", metadata, "a JSON object")
    for name, value in metadata.items():
        if name != _EXTRA and value is not None and not isinstance(value, str):
            raise _wrong(f"metadata.{name}", value, "a string")
    text = metadata.get(_EXTRA)
    try:
        extra = json.loads(text or "{}") if text is None or isinstance(text, str) else None
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise ValueError(
            f"{PARAMS}.metadata.{_EXTRA} must be a string with a JSON object, got "
            f"{json.dumps(text):.80}"
        )
    return extra


def params_of(row: Mapping[str, Any]) -> Any:
    """Return a row's parameters; a materialized task has them in its input."""
    task = row.get("task_input")
    return task.get(PARAMS) if isinstance(task, Mapping) else row.get(PARAMS)


def openings(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row's input as chat messages; empty if it has other items too."""
    said = params_of(row)["input"]
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    items = said if isinstance(said, list) else []
    if not all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in items):
        return []
    return [{"role": item["role"], "content": content_text(item.get("content"))} for item in items]


def mixed(files: Sequence[Sequence[Any]], weights: Sequence[float] | None) -> Iterator[Any]:
    """Yield all lines of all files, mixed evenly; with weights, lines of some files repeat.

    No line is left out: the file with the most lines for its weight is used once, the others as
    often as their weights say.
    """
    weights = list(weights or map(len, files))
    rounds = max(len(lines) / weight for lines, weight in zip(files, weights, strict=True))
    counts = [
        max(len(lines), round(rounds * weight))
        for lines, weight in zip(files, weights, strict=True)
    ]
    spread = sorted(
        ((turn + 0.5) / count, number, turn)
        for number, count in enumerate(counts)
        for turn in range(count)
    )
    for _, number, turn in spread:
        yield files[number][turn % len(files[number])]


def check_weights(weights: Sequence[float] | None, files: int) -> None:
    """Refuse invalid weights.

    Raises:
        ValueError: the weights are not valid; says why.
    """
    if weights is None:
        return
    if len(weights) != files:
        raise ValueError(f"weights has {len(weights)} numbers, but there are {files} files")
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weights has {weight!r}: each must be more than 0")


def row_of(task: RolloutTask, name: str) -> tuple[dict[str, Any], str | None]:
    """Return a fresh copy of a task's row, and its agent if the dataset has it.

    Raises:
        UnplayableRow: the task has no row.
    """
    agent = task.columns.get(AGENT)
    has_text = isinstance(task.columns.get(ROW), str)
    if not has_text and not {PARAMS, "task_input"}.isdisjoint(task.columns):
        row = without_nulls({k: v for k, v in task.columns.items() if k not in ("prompt", AGENT)})
    else:
        column = PARAMS if PARAMS in task.removed_columns else ROW
        row = json.loads(row_text(task, column, name, dataset=f"{name}.dataset('train.jsonl')"))
    try:
        check_row(row)
    except ValueError as error:
        raise UnplayableRow(f"{name}: {error}") from None
    return row, agent if isinstance(agent, str) else None


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the line is not UTF-8 from byte {error.start} on\n"
            "hint: convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`"
        ) from None


def _read(text: str) -> Any:
    """Read a line; refuse invalid JSON, and values that servers would refuse during a rollout."""

    def refuse(name: str) -> Any:
        raise ValueError(
            f"the line has {name}, which is not valid JSON\n"
            "hint: write null, or leave the field out"
        )

    try:
        row = json.loads(text, parse_constant=refuse)
        if _HALF.search(text):
            json.dumps(row, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise ValueError(
            f"the line has half a surrogate pair, \\u{half:04x}, which servers refuse"
        ) from None
    return row


def _wrong(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"{PARAMS}.{name} is {json.dumps(value):.80}: it must be {wanted}")


def without_nulls(value: Any) -> Any:
    """Return the value without the null keys that Arrow adds."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(part) for part in value]
    return value


def preview(row: Mapping[str, Any]) -> str:
    """Return a row's messages as text, for TRL's tables of completions."""
    said = params_of(row)["input"]
    if isinstance(said, str):
        return text_preview([("user", said)])
    items = [item for item in said if isinstance(item, Mapping)]
    return text_preview(
        (str(item.get("role", item.get("type"))), item.get("content")) for item in items
    )


def _hint(said: str) -> str:
    if "names no agent" in said:
        return "\nhint: pass agent= (or --agent on the command line) for rows that name no agent"
    if "there is no agent" in said:
        return "\nhint: start Gym with the configuration of that agent"
    return ""
