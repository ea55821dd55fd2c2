"""`abut show`: one recorded rollout in the terminal, its tokens coloured by who wrote them."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from abut._native import Tokenizer
from abut.errors import printable
from abut.parts import PROVENANCE
from abut.records.record import read_records

_COLORS = {"sampled": "1;32", "close": "33", "env": "36", "prompt": "0", "scaffold": "2"}


def pick_record(path: Path, index: int | None, rollout_id: str | None) -> Mapping[str, Any]:
    """Return one record of a file: by id, or by index (negative: from the end).

    Raises:
        ValueError: there is no such record.
    """
    records = list(read_records(path))
    if rollout_id is not None:
        found = [record for record in records if record["rollout_id"] == rollout_id]
        if not found:
            raise ValueError(f"{path}: no rollout {rollout_id!r} among {len(records)}")
        return found[-1]
    index = -1 if index is None else index
    if not -len(records) <= index < len(records):
        raise ValueError(f"{path}: no rollout {index}, the file has {len(records)}")
    return records[index]


def load_tokenizer(source: str | None) -> Tokenizer:
    """Load the tokenizer of a record: a tokenizer.json, a folder, or a model's name.

    Raises:
        ValueError: the record names none.
    """
    if not source:
        raise ValueError(
            "the record does not say which tokenizer its ids belong to\nhint: pass --tokenizer"
        )
    path = Path(source)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        return Tokenizer.from_file(path / "tokenizer.json")
    if path.is_file():
        return Tokenizer.from_file(path)
    return Tokenizer.from_pretrained(source)


def render(record: Mapping[str, Any], tokenizer: Tokenizer, *, color: bool) -> Iterator[str]:
    """Yield the lines of one record. Without color, sampled text stands between ⟦ and ⟧."""
    sampled = sum(record["env_mask"])
    step, mode = record.get("step"), record.get("mode")
    yield f"rollout {_field(record['rollout_id'])}  step {_field(step)}  mode {_field(mode)}"
    yield (
        f"reward {_field(record['reward'])}  stop_reason {_field(record['stop_reason'])}  "
        f"turns {len(record['turns'])}  attempts {_field(record['attempts'])}  "
        f"{record['seconds']:.2f} s"
    )
    if record["error"]:
        yield "error " + printable(str(record["error"])).replace("\n", "\n  ")
    for number, turn in enumerate(record["turns"]):
        yield (
            f"turn {number}  tokens {_field(turn['start'])}:{_field(turn['end'])}  "
            f"{_field(turn['finish_reason'])}  "
            f"generate {turn['generate_s']:.3f} s  env {turn['env_s']:.3f} s  "
            f"reward {_field(turn['reward'])}"
        )
    verdicts = ", ".join(
        _field(seam["kind"]) + ("" if seam["exact"] else " (inexact)") for seam in record["seams"]
    )
    yield f"seams {verdicts or 'none'}"
    ids = [*(record["prompt_ids"] or []), *record["completion_ids"]]
    yield (
        f"{len(record['prompt_ids'] or [])} prompt tokens, "
        f"{len(record['completion_ids'])} completion tokens, {_field(sampled)} sampled"
    )
    yield ""
    if color:
        legend = "  ".join(f"\x1b[{_COLORS[name]}m{name}\x1b[0m" for name in PROVENANCE)
        yield f"{legend}\n"
    yield "".join(_pieces(ids, record["provenance"], tokenizer, color))


def _pieces(
    ids: list[int], provenance: list[int], tokenizer: Tokenizer, color: bool
) -> Iterator[str]:
    # A failed rollout has a prompt but no provenance.
    codes = provenance or [PROVENANCE.index("prompt")] * len(ids)
    at = 0
    for code, group in itertools.groupby(codes):
        end = at + len(list(group))
        text, name = tokenizer.decode(ids[at:end]), PROVENANCE[code]
        at = end
        text = printable(text)
        if color:
            yield f"\x1b[{_COLORS[name]}m{text}\x1b[0m"
        else:
            yield f"⟦{text}⟧" if name == "sampled" else text


def _field(value: Any) -> str:
    """A field that belongs into one line: a line of its own would pass for one of ours."""
    return printable(str(value)).replace("\n", r"\n")
