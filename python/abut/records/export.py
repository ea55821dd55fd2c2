"""Records as data for other trainers: rows for `SFTTrainer`, prompts, or the records themselves."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from abut.records.record import ROLLOUT, TOGETHER, import_pyarrow

Kind = Literal["ids", "messages", "prompts", "records"]


def export(
    records: Iterable[Mapping[str, Any]], kind: Kind, *, without: Iterable[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows that records make.

    Args:
        records: as `read_records` yields them.
        kind: `"ids"`: `input_ids` and `assistant_masks`, so that only sampled tokens are learnt;
            `"messages"`: `messages`, and `tools` as JSON, null without any; `"prompts"`: `prompt`
            and the dataset's columns, each prompt once; `"records"`: the records. A rollout that
            failed or has no sampled text gives no row of the first two kinds; a rollout of a hosted
            model has no ids, so it gives no row of the first kind.
        without: fields to leave out, such as `columns` and `traceback`, which hold answers and
            paths.

    Raises:
        ValueError: `without` names an unknown field.
    """
    left_out = _fields(without)
    if kind == "prompts":
        yield from _prompts(records, with_columns="columns" not in left_out)
        return
    for record in records:
        if kind == "records":
            yield {name: value for name, value in record.items() if name not in left_out}
        elif record["error"] is not None:
            continue
        elif kind == "messages":
            # Assistants of a prompt are not the policy's turns.
            if record["completion_ids"] or any(t["end"] > t["start"] for t in record["turns"]):
                yield _conversation(record)
        elif record["completion_ids"]:
            yield _ids(record)


def write_rows(rows: Iterable[dict[str, Any]], out: Path | None, stdout: TextIO) -> int:
    """Write rows to a file, JSON lines or Parquet by its name, or to `stdout`; return how many.

    Raises:
        FileExistsError: the file exists.
        ValueError: its name ends in neither `.jsonl` nor `.parquet`.
        MissingExtraError: the file is Parquet, and pyarrow is not installed.
    """
    if out is None:
        return _write_lines(rows, stdout)
    if out.exists():
        raise FileExistsError(f"{out} already exists\nhint: name a new file")
    if out.suffix == ".parquet":
        pyarrow = import_pyarrow()
        table = pyarrow.Table.from_pylist(list(rows))
        pyarrow.parquet.write_table(table, out, compression="zstd")
        return int(table.num_rows)
    if out.suffix != ".jsonl":
        raise ValueError(f"{out}: expected a name that ends in .jsonl or .parquet")
    with out.open("x", encoding="utf-8", errors="replace") as file:
        return _write_lines(rows, file)


def _write_lines(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    count = 0
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        count += 1
    return count


def _fields(without: Iterable[str]) -> set[str]:
    left_out = {field for name in without for field in TOGETHER.get(name, (name,))}
    if strange := sorted(left_out - ROLLOUT.keys() - {"rewards", "total", "advantage", "rows"}):
        raise ValueError(
            f"records do not have a field {strange[0]!r}\n"
            "hint: docs/reference/records.md lists the fields"
        )
    return left_out


def _ids(record: Mapping[str, Any]) -> dict[str, Any]:
    prompt = record["prompt_ids"]
    return {
        "input_ids": [*prompt, *record["completion_ids"]],
        "assistant_masks": [0] * len(prompt) + list(record["env_mask"]),
    }


def _conversation(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return messages, and tools as JSON, because a column of schemas has no single type."""
    tools = record.get("tools")
    as_json = json.dumps(tools, ensure_ascii=False) if tools else None
    return {"messages": record["messages"], "tools": as_json}


def _prompts(
    records: Iterable[Mapping[str, Any]], *, with_columns: bool
) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for record in records:
        columns = dict(record["columns"] or {})
        prompt = columns.pop("prompt", None) or _opening(record["messages"])
        row = {"prompt": prompt, **(columns if with_columns else {})}
        key = json.dumps(row, sort_keys=True, default=str)
        if prompt and key not in seen:
            seen.add(key)
            yield row


def _opening(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    opening = []
    for message in messages:
        if message["role"] == "assistant":
            break
        opening.append(message)
    return opening
